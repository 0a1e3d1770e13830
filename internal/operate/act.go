package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Action is what a person does to rows, as the audit trail names it.
type Action string

const (
	// Replay publishes FAILED rows (and SENT ones, when asked) anew.
	Replay Action = "replay"
	// Skip waives FAILED rows: they are never published or consumed, and
	// nothing waits for them any longer.
	Skip Action = "skip"
)

// Order says what is to be done to rows, and which ones may be touched.
type Order struct {
	Action Action
	// From lists the states that a row may be in: FAILED, and for a replay
	// also SENT.
	From []outbox.Status
	// Waived lets a replay take rows that were skipped.
	Waived bool
	// Reason and Filter are for the audit trail; either may be empty.
	Reason string
	Filter string
}

// Validate says what about the order makes no sense; takes are the states that
// its action knows.
func (o *Order) Validate(takes ...outbox.Status) error {
	for _, from := range o.From {
		if !slices.Contains(takes, from) {
			return fmt.Errorf("%s does nothing to rows that are %s", o.Action, from)
		}
	}
	return nil
}

// Outcome is what became of one row; it is part of the JSON contract.
type Outcome string

const (
	Replayed     Outcome = "replayed"
	Skipped      Outcome = "skipped"
	WouldReplay  Outcome = "would_replay" // by a dry run
	WouldSkip    Outcome = "would_skip"
	NotFound     Outcome = "not_found"    // there is no such row, or no longer
	NotFailed    Outcome = "not_failed"   // in a state that the order does not take
	Waived       Outcome = "waived"       // FAILED and skipped before
	Locked       Outcome = "locked"       // another transaction holds the row
	Sent         Outcome = "sent"         // replayed, and SENT or further
	FailedAgain  Outcome = "failed_again" // replayed, and FAILED again
	StillWaiting Outcome = "waiting"      // replayed, and still READY when the wait ended
)

// Result tells what became of one row.
type Result struct {
	ID      int64  // 0: not known
	EventID string // "": not known
	Outcome Outcome
	// Status and ErrorCode are the row's as last seen. Found tells that it was
	// seen at all.
	Found     bool
	Status    outbox.Status
	ErrorCode string
	Detail    string // a phrase for people; may be empty

	changed bool
}

// Changed tells that the order was carried out on the row, whatever has become of
// it since.
func (r *Result) Changed() bool { return r.changed }

// Actions acts on rows for a person. Every change is guarded by the state that
// the row must be in and audited in the same transaction. Not safe for
// concurrent use; any number of operators may act at once, each with his own.
type Actions struct {
	table   *Table
	person  string
	timeout time.Duration
}

// NewActions returns the Actions on a table. person is the operating system's
// name of who acts, for the audit trail; timeout bounds each transaction. It
// does no I/O.
func NewActions(table *Table, person string, timeout time.Duration) *Actions {
	return &Actions{table: table, person: person, timeout: timeout}
}

// changeSQL locks the rows that the order takes, in the order of their ids so
// that two operators cannot wait for each other, and changes them. A row that
// somebody has changed meanwhile is judged as it is then. The ids stand there
// twice so that both parts go by the primary key.
const changeSQL = `
WITH pick AS MATERIALIZED (
  SELECT o.id, coalesce(o.commit_lsn::text, '') AS position FROM {table} o
   WHERE o.id = ANY ($1::bigint[]) AND o.send_status = ANY ($2::smallint[]) AND ({finished_at} IS NULL OR $3::bool)
   ORDER BY o.id FOR NO KEY UPDATE OF o {locked}),
changed AS (
  UPDATE {table} o SET {set}
    FROM pick p WHERE o.id = p.id AND o.id = ANY ($1::bigint[])
  RETURNING o.id, o.{=event_id} AS event_id, p.position)`

// able says why an action cannot be carried out on this table; nil if it can.
// An application's own table may lack what only consumers use, finished_at among
// that, without which a row that is FAILED cannot be told from one that was
// skipped.
func (a *Actions) able(action Action) error {
	if action != Skip || a.table.has("finished_at") {
		return nil
	}
	return &fault.Blocked{Reason: "table.columns",
		What:   fmt.Sprintf("the table %s has no finished_at, by which a row is known to be skipped: nothing was changed", a.table.cfg.Table),
		Remedy: fmt.Sprintf("run: ALTER TABLE %s ADD COLUMN finished_at timestamptz", a.table.cfg.Table.Ident())}
}

// changeText is the statement that carries an action out; locked says what to
// do about rows that somebody has locked: wait, which is "", or SKIP LOCKED.
func changeText(action Action, locked string) string {
	set := map[Action]string{Replay: replaySet, Skip: skipSet}[action]
	return strings.NewReplacer("{set}", set, "{locked}", locked).Replace(changeSQL + auditSQL)
}

// maxBatch is how many rows one transaction changes. The relay's write-backs
// wait for the locks of such a transaction.
const maxBatch = 500

// Apply carries an order out on rows, at most rate of them a second (0: without
// limit), in batches that are a transaction each. It returns a result for each
// id of the batches that were committed, in the order of the ids; with an error
// the rest was not touched, but for the batch whose answer may have been lost:
// the error says so. Doing it again leaves alone what is done.
func (a *Actions) Apply(ctx context.Context, order Order, ids []int64, rate int) ([]Result, error) {
	if err := a.able(order.Action); err != nil {
		return nil, err
	}
	var results []Result
	doubt := 0
	err := inBatches(ctx, ids, rate, func(batch []int64) error {
		done, err := a.applyBatch(ctx, order, batch)
		if err != nil && !rolledBack(err) {
			doubt = len(batch)
		}
		results = append(results, done...)
		return err
	})
	if err != nil {
		err = interrupted(order.Action, len(results), doubt, len(ids), a.table.explain(ctx, err))
	}
	return results, err
}

// rolledBack tells that the server has refused a transaction. When it does not
// answer, or ends the session, perhaps in the middle of a commit, nobody knows.
func rolledBack(err error) bool {
	const shutdown = "57P"
	code := pg.Code(err)
	return code != "" && !strings.HasPrefix(code, shutdown)
}

// interrupted says how far an order has come.
func interrupted(action Action, done, doubt, all int, err error) error {
	perhaps := ""
	if doubt > 0 {
		perhaps = fmt.Sprintf(" and perhaps %d more", doubt)
	}
	return fmt.Errorf("%s ended after %d of %d rows%s; the others are as they were, and doing it again leaves alone what is done: %w",
		action, done, all, perhaps, err)
}

// explain adds what to do about an error that a person can do something about.
func explain(err error) error {
	switch pg.Code(err) {
	case pg.CodeNoPrivilege:
		return fmt.Errorf("%w; give the login the rights of an operator: SELECT on the outbox and on the cdc_relay tables, "+
			"UPDATE of the status columns and of cdc_relay_topic, INSERT on cdc_relay_audit", err)
	case pg.CodeUndefinedTable, pg.CodeUndefinedColumn:
		return fmt.Errorf("%w; correct outbox.table and outbox.columns, or run cdc-relay migrate up", err)
	}
	return err
}

// inBatches calls do with a run of the ids at a time, and waits between two so
// that there are at most rate ids a second (0: without limit).
func inBatches(ctx context.Context, ids []int64, rate int, do func([]int64) error) error {
	size := maxBatch
	if rate > 0 {
		size = min(size, rate)
	}
	for len(ids) > 0 {
		batch := ids[:min(size, len(ids))]
		if err := do(batch); err != nil {
			return err
		}
		ids = ids[len(batch):]
		if rate > 0 && len(ids) > 0 {
			if err := sleep(ctx, time.Duration(len(batch))*time.Second/time.Duration(rate)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep waits for d or the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// applyBatch waits for locked rows for a moment; then it leaves them out.
func (a *Actions) applyBatch(ctx context.Context, order Order, ids []int64) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	results, err := a.transact(ctx, order, ids, changeText(order.Action, ""))
	if pg.Code(err) == pg.CodeLockNotAvailable {
		return a.transact(ctx, order, ids, changeText(order.Action, "SKIP LOCKED"))
	}
	return results, err
}

// transact changes rows, and says in the same transaction what became of each.
func (a *Actions) transact(ctx context.Context, order Order, ids []int64, sql string) ([]Result, error) {
	var results []Result
	err := pgx.BeginFunc(ctx, a.table.conn, func(tx pgx.Tx) error {
		changed, err := a.change(ctx, tx, order, ids, sql)
		if err == nil && order.Action == Skip {
			err = a.releaseBehind(ctx, tx, changed)
		}
		if err == nil {
			results, err = a.judge(ctx, tx, order, ids, changed)
		}
		return err
	})
	if err != nil {
		return nil, err // what was to be committed was not
	}
	return results, nil
}

// change returns the rows that it has changed, and the commit positions that
// they had, "" for none.
func (a *Actions) change(ctx context.Context, tx pgx.Tx, order Order, ids []int64, sql string) (map[int64]string, error) {
	changed := make(map[int64]string)
	var id int64
	var position string
	rows, err := tx.Query(ctx, a.table.sql(sql), ids, codes(order.From), order.Waived,
		a.person, string(order.Action), orNull(order.Reason), orNull(order.Filter))
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &position}, func() error {
			changed[id] = position
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("changing rows: %w", err)
	}
	return changed, nil
}

func codes(list []outbox.Status) []int16 {
	numbers := make([]int16, len(list))
	for i, s := range list {
		numbers[i] = int16(s)
	}
	return numbers
}

// Preview tells what Apply would do to each row, and changes nothing.
func (a *Actions) Preview(ctx context.Context, order Order, ids []int64) ([]Result, error) {
	if err := a.able(order.Action); err != nil {
		return nil, err
	}
	would := map[Action]Outcome{Replay: WouldReplay, Skip: WouldSkip}[order.Action]
	results := make([]Result, 0, len(ids))
	err := inBatches(ctx, ids, 0, func(batch []int64) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		seen, err := a.look(ctx, a.table.conn, batch)
		if err != nil {
			return a.table.explain(ctx, err)
		}
		for _, id := range batch {
			r := seen.result(id)
			if r.Outcome, r.Detail = order.refusal(seen[id]); r.Outcome == "" {
				r.Outcome = would
			}
			results = append(results, r)
		}
		return nil
	})
	return results, err
}

// querier is a connection or a transaction on it.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// judge makes the results of a batch from what was changed.
func (a *Actions) judge(ctx context.Context, tx pgx.Tx, order Order, ids []int64, changed map[int64]string) ([]Result, error) {
	did := map[Action]Outcome{Replay: Replayed, Skip: Skipped}[order.Action]
	seen, err := a.look(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(ids))
	var locked []int64
	for i, id := range ids {
		r := seen.result(id)
		if _, ok := changed[id]; ok {
			r.Outcome, r.changed = did, true
		} else if r.Outcome, r.Detail = order.refusal(seen[id]); r.Outcome == "" {
			r.Outcome = Locked
			locked = append(locked, id)
		}
		results[i] = r
	}
	if len(locked) > 0 {
		err = a.nameLockers(ctx, tx, results, locked)
	}
	return results, err
}

// nameLockers says of the locked rows who has them.
func (a *Actions) nameLockers(ctx context.Context, db querier, results []Result, locked []int64) error {
	lockers, err := a.table.lockers(ctx, db, locked)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Outcome != Locked {
			continue
		}
		who := "another transaction"
		if list := lockers[results[i].ID]; len(list) > 0 {
			who = list[0].String()
		}
		results[i].Detail = who + " has locked it; let that transaction end, or end it, and do this again"
	}
	return nil
}

const noSuchRow = "there is no such row; it may have been purged or deleted"

// refusal is why an order does not take a row; "" if it does.
func (o *Order) refusal(row *state) (Outcome, string) {
	if row == nil {
		return NotFound, noSuchRow
	}
	if slices.Contains(o.From, row.status) {
		if row.finished && !o.Waived {
			return Waived, "it was skipped before"
		}
		return "", ""
	}
	return NotFailed, "it is " + row.status.String()
}
