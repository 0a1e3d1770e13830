package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// verifyPage is how many rows one statement of a walk looks at.
const verifyPage = 10_000

// overdue is for how long a row may be due, or a claim be over, before it is
// suspicious: after an outage the relay has many to deal with, by turns.
const overdue = 5 * time.Minute

// pickedFrom selects rows of the filter: those that it names, else those that
// otherwise adds as the text of a FROM. The second result is the filter's
// conditions as an expression.
func (v *verification) pickedFrom(otherwise func(s *selection) string) (s *selection, picked string, err error) {
	s = &selection{}
	if v.f.ByID() {
		s.from = v.t.namedRows(s, v.f)
	} else {
		s.from = otherwise(s)
	}
	if err := v.t.conditions(s, v.f); err != nil {
		return nil, "", err
	}
	return s, "coalesce(" + strings.Join(append([]string{"true"}, s.where...), " AND ") + ", false)", nil
}

// pageSQL looks at a page of rows o. Its verbs are the conditions of the filter,
// a time in seconds and where the rows are from.
const pageSQL = `
SELECT count(*), coalesce(min(w.id), 0)::bigint, coalesce(max(w.id), 0)::bigint,
       coalesce(array_agg(w.id) FILTER (WHERE w.picked AND w.unsent), '{}'),
       coalesce(array_agg(w.id) FILTER (WHERE w.picked AND w.abandoned), '{}')
  FROM (SELECT {id} AS id, %s AS picked, {send_status} = 0 AND {next_attempt_at} IS NULL AS unsent,
               coalesce({send_status} IN (1, 5) AND {lease_until} < now() - make_interval(secs => %s), false) AS abandoned
          FROM %s) w`

// walk looks at rows by id, the newest first.
func (v *verification) walk(ctx context.Context) error {
	seen := &v.report.Rows
	var abandoned []int64
	for after := v.f.walkFrom(); seen.Walked < int64(v.f.Limit); {
		page := min(verifyPage, int64(v.f.Limit)-seen.Walked)
		from := func(s *selection) string {
			return fmt.Sprintf(v.t.sql(walkSQL), s.bind(after), s.bind(page))
		}
		s, picked, err := v.pickedFrom(from)
		if err != nil {
			return err
		}
		var walked, first, last int64
		var unsent, claims []int64
		sql := fmt.Sprintf(v.t.sql(pageSQL), picked, s.bind(overdue.Seconds())+"::float8", s.from)
		if err := v.t.conn.QueryRow(ctx, sql, s.args...).Scan(&walked, &first, &last, &unsent, &claims); err != nil {
			return err
		}
		if walked > 0 {
			seen.From, seen.To = first, max(seen.To, last)
		}
		seen.Walked += walked
		v.unsent, abandoned = append(v.unsent, unsent...), append(abandoned, claims...)
		if err := v.readSent(ctx, from); err != nil {
			return err
		}
		if v.f.ByID() || walked < page {
			v.foundRows(FoundAbandoned, abandoned)
			return nil
		}
		after = first
	}
	seen.After = seen.From
	v.foundRows(FoundAbandoned, abandoned)
	return nil
}

// foundRows adds a finding about rows, if there are any.
func (v *verification) foundRows(name FindingName, ids []int64) {
	v.found(name, int64(len(ids)), sorted(ids), "")
}

// parkedPart is the parked rows, at most so many, those that wait for a person
// or for their release first.
const parkedPart = `(SELECT *, xmin AS cdc_relay_xmin FROM {table} WHERE {=next_attempt_at} IS NOT NULL ORDER BY {=next_attempt_at} DESC LIMIT %s::bigint) o`

const parkedCountSQL = `
SELECT count(*),
       coalesce(array_agg(w.id) FILTER (WHERE w.picked AND w.failed), '{}'),
       coalesce(array_agg(w.id) FILTER (WHERE w.picked AND w.stranded), '{}')
  FROM (SELECT {id} AS id, %s AS picked, {send_status} = 3 AND {finished_at} IS NULL AND {next_attempt_at} IS NOT NULL AS failed,
               {send_status} = 0 AND {next_attempt_at} = 'infinity' AND {commit_lsn} IS NULL AS stranded
          FROM %s) w`

// lookAtParked finds what waits for a person, or for nobody.
func (v *verification) lookAtParked(ctx context.Context) error {
	s, picked, err := v.pickedFrom(v.parked)
	if err != nil {
		return err
	}
	seen := &v.report.Rows
	var failed, stranded []int64
	sql := fmt.Sprintf(v.t.sql(parkedCountSQL), picked, s.from)
	if err := v.t.conn.QueryRow(ctx, sql, s.args...).Scan(&seen.Parked, &failed, &stranded); err != nil {
		return err
	}
	seen.ParkedComplete = v.f.ByID() || seen.Parked < MaxWalk
	v.foundRows(FoundFailed, failed)
	v.foundRows(FoundStranded, stranded)
	return nil
}

func (v *verification) parked(s *selection) string {
	return fmt.Sprintf(v.t.sql(parkedPart), s.bind(MaxWalk))
}

// suspects are rows that the relay ought to deal with soon, each as it was seen.
// Whoever touches a row gives it another xmin.
type suspects struct {
	overdue, unreleased seenRows
	released            int // of the unreleased ones, since
}

type seenRows struct {
	ids   []int64
	xmins []string
}

func (r *seenRows) add(id int64, xmin string) {
	r.ids, r.xmins = append(r.ids, id), append(r.xmins, xmin)
}

// suspectsSQL returns READY rows that are due or held, with what is parked
// before each. Its verbs are headColumns, where the rows are from, the filter's
// conditions, a time in seconds and headSQL.
const suspectsSQL = `
SELECT o.{=id}::bigint, o.cdc_relay_xmin::text, o.{=next_attempt_at} = 'infinity', {aggregate_type}, %s
  FROM (SELECT * FROM %s WHERE %s AND {send_status} = 0
           AND ({next_attempt_at} = 'infinity' AND {commit_lsn} IS NOT NULL
                OR {next_attempt_at} < now() - make_interval(secs => %s)) OFFSET 0) o%s
 ORDER BY o.{=id}`

// lookAtSuspects finds what the relay ought to deal with by itself, and soon.
func (v *verification) lookAtSuspects(ctx context.Context) error {
	s, picked, err := v.pickedFrom(v.parked)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(v.t.sql(suspectsSQL), headColumns, s.from, picked, s.bind(overdue.Seconds())+"::float8", v.t.sql(headSQL))
	rows, err := v.t.conn.Query(ctx, sql, s.args...)
	if err != nil {
		return err
	}
	var id int64
	var xmin, aggregateType string
	var held bool
	var head Head
	_, err = pgx.ForEachRow(rows, append([]any{&id, &xmin, &held, &aggregateType}, head.dest()...), func() error {
		first := head.ID == 0
		switch {
		case held && first:
			v.suspects.unreleased.add(id, xmin)
		case !held && (first || v.t.cfg.Blocks != nil && !v.t.cfg.Blocks(aggregateType)):
			v.suspects.overdue.add(id, xmin)
		}
		return nil
	})
	return err
}

// unchangedSQL returns the rows that nobody has touched.
const unchangedSQL = `
SELECT v.id, v.seen FROM unnest($1::bigint[], $2::text[]) v (id, seen)
  JOIN {table} o ON o.{=id} = v.id AND o.xmin::text = v.seen ORDER BY v.id`

// unchanged leaves only rows that nobody has touched.
func (v *verification) unchanged(ctx context.Context, r *seenRows) error {
	if len(r.ids) == 0 {
		return nil
	}
	var left seenRows
	var id int64
	var xmin string
	rows, err := v.t.conn.Query(ctx, v.t.sql(unchangedSQL), r.ids, r.xmins)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&id, &xmin}, func() error {
		left.add(id, xmin)
		return nil
	})
	*r = left
	return err
}

// lookAgain leaves only those suspects that nobody has touched.
func (v *verification) lookAgain(ctx context.Context) error {
	before := len(v.suspects.unreleased.ids)
	if err := v.unchanged(ctx, &v.suspects.overdue); err != nil {
		return err
	}
	err := v.unchanged(ctx, &v.suspects.unreleased)
	v.suspects.released += before - len(v.suspects.unreleased.ids)
	return err
}

// stillUnsentSQL returns those of the rows that are still READY and not parked,
// and whether the slot is past them whatever else is known: their transaction is
// older than the oldest one that the slot may have to decode.
const stillUnsentSQL = `
SELECT {id}, coalesce(age(o.xmin) > age(nullif($2, '')::xid), false)
  FROM {table} o WHERE o.{=id} = ANY ($1::bigint[]) AND {send_status} = 0 AND {next_attempt_at} IS NULL ORDER BY o.{=id}`

// stillUnsent looks at the rows again that were READY and not parked.
func (v *verification) stillUnsent(ctx context.Context) (all, past []int64, err error) {
	for from := 0; from < len(v.unsent); from += verifyPage {
		ids := v.unsent[from:min(from+verifyPage, len(v.unsent))]
		rows, err := v.t.conn.Query(ctx, v.t.sql(stillUnsentSQL), ids, v.positions.catalogXmin)
		if err != nil {
			return nil, nil, err
		}
		var id int64
		var isPast bool
		if _, err := pgx.ForEachRow(rows, []any{&id, &isPast}, func() error {
			all = append(all, id)
			if isPast {
				past = append(past, id)
			}
			return nil
		}); err != nil {
			return nil, nil, err
		}
	}
	return sorted(all), sorted(past), nil
}
