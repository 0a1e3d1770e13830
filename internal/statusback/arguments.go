package statusback

import (
	"math"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// fence are $1 to $3 of every statement.
func (d *database) fence() []any { return []any{d.cfg.Slot, d.cfg.Session.Epoch, d.cfg.Owner} }

// arguments are $4 and on of an update.
func arguments(f form, writes []write) []any {
	ids := idArray(writes)
	if f == formSent {
		return []any{ids}
	}
	seen := make([]pgtype.Timestamptz, len(writes))
	for i := range writes {
		seen[i] = timestampOf(writes[i].Due)
	}
	if f == formRequeued {
		return []any{ids, seen}
	}
	lsns := lsnsOf(writes)
	switch f {
	case formHeld:
		return []any{ids, seen, lsns}
	case formLater:
		return []any{ids, seen, lsns, delaysOf(writes)}
	}
	codes, messages := make([]string, len(writes)), make([]string, len(writes))
	for i := range writes {
		codes[i], messages[i] = writes[i].park.Failure.Code, writes[i].park.Failure.Message
	}
	if f == formFail {
		return []any{ids, seen, lsns, codes, messages}
	}
	return []any{ids, seen, lsns, codes, messages, delaysOf(writes)}
}

// lsnsOf are the commit positions as text, nil where it is not known.
func lsnsOf(writes []write) []*string {
	lsns := make([]*string, len(writes))
	for i := range writes {
		if at := writes[i].CommitLSN; at != 0 {
			text := at.String()
			lsns[i] = &text
		}
	}
	return lsns
}

// delaysOf are the delays in microseconds.
func delaysOf(writes []write) []int64 {
	delays := make([]int64, len(writes))
	for i := range writes {
		delays[i] = writes[i].park.Delay.Microseconds()
	}
	return delays
}

// idArray is the ids of writes as a bigint[]. The driver asks for one element
// after the other, and a pointer is one without an allocation.
type idArray []write

type rowID int64

func (id *rowID) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*id), Valid: true}, nil
}

func (a idArray) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}}
}

func (a idArray) Index(i int) any { return (*rowID)(&a[i].ID) }

func (a idArray) IndexType() any { return new(rowID) }

// minusInfinity is how -infinity is decoded: a time that is due.
var minusInfinity = event.DueAtMicros(math.MinInt64)

func timestampOf(d event.Due) pgtype.Timestamptz {
	switch {
	case d.IsInfinity():
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case d == minusInfinity:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	t, ok := d.Time()
	return pgtype.Timestamptz{Time: t, Valid: ok}
}

func dueOf(t pgtype.Timestamptz) event.Due {
	switch {
	case !t.Valid:
		return event.Due{}
	case t.InfinityModifier == pgtype.Infinity:
		return event.DueInfinity()
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return minusInfinity
	}
	return event.DueAt(t.Time)
}
