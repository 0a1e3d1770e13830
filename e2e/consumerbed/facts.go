package consumerbed

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Facts are what is known of an event: its row or receipt, and the two
// observations of its effect.
type Facts struct {
	Status     int16 // NoReceipt if there is none
	Generation int
	Attempts   int
	Code       string
	// Accepted is how often the provider accepted the message, repetitions
	// included. Received is how many answers the consumer got.
	Accepted, Received int
}

// NoReceipt is the status of an event without a receipt.
const NoReceipt int16 = -1

// With returns the facts with other observations.
func (f Facts) With(accepted, received int) Facts {
	f.Accepted, f.Received = accepted, received
	return f
}

// Facts returns what is known of an event now.
func (b *Bed) Facts(ev Event) Facts {
	b.t.Helper()
	f := Facts{Status: NoReceipt, Received: len(b.Steps(consumerproc.Received, ev))}
	sql, args := `SELECT send_status, claim_generation, attempts, coalesce(error_code, '') FROM public.outbox WHERE event_id = $1`, []any{ev.ID}
	if b.cfg.Mode != consumerproc.Shared {
		sql = `SELECT status, claim_generation, attempts, coalesce(error_code, '') FROM public.outbox_receipt WHERE event_id = $1 AND purpose = $2`
		args = append(args, b.cfg.Purpose)
	}
	type row struct {
		Status               int16
		Generation, Attempts int
		Code                 string
	}
	for _, r := range scan(b, pgx.RowToStructByPos[row], sql, args...) {
		f.Status, f.Generation, f.Attempts, f.Code = r.Status, r.Generation, r.Attempts, r.Code
	}
	for _, o := range b.Provider.Log() {
		if o.What == provider.Accepted && o.Key == b.providerKey(ev.ID) {
			f.Accepted++
		}
	}
	return f
}

// Want compares the facts of an event with what they should be.
func (b *Bed) Want(what string, ev Event, want Facts) {
	b.t.Helper()
	if d := cmp.Diff(want, b.Facts(ev)); d != "" {
		b.t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// WaitStatus waits until an event has a status.
func (b *Bed) WaitStatus(status int16, events ...Event) {
	b.t.Helper()
	for _, ev := range events {
		b.Wait(fmt.Sprintf("event %s to have status %d", ev.ID, status), func() bool { return b.Facts(ev).Status == status })
	}
}

// WaitAccepted waits until the provider has accepted an event's message n times.
func (b *Bed) WaitAccepted(ev Event, n int) {
	b.t.Helper()
	b.Wait(fmt.Sprintf("the provider to accept event %s %d times", ev.ID, n), func() bool { return b.Facts(ev).Accepted >= n })
}

// Asked is how often the provider was asked for an event's message.
func (b *Bed) Asked(ev Event) (n int) {
	for _, o := range b.Provider.Log() {
		if o.What == provider.Asked && o.Key == b.providerKey(ev.ID) {
			n++
		}
	}
	return n
}

// Send sends a message under an event's key, as if another attempt had done so.
func (b *Bed) Send(ev Event, body string) {
	b.t.Helper()
	c, err := client.New(b.cfg.Provider, http.DefaultTransport)
	if err != nil {
		b.t.Fatal(err)
	}
	if a, err := c.Send(b.t.Context(), b.providerKey(ev.ID), "the test", []byte(body)); err != nil || a.Status != http.StatusAccepted {
		b.t.Fatalf("sending a message: %+v, %v", a, err)
	}
}

// InMessages reports whether an error message of a row or receipt contains a
// text.
func (b *Bed) InMessages(text string) bool {
	b.t.Helper()
	return b.Count(`SELECT count(*) FROM (SELECT error_message FROM public.outbox UNION ALL SELECT error_message FROM public.outbox_receipt) m
		WHERE strpos(error_message, $1) > 0`, text) > 0
}

// Ahead is how far the database's clock is ahead of the test's.
func (b *Bed) Ahead() time.Duration {
	b.t.Helper()
	now := scan(b, pgx.RowTo[time.Time], `SELECT clock_timestamp()`)
	return time.Until(now[0])
}

// LeaseOver reports whether the lease of an event's claim has run out.
func (b *Bed) LeaseOver(ev Event) bool {
	b.t.Helper()
	return b.ask(ev, `lease_until <= clock_timestamp()`)
}

// DelayOver reports whether the delay of an event's last failure is over.
func (b *Bed) DelayOver(ev Event) bool {
	b.t.Helper()
	return b.ask(ev, `next_attempt_at <= clock_timestamp()`)
}

// ask asks for a condition of an event's row or receipt.
func (b *Bed) ask(ev Event, condition string) bool {
	b.t.Helper()
	if b.cfg.Mode == consumerproc.Shared {
		return b.Count(`SELECT (`+condition+`)::int FROM public.outbox WHERE id = $1`, ev.RowID) == 1
	}
	return b.Count(`SELECT (`+condition+`)::int FROM public.outbox_receipt WHERE event_id = $1 AND purpose = $2`, ev.ID, b.cfg.Purpose) == 1
}

// Faults replaces the provider's faults.
func (b *Bed) Faults(faults ...provider.Fault) {
	b.t.Helper()
	if err := b.Provider.SetFaults(faults...); err != nil {
		b.t.Fatal(err)
	}
}

// Committed is the group's offset in a partition, negative if there is none.
func (b *Bed) Committed(p check.PartitionName) int64 {
	b.t.Helper()
	for _, at := range b.positions() {
		if at.PartitionName == p {
			return at.Committed
		}
	}
	return -1
}

// WaitCommitted waits until the group's offset in a partition is past an event.
func (b *Bed) WaitCommitted(ev Event) {
	b.t.Helper()
	b.Wait(fmt.Sprintf("the offset in %s/%d to pass %d", ev.Topic, ev.Number, ev.Offset), func() bool { return b.Committed(ev.PartitionName) > ev.Offset })
}

// WantStays fails the test if the group's offset is past an event.
func (b *Bed) WantStays(what string, ev Event) {
	b.t.Helper()
	if at := b.Committed(ev.PartitionName); at > ev.Offset {
		b.t.Errorf("%s: offset %d is committed, past %d", what, at, ev.Offset)
	}
}

func (b *Bed) positions() []check.GroupPosition {
	b.t.Helper()
	positions, err := b.Admin.Positions(b.t.Context(), b.Group, b.Topics...)
	if err != nil {
		b.t.Fatal(err)
	}
	return positions
}

// providerKey is the idempotency key of an event.
func (b *Bed) providerKey(id outbox.ID) string { return id.String() + ":" + b.cfg.Purpose }

// effects counts by event what the provider delivered, or the rows that were
// committed with receipts.
func (b *Bed) effects() map[[16]byte]int {
	b.t.Helper()
	effects := map[[16]byte]int{}
	if b.cfg.Mode == consumerproc.Transaction {
		for _, id := range scan(b, pgx.RowTo[outbox.ID], `SELECT event_id FROM public.effect WHERE purpose = $1`, b.cfg.Purpose) {
			effects[id]++
		}
		return effects
	}
	for _, m := range b.Provider.Mailbox() {
		text, purpose, _ := strings.Cut(m.Key, ":")
		if id, err := outbox.ParseID(text); err == nil && purpose == b.cfg.Purpose {
			effects[id]++
		}
	}
	return effects
}
