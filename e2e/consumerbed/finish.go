package consumerbed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Codes are error codes by event.
type Codes map[outbox.ID]string

// Reasons are those of the quarantine, by place.
type Reasons map[check.Place]string

// Arranged is what a test has arranged: everything else that is not a clean end
// is a problem.
type Arranged struct {
	Failed  Codes
	Refused Reasons
	Open    []Event
	Waiting []check.PartitionName
}

// Finish ends a test: it waits until the group is quiet and lets the one check
// compare log, offsets, rows or receipts, quarantine and effects.
func (b *Bed) Finish(a Arranged) {
	b.t.Helper()
	var problems error
	b.wait("a quiet group in which all is well", func() bool {
		problems = b.Check(a)
		return problems == nil
	}, func() string { return problems.Error() + "\n" + b.state() })
	b.joined()
}

// Check compares what is there now.
func (b *Bed) Check(a Arranged) error {
	b.t.Helper()
	c := check.Consumption{
		Deliveries: b.deliveries(), Positions: b.positions(), Outcomes: b.outcomes(), Quarantined: b.quarantined(), Effects: b.effects(),
		Failed: map[[16]byte]string{}, Refused: a.Refused, Open: map[[16]byte]bool{}, Waiting: map[check.PartitionName]bool{},
	}
	for id, code := range a.Failed {
		c.Failed[id] = code
	}
	for _, ev := range a.Open {
		c.Open[ev.ID] = true
	}
	for _, p := range a.Waiting {
		c.Waiting[p] = true
	}
	return c.Check()
}

// outcomes reads rows, or the receipts of the bed's purpose.
func (b *Bed) outcomes() map[[16]byte]check.Outcome {
	b.t.Helper()
	sql, args := `SELECT event_id, send_status, coalesce(lease_until < clock_timestamp(), false), sent_at IS NULL,
		coalesce(error_code, ''), coalesce(error_message, '') FROM public.outbox`, []any{}
	if b.cfg.Mode != consumerproc.Shared {
		sql, args = `SELECT event_id, status, coalesce(lease_until < clock_timestamp(), false), false,
			coalesce(error_code, ''), coalesce(error_message, '') FROM public.outbox_receipt WHERE purpose = $1`, []any{b.cfg.Purpose}
	}
	type row struct {
		ID [16]byte
		check.Outcome
	}
	outcomes := map[[16]byte]check.Outcome{}
	for _, r := range scan(b, func(from pgx.CollectableRow) (r row, err error) {
		return r, from.Scan(&r.ID, &r.Status, &r.LeaseOver, &r.Unpublished, &r.Code, &r.Message)
	}, sql, args...) {
		outcomes[r.ID] = r.Outcome
	}
	return outcomes
}

// quarantined reads the quarantine.
func (b *Bed) quarantined() map[check.Place]check.Quarantined {
	b.t.Helper()
	type row struct {
		check.Place
		check.Quarantined
	}
	all := map[check.Place]check.Quarantined{}
	for _, r := range scan(b, func(from pgx.CollectableRow) (r row, err error) {
		return r, from.Scan(&r.Topic, &r.Number, &r.Offset, &r.Reason, &r.Message, &r.Resolved)
	}, `SELECT topic, partition, "offset", reason, message, resolved_at IS NOT NULL FROM public.outbox_quarantine WHERE split_part(consumer, '/', 1) = $1`, b.Group) {
		all[r.Place] = r.Quarantined
	}
	return all
}

// joined joins the two observations: an answer that a consumer got is one that
// the provider gave, to that attempt.
func (b *Bed) joined() {
	b.t.Helper()
	answered := map[string]int{}
	for _, o := range b.Provider.Log() {
		if o.What == provider.Answered {
			answered[o.Attempt] = o.Status
		}
	}
	b.control.mu.Lock()
	defer b.control.mu.Unlock()
	for _, s := range b.control.steps {
		if s.Group == b.Group && s.At == consumerproc.Received && answered[s.Try] != s.Status {
			b.t.Errorf("attempt %s got the answer %d, the provider gave %d", s.Try, s.Status, answered[s.Try])
		}
	}
}

// Seek sets the group's offset, when all consumers have ended.
func (b *Bed) Seek(p check.PartitionName, offset int64) {
	b.t.Helper()
	if err := b.Admin.Seek(b.t.Context(), b.Group, p, offset); err != nil {
		b.t.Fatal(err)
	}
}

// Passed returns a condition that holds once the database's clock has moved on by
// seconds: for tests about what must not happen in that time.
func (b *Bed) Passed(seconds int) func() bool {
	b.t.Helper()
	until := fmt.Sprintf("clock_timestamp() >= '%s'", b.text(`SELECT (clock_timestamp() + make_interval(secs => $1))::text`, seconds))
	return func() bool { return b.Count(`SELECT (`+until+`)::int`) == 1 }
}

func (b *Bed) text(sql string, args ...any) (s string) {
	b.t.Helper()
	if err := b.Pool.QueryRow(context.WithoutCancel(b.t.Context()), sql, args...).Scan(&s); err != nil {
		b.t.Fatalf("asking %q: %v", sql, err)
	}
	return s
}
