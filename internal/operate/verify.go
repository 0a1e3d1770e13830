package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// VerifyConfig says how to verify.
type VerifyConfig struct {
	// Server is the one that the table's connection reaches.
	Server pg.Server
	// Wait bounds how long to look again at what the relay may be dealing with
	// right now. Nothing is waited for when all is well.
	Wait time.Duration
	// Waiting is called once if that takes some seconds, with what is waited for;
	// nil: never.
	Waiting func(what string)
	// Log reads the topics of the rows; nil: they are not read.
	Log *Locator
	// Source is the ce_source of the relay's records; those of another one are
	// none of its. "": all are.
	Source string

	// quiet, takeover and still are quietTime and so on where they are 0.
	quiet, takeover, still time.Duration
}

// Report is what Verify found, and what it looked at.
type Report struct {
	At       time.Time // by the clock of the database
	Findings []Finding
	Rows     RowsSeen
	Topics   []TopicSeen // none if topics were not read
	// Notes say what could not be judged, and why, a sentence each.
	Notes []string
}

// Fine reports whether nothing is wrong: there is no finding, or lesser ones only.
func (r *Report) Fine() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Name.Lesser() })
}

// Finding is one thing that is not as it must be, or, if it is a lesser one,
// may not be.
type Finding struct {
	Name FindingName
	// Count is how many rows there are, or records; 1 of what there is one of.
	Count int64
	// IDs are some of the rows, at most MaxExamples, in order.
	IDs []int64
	// Detail adds to the meaning of the name what is known besides; "" if
	// nothing.
	Detail string
	// Next are commands to copy, or a sentence.
	Next string
}

// MaxExamples bounds the ids of a finding.
const MaxExamples = 10

// RowsSeen is which rows were looked at.
type RowsSeen struct {
	Walked int64 // rows by id
	// From and To are the ids between which all rows were looked at; 0 if there
	// was none.
	From, To int64
	// After is where to go on, 0 if nothing is left.
	After int64
	// Parked rows are found by an index; ParkedComplete is false if there were
	// too many.
	Parked         int64
	ParkedComplete bool
	// OnTheWay are READY rows that the slot has not come to yet, or that are in
	// flight: nothing is wrong with them.
	OnTheWay int64
}

// verification is one run of Verify.
type verification struct {
	t      *Table
	f      Filter
	cfg    VerifyConfig
	report *Report

	positions positions
	target    string   // what the slot must have passed; "": nothing
	unsent    []int64  // READY and not parked when it was looked at
	suspects  suspects // due and held ones with nothing before them
	sent      []sentRow
}

// Verify looks whether anything is missing, stuck or doubled. It changes
// nothing. The filter's Limit bounds how many rows are walked over, the newest
// first; its conditions apply to rows, never to the slot.
//
// What the relay is dealing with is no finding: a row is missing only if the
// slot is past it. That is certain in two ways. All that a snapshot shows as
// committed was written to the WAL before the position that is read after it;
// once the slot is confirmed up to that position, and not beyond what the relay
// has saved, all of these rows are resolved, so one that is still READY and not parked
// will not come. And a row whose transaction is older than any that the slot
// may still have to decode (catalog_xmin) is behind the confirmed position,
// whether or not anybody streams.
func (t *Table) Verify(ctx context.Context, f Filter, cfg VerifyConfig) (*Report, error) {
	cfg.quiet, cfg.takeover, cfg.still = cmp.Or(cfg.quiet, quietTime), cmp.Or(cfg.takeover, takeoverTime), cmp.Or(cfg.still, stillTime)
	v := &verification{t: t, f: f, cfg: cfg, report: &Report{}}
	// Whatever goes wrong here must not change a row.
	if _, err := t.conn.Exec(ctx, "SET default_transaction_read_only = on"); err != nil {
		return nil, fmt.Errorf("preparing to verify: %w", err)
	}
	var err error
	if v.report.At, err = t.now(ctx); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		doing string
		run   func(context.Context) error
	}{
		{"walking over rows", v.walk},
		{"looking at parked rows", v.lookAtParked},
		{"looking at what waits for the relay", v.lookAtSuspects},
		{"watching the slot", v.watch},
		{"reading the topics", v.scan},
	} {
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, t.explain(ctx, err))
		}
	}
	slices.SortStableFunc(v.report.Findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(worstFirst, a.Name), slices.Index(worstFirst, b.Name))
	})
	return v.report, nil
}

// found adds a finding, unless it is about nothing.
func (v *verification) found(name FindingName, count int64, ids []int64, detail string) {
	if count == 0 {
		return
	}
	v.report.Findings = append(v.report.Findings, Finding{Name: name, Count: count, IDs: ids[:min(len(ids), MaxExamples)], Detail: detail,
		Next: v.next(name, ids)})
}

func (v *verification) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}
