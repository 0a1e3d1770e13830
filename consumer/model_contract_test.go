package consumer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// contractUnit is what leases and delays are made of. Nothing in a test takes as
// long, and time passes by changing the rows.
const contractUnit = time.Hour

// contractShare is how many of -rapid.checks make about one program here.
const contractShare = 8

// contractEvents is how many events have rows, so few that much happens to each.
const contractEvents = 2

// contract runs the same statements on the table of the model and on a real one.
type contract struct {
	conn   *pgx.Conn // sees and changes everything
	locks  *pgx.Conn // has rows locked
	real   map[string]memory
	model  *modelTable
	refs   []store.Ref
	column string // send_status
	table  string
	held   []store.Held
}

// TestModelTable compares the table of TestModel with PostgreSQL: without that
// nobody need believe the model.
func TestModelTable(t *testing.T) {
	t.Parallel()
	for _, receipts := range []bool{false, true} {
		t.Run(map[bool]string{false: "rows", true: "receipts"}[receipts], func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				db.Migrate(t, "public")
				conn, locks, pool := db.Conn(t), db.Conn(t), contractPool(t, db.DSN)
				for _, c := range []*pgx.Conn{conn, locks} {
					if _, err := c.Exec(t.Context(), "SET synchronous_commit = off"); err != nil {
						t.Fatal(err)
					}
				}
				rapid.Check(t, func(rt *rapid.T) {
					if rapid.IntRange(1, contractShare).Draw(rt, "share") != 1 {
						return // each statement goes to a server
					}
					c := newContract(rt, conn, locks, pool, receipts)
					rt.Repeat(c.actions())
				})
			})
		})
	}
}

// contractPool does not wait for locks as long as the kit does.
func contractPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conf = store.PoolConfig(conf)
	pin := conf.AfterConnect
	conf.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := pin(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "SET lock_timeout = '2ms'; SET synchronous_commit = off")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newContract(t *rapid.T, conn, locks *pgx.Conn, pool *pgxpool.Pool, receipts bool) *contract {
	c := &contract{conn: conn, locks: locks, real: map[string]memory{}, column: "send_status", table: "outbox"}
	c.model = &modelTable{receipts: receipts, lease: 4 * contractUnit, limit: 2, clock: time.Now, rows: map[outbox.ID]*modelRow{}}
	for _, owner := range []string{"me", "you"} {
		if receipts {
			c.real[owner] = store.NewReceipts(pool, `"public"."outbox_receipt"`, "mail", owner, c.model.lease, c.model.limit)
		} else {
			c.real[owner] = store.NewRows(pool, `"public"."outbox"`, owner, c.model.lease, c.model.limit)
		}
	}
	if receipts {
		c.column, c.table = "status", "outbox_receipt"
	}
	c.lockNone(t)
	c.exec(t, "DELETE FROM outbox")
	c.exec(t, "DELETE FROM outbox_receipt")
	for range contractEvents {
		c.refs = append(c.refs, c.event(t))
	}
	c.refs = append(c.refs, store.Ref{EventID: outbox.NewID()}) // has no row
	if !receipts {
		c.refs = append(c.refs, store.Ref{EventID: c.refs[0].EventID}, store.Ref{EventID: c.refs[1].EventID, RowID: c.refs[0].RowID})
	}
	return c
}

// event makes an event that is SENT, if that needs a row.
func (c *contract) event(t *rapid.T) store.Ref {
	ref := store.Ref{EventID: outbox.NewID()}
	if c.model.receipts {
		return ref
	}
	err := c.conn.QueryRow(context.Background(), `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, send_status, sent_at)
		VALUES ($1, 'order', 'o-1', 'created', 2, clock_timestamp()) RETURNING id`, ref.EventID).Scan(&ref.RowID)
	if err != nil {
		t.Fatal(err)
	}
	c.model.rows[ref.EventID] = &modelRow{id: ref.RowID, event: ref.EventID, status: outbox.Sent, since: time.Now()}
	return ref
}

func (c *contract) exec(t *rapid.T, sql string, args ...any) {
	if _, err := c.conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// actions are what a test repeats; the empty name checks.
func (c *contract) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":         c.check,
		"Claim":    c.claim,
		"TakeOver": c.takeOver,
		"States":   c.states,
		"Renew":    c.renew,
		"DoneNow":  c.doneNow,
		"HandBack": c.handBack,
		"Fail":     c.fail,
		"Release":  c.release,
		"time":     func(t *rapid.T) { c.pass(t, time.Duration(rapid.IntRange(1, 4).Draw(t, "units"))*contractUnit) },
		"lock":     func(t *rapid.T) { c.lock(t, rapid.SampledFrom(c.refs).Draw(t, "ref")) },
		"unlock":   c.lockNone,
		"by hand":  c.change,
	}
}

func (c *contract) someRefs(t *rapid.T) []store.Ref {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(c.refs), 1, len(c.refs), func(r store.Ref) outbox.ID { return r.EventID }).Draw(t, "refs")
}

func (c *contract) owner(t *rapid.T) string {
	return rapid.SampledFrom([]string{"me", "you"}).Draw(t, "owner")
}

// someHeld are claims that were won, or never were.
func (c *contract) someHeld(t *rapid.T) []store.Held {
	last := c.held[max(0, len(c.held)-contractEvents):]
	known := append(slices.Clone(last), store.Held{Ref: c.refs[0], Generation: 1})
	return rapid.SliceOfNDistinct(rapid.SampledFrom(known), 1, min(3, len(known)), func(h store.Held) outbox.ID { return h.EventID }).Draw(t, "held")
}

// equal compares two answers; what is about time roughly.
func (c *contract) equal(t *rapid.T, what string, model, real any, errs ...error) {
	roughly := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < contractUnit/4 })
	order := cmpopts.SortSlices(func(a, b store.Held) int { return slices.Compare(a.EventID[:], b.EventID[:]) })
	if diff := cmp.Diff(model, real, roughly, order, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s (-model +PostgreSQL):\n%s", what, diff)
	}
	if len(errs) == 2 && store.IsLocked(errs[0]) != store.IsLocked(errs[1]) || len(errs) == 2 && (errs[0] == nil) != (errs[1] == nil) {
		t.Fatalf("%s: the model says %v, PostgreSQL %v", what, errs[0], errs[1])
	}
}

func (c *contract) won(list ...store.Claim) {
	for _, claim := range list {
		c.held = append(c.held, claim.Held())
	}
}

func (c *contract) claim(t *rapid.T) {
	owner, refs := c.owner(t), c.someRefs(t)
	want := c.model.claim(owner, refs)
	got, err := c.real[owner].Claim(context.Background(), refs)
	sortClaims(want)
	sortClaims(got)
	c.equal(t, "Claim", want, got, nil, err)
	c.won(want...)
}

func sortClaims(list []store.Claim) {
	slices.SortFunc(list, func(a, b store.Claim) int { return slices.Compare(a.EventID[:], b.EventID[:]) })
}

// takeOver asks up to three times, as an event that is abandoned too often is
// parked.
func (c *contract) takeOver(t *rapid.T) {
	owner, ref := c.owner(t), rapid.SampledFrom(c.refs).Draw(t, "ref")
	for range rapid.IntRange(1, 3).Draw(t, "times") {
		c.takeOne(t, owner, ref)
	}
}

func (c *contract) takeOne(t *rapid.T, owner string, ref store.Ref) {
	how := rapid.SampledFrom([]string{"as it is", "when leases are over", "and it is locked"}).Draw(t, "how")
	if how != "as it is" {
		c.pass(t, c.model.lease)
	}
	if how == "and it is locked" {
		c.lock(t, ref)
	}
	want, wantParked, wantOK := c.model.takeOver(owner, ref)
	got, parked, ok, err := c.real[owner].TakeOver(context.Background(), ref)
	c.equal(t, "TakeOver", []any{want, wantParked, wantOK}, []any{got, parked, ok}, nil, err)
	if ok {
		c.won(want)
	}
}

func (c *contract) states(t *rapid.T) {
	refs := c.someRefs(t)
	got, err := c.real["me"].States(context.Background(), refs)
	if diff := cmp.Diff(c.model.states(refs), got, cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < contractUnit/4 })); diff != "" || err != nil {
		t.Fatalf("States (-model +PostgreSQL): %v\n%s", err, diff)
	}
}

func (c *contract) renew(t *rapid.T) {
	held := c.someHeld(t)
	want, wantLocked := c.model.renew(held)
	got, locked, err := c.real["me"].Renew(context.Background(), held)
	c.equal(t, "Renew", [][]store.Held{want, wantLocked}, [][]store.Held{got, locked}, nil, err)
}

func (c *contract) doneNow(t *rapid.T) {
	held := c.someHeld(t)
	want, wantLocked := c.model.doneNow(held)
	got, locked, err := c.real["me"].DoneNow(context.Background(), held)
	c.equal(t, "DoneNow", [][]store.Held{want, wantLocked}, [][]store.Held{got, locked}, nil, err)
}

func (c *contract) handBack(t *rapid.T) {
	held := c.someHeld(t)
	c.equal(t, "HandBack", 0, 0, c.model.handBack(held), c.real["me"].HandBack(context.Background(), held))
}

func (c *contract) fail(t *rapid.T) {
	f := store.Failure{Held: c.someHeld(t)[0], Code: "APP_X"}
	want, wantErr := c.model.fail(f)
	got, err := c.real["me"].Fail(context.Background(), f)
	c.equal(t, "Fail", want, got, wantErr, err)
}

func (c *contract) release(t *rapid.T) {
	r := store.Release{Held: c.someHeld(t)[0], Code: rapid.SampledFrom([]string{store.CodeSystem, store.CodePanic, store.CodeAmbiguous}).Draw(t, "code")}
	r.Delay = time.Duration(rapid.IntRange(0, 3).Draw(t, "delay")) * contractUnit
	want, wantErr := c.model.release(r)
	got, err := c.real["me"].Release(context.Background(), r)
	c.equal(t, "Release", want, got, wantErr, err)
}

// pass lets time pass: everything in the rows is that much longer ago.
func (c *contract) pass(t *rapid.T, d time.Duration) {
	c.lockNone(t)
	since := "sent_at"
	if c.model.receipts {
		since = "created_at"
	}
	c.exec(t, fmt.Sprintf(`UPDATE %s SET lease_until = lease_until - $1::bigint * interval '1 us',
		next_attempt_at = next_attempt_at - $1::bigint * interval '1 us', %s = %[2]s - $1::bigint * interval '1 us'`, c.table, since), d.Microseconds())
	for _, row := range c.model.rows {
		for _, at := range []*time.Time{&row.lease, &row.next, &row.since} {
			if !at.IsZero() {
				*at = at.Add(-d)
			}
		}
	}
}

// lock locks a row for a person.
func (c *contract) lock(t *rapid.T, ref store.Ref) {
	if row := c.model.rows[ref.EventID]; row != nil {
		row.locked = true
	}
	if _, err := c.locks.Exec(context.Background(), "SELECT FROM "+c.table+" WHERE event_id = $1 FOR UPDATE", ref.EventID); err != nil {
		t.Fatal(err)
	}
}

// lockNone lets go of all rows.
func (c *contract) lockNone(t *rapid.T) {
	if _, err := c.locks.Exec(context.Background(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.locks.Exec(context.Background(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	for _, row := range c.model.rows {
		row.locked = false
	}
}

// change is what others do to rows: the relay and people.
func (c *contract) change(t *rapid.T) {
	if c.model.receipts {
		return
	}
	c.lockNone(t)
	row := c.model.rows[rapid.SampledFrom(c.refs[:contractEvents]).Draw(t, "ref").EventID]
	switch rapid.IntRange(0, 3).Draw(t, "what") {
	case 0: // replayed, or swept
		row.status, row.attempts, row.code, row.since, row.finished, row.never, row.by = outbox.Ready, 0, "", time.Time{}, false, false, ""
		row.next, row.lease = time.Now(), time.Time{}
		c.exec(t, `UPDATE outbox SET send_status = 0, next_attempt_at = now(), attempts = 0, error_code = NULL, error_message = NULL,
			sent_at = NULL, finished_at = NULL, claimed_by = NULL, lease_until = NULL WHERE id = $1`, row.id)
	case 1: // published
		row.status, row.attempts, row.since, row.never, row.next, row.lease = outbox.Sent, 0, time.Now(), false, time.Time{}, time.Time{}
		c.exec(t, `UPDATE outbox SET send_status = 2, next_attempt_at = NULL, attempts = 0, sent_at = now(), lease_until = NULL WHERE id = $1`, row.id)
	case 2: // waived
		row.status, row.finished, row.never, row.next, row.lease = outbox.Failed, true, false, time.Time{}, time.Time{}
		c.exec(t, `UPDATE outbox SET send_status = 3, next_attempt_at = NULL, finished_at = now(), lease_until = NULL WHERE id = $1`, row.id)
	case 3: // FAILED before it was published
		row.status, row.finished, row.never, row.next, row.since, row.lease = outbox.Failed, false, true, time.Time{}, time.Time{}, time.Time{}
		c.exec(t, `UPDATE outbox SET send_status = 3, next_attempt_at = 'infinity', finished_at = NULL, sent_at = NULL, lease_until = NULL WHERE id = $1`, row.id)
	}
}

// contractRow is what a row holds, in words.
type contractRow struct {
	Event      outbox.ID
	Status     outbox.Status
	Generation int32
	Attempts   int
	By         string
	Code       string
	Leased     bool
	Next       string
	Finished   bool
}

// check compares all rows.
func (c *contract) check(t *rapid.T) {
	rows, err := c.conn.Query(context.Background(), fmt.Sprintf(`SELECT event_id, %s, claim_generation, attempts, coalesce(claimed_by, ''),
		coalesce(error_code, ''), lease_until IS NOT NULL, CASE WHEN next_attempt_at = 'infinity' THEN 'never' WHEN next_attempt_at > now() THEN 'later'
		WHEN next_attempt_at IS NOT NULL THEN 'due' ELSE '' END, finished_at IS NOT NULL FROM %s ORDER BY event_id`, c.column, c.table))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[contractRow])
	if err != nil {
		t.Fatal(err)
	}
	want := make([]contractRow, 0, len(c.model.rows))
	for _, r := range c.model.rows {
		row := contractRow{r.event, r.status, r.generation, r.attempts, r.by, r.code, !r.lease.IsZero(), "", r.finished}
		switch {
		case r.never:
			row.Next = "never"
		case r.next.After(time.Now()):
			row.Next = "later"
		case !r.next.IsZero():
			row.Next = "due"
		}
		want = append(want, row)
	}
	slices.SortFunc(want, func(a, b contractRow) int { return slices.Compare(a.Event[:], b.Event[:]) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("rows (-model +PostgreSQL):\n%s", diff)
	}
}
