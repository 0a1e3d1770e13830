package operate

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// judged reports whether the record of a row would have been read.
func (s *topicScan) judged(r *sentRow) bool {
	if s.seen.Compacted {
		return false
	}
	count := s.pinned.Partitions
	if count == 0 {
		count = int32(s.seen.Partitions)
	}
	moved := !r.sent.Finite() || s.pinned.ChangedAt.After(r.sent.Time)
	if !moved {
		if partition, err := s.v.cfg.Log.partition(r.kind, r.aggregate, count); err == nil && int(partition) < len(s.parts) {
			return s.parts[partition].covers(r)
		}
	}
	return !slices.ContainsFunc(s.parts, func(p part) bool { return !p.covers(r) })
}

// covers reports whether the record of a row, if it is in the partition, is
// among those that were read.
func (p *part) covers(r *sentRow) bool {
	at, known := r.begun()
	return !p.cut || known && !p.since.IsZero() && at.After(p.since.Add(slack))
}

// judgeRows finds rows without a record, and first records that come late.
func (s *topicScan) judgeRows(ctx context.Context) error {
	type aggregate struct{ kind, id string }
	last := make(map[aggregate]*sentRow) // with the highest first record so far
	var late []int64
	slices.Reverse(s.rows) // by id
	for i := range s.rows {
		r := &s.rows[i]
		of := aggregate{r.kind, r.aggregate}
		found := s.records[r.event]
		switch judged := s.judged(r); {
		case !judged:
			s.seen.NotJudged++
		case found == nil:
			s.total.noRecord = append(s.total.noRecord, r.id)
		case s.v.t.cfg.Blocks != nil && !s.v.t.cfg.Blocks(r.kind):
		default:
			before := last[of]
			if before == nil || !s.follows(before, found) {
				last[of] = r
				continue
			}
			if r.created.Finite() && before.created.Finite() && r.created.Time.Sub(before.created.Time) >= apart {
				late = append(late, before.id)
			} else {
				s.seen.Close++
			}
		}
	}
	replayed, err := s.v.replayed(ctx, late)
	s.total.late = append(s.total.late, slices.DeleteFunc(slices.Compact(sorted(late)), func(id int64) bool { return replayed[id] })...)
	return err
}

// follows reports whether a row's first record comes after another one in the
// same partition; what is in two partitions has no order.
func (s *topicScan) follows(r *sentRow, other *recorded) bool {
	first := s.records[r.event]
	return first.partition == other.partition && first.offset > other.offset
}

// replayed are those of the rows that a person has asked to be published again.
func (v *verification) replayed(ctx context.Context, ids []int64) (map[int64]bool, error) {
	known := make(map[int64]bool)
	rows, err := v.t.conn.Query(ctx, v.t.sql(`SELECT DISTINCT id FROM {audit} WHERE id = ANY ($1::bigint[])`), notNil(ids))
	if err != nil {
		return nil, err
	}
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		known[id] = true
		return nil
	})
	return known, err
}

// judgeRecords finds records whose rows are not in the table. A filter that
// leaves rows out does not matter: the table is asked.
func (s *topicScan) judgeRecords(ctx context.Context) error {
	for _, r := range s.rows {
		delete(s.records, r.event)
	}
	missing, err := s.v.withoutRow(ctx, s.records)
	for begun := time.Now(); err == nil && len(missing) > 0 && time.Since(begun) < min(s.v.cfg.Wait, settling); {
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		missing, err = s.v.withoutRow(ctx, missing)
	}
	if err != nil || len(missing) == 0 {
		return err
	}
	oldest, err := s.v.oldest(ctx)
	if err != nil {
		return err
	}
	for _, r := range missing {
		if r.row < oldest {
			s.seen.Purged++
		} else {
			s.total.noRow = append(s.total.noRow, r.row)
		}
	}
	return nil
}

const rowsOfSQL = `SELECT {event_id} FROM {table} o WHERE o.{=id} = ANY ($1::bigint[])`

// withoutRow returns those of the records whose event is not in the table.
func (v *verification) withoutRow(ctx context.Context, records map[outbox.ID]*recorded) (map[outbox.ID]*recorded, error) {
	missing := maps.Clone(records)
	ids := make([]int64, 0, len(records))
	for _, r := range records {
		ids = append(ids, r.row)
	}
	for page := range slices.Chunk(sorted(ids), verifyPage) {
		rows, err := v.t.conn.Query(ctx, v.t.sql(rowsOfSQL), page)
		if err != nil {
			return nil, err
		}
		var event outbox.ID
		if _, err := pgx.ForEachRow(rows, []any{&event}, func() error {
			delete(missing, event)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// oldest is the smallest id in the table; without a row, one above all.
func (v *verification) oldest(ctx context.Context) (id int64, err error) {
	err = v.t.conn.QueryRow(ctx, v.t.sql(`SELECT coalesce(min(o.{=id}), 9223372036854775807)::bigint FROM {table} o`)).Scan(&id)
	return id, err
}
