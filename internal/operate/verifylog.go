package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// maxSentRows bounds how many rows are looked for in topics, maxScan how
	// many records are read for that. Rows are kept in memory, and so are the
	// event ids of a topic's records.
	maxSentRows = 100_000
	maxScan     = 500_000
	// apart is how long after another a row of the same aggregate must have been
	// created so that it surely was committed later: ids do not tell.
	apart = time.Minute
)

// TopicSeen is what was read of a topic.
type TopicSeen struct {
	Topic      string
	Partitions int
	Rows       int64     // that were looked for
	Records    int64     // that were read
	Since      time.Time // the oldest of them; zero if there was none
	// Removed tells that older records of the time in question are not there any
	// more, NotRead that there were too many; rows that may be of that time are
	// not judged.
	Removed, NotRead bool
	// Compacted topics keep the last record of a key only: no row can be judged.
	Compacted bool
	NotJudged int64 // rows
	// Doubled events have more than one record. That is allowed (at least once);
	// Repetitions are the records too many.
	Doubled, Repetitions int64
	// Close are events whose first record is before that of one with a smaller
	// id of the same aggregate, created at about the same time: transactions that
	// run at the same time commit in any order.
	Close int64
	// Purged are records of rows that are older than the oldest one of the table.
	Purged int64
}

// sentRow is a row that must have a record.
type sentRow struct {
	id        int64
	event     outbox.ID
	kind      string // aggregate type
	aggregate string
	topic     string
	created   Moment
	sent      Moment
}

// begun is the earliest time that the record can have.
func (r *sentRow) begun() (at time.Time, known bool) {
	switch {
	case r.created.Finite() && (!r.sent.Finite() || r.created.Time.Before(r.sent.Time)):
		return r.created.Time, true
	case r.created.Finite() && r.sent.Finite():
		return r.sent.Time, true
	}
	return time.Time{}, false
}

// sentSQL returns rows of a page that Kafka has acknowledged. Its verbs are the
// topic, where the rows are from and the filter's conditions.
const sentSQL = `
SELECT {id}, {event_id}, {aggregate_type}, {aggregate_id}, %s, {created_at}, {sent_at}
  FROM %s WHERE %s AND ({send_status} IN (2, 4, 5) OR {send_status} = 3 AND {sent_at} IS NOT NULL)
 ORDER BY o.{=id} DESC LIMIT %s::bigint`

// readSent keeps rows of a page, to look for their records.
func (v *verification) readSent(ctx context.Context, page func(*selection) string) error {
	room := maxSentRows - len(v.sent)
	if v.cfg.Log == nil || room == 0 {
		return nil
	}
	s, picked, err := v.pickedFrom(page)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(v.t.sql(sentSQL), v.t.topicSQL(s.bind), s.from, picked, s.bind(room))
	rows, err := v.t.conn.Query(ctx, sql, s.args...)
	if err != nil {
		return err
	}
	var r sentRow
	_, err = pgx.ForEachRow(rows, []any{&r.id, &r.event, &r.kind, &r.aggregate, &r.topic, &r.created, &r.sent}, func() error {
		v.sent = append(v.sent, r)
		return nil
	})
	return err
}

// scan reads the topics of the rows that Kafka has acknowledged, which was
// before: what is written from now on need not be read.
func (v *verification) scan(ctx context.Context) error {
	if v.cfg.Log == nil {
		return nil
	}
	if len(v.sent) >= maxSentRows {
		v.note("only the newest %d rows that were sent are looked for in topics", maxSentRows)
	}
	byTopic := make(map[string][]sentRow)
	for _, r := range v.sent {
		byTopic[r.topic] = append(byTopic[r.topic], r)
	}
	names := slices.Sorted(maps.Keys(byTopic))
	present, err := Partitions(ctx, v.cfg.Log.log.client, names)
	if err != nil {
		return fmt.Errorf("asking Kafka about the topics: %w", err)
	}
	pinned, err := v.pinned(ctx, names)
	if err != nil {
		return err
	}
	total := scanned{}
	left := v.cfg.Log.mostScan
	for i, name := range names {
		if present[name] == 0 {
			total.noTopic = append(total.noTopic, name)
			total.unreachable = append(total.unreachable, idsOfSent(byTopic[name])...)
			continue
		}
		scan := &topicScan{v: v, rows: byTopic[name], pinned: pinned[name], total: &total,
			seen: TopicSeen{Topic: name, Partitions: present[name], Rows: int64(len(byTopic[name]))}}
		if err := scan.run(ctx, left/int64(len(names)-i)); err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
		left -= scan.seen.Records
		v.report.Topics = append(v.report.Topics, scan.seen)
	}
	v.judgeTopics(&total)
	return nil
}

// pinned are the partition counts that keys are spread over.
func (v *verification) pinned(ctx context.Context, names []string) (map[string]Pinned, error) {
	const sql = `SELECT topic, partitions, changed_at FROM {topics} WHERE topic = ANY ($1::text[])`
	rows, err := v.t.conn.Query(ctx, v.t.sql(sql), names)
	if err != nil {
		return nil, err
	}
	pinned := make(map[string]Pinned)
	var name string
	var p Pinned
	_, err = pgx.ForEachRow(rows, []any{&name, &p.Partitions, &p.ChangedAt}, func() error {
		pinned[name] = p
		return nil
	})
	return pinned, err
}

// scanned is what is wrong in all topics together.
type scanned struct {
	noTopic     []string
	unreachable []int64 // rows of those
	noRecord    []int64
	disorder    []int64
	noRow       []int64
}

// judgeTopics adds the findings.
func (v *verification) judgeTopics(s *scanned) {
	v.found(FoundNoTopic, int64(len(s.unreachable)), sorted(s.unreachable), fmt.Sprint(s.noTopic))
	v.foundRows(FoundNoRecord, s.noRecord)
	v.foundRows(FoundNoRow, s.noRow)
	v.foundRows(FoundDisorder, s.disorder)
}

func idsOfSent(rows []sentRow) []int64 {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	return ids
}

// topicScan reads one topic.
type topicScan struct {
	v       *verification
	rows    []sentRow
	pinned  Pinned
	total   *scanned
	seen    TopicSeen
	parts   []part
	records map[outbox.ID]*recorded
}

// part is what is read of a partition.
type part struct {
	run Offsets
	// cut: earlier records of the time in question are not read.
	cut bool
	// since is the time of the first record that was read; if there was none
	// and it is cut, no row can be judged.
	since time.Time
}

// recorded is what the topic holds of an event.
type recorded struct {
	row       int64 // cdcr-id
	partition int32
	offset    int64 // the first one
	count     int64
}

// run reads the topic, at most so many records, and judges its rows and records.
func (s *topicScan) run(ctx context.Context, most int64) error {
	if err := s.bounds(ctx, most); err != nil {
		return err
	}
	s.records = make(map[outbox.ID]*recorded)
	for i := range s.parts {
		if err := s.readPartition(ctx, int32(i)); err != nil {
			return err
		}
	}
	if err := s.judgeRows(ctx); err != nil {
		return err
	}
	return s.judgeRecords(ctx)
}

// bounds decides what to read: from the time of the oldest row on, but at most
// so many records, the newest.
func (s *topicScan) bounds(ctx context.Context, most int64) error {
	log := s.v.cfg.Log.log
	var err error
	if s.seen.Compacted, err = log.compacted(ctx, s.seen.Topic); err != nil {
		return err
	}
	from, known := s.since()
	var sum int64
	for i := range int32(s.seen.Partitions) {
		held, err := log.bounds(ctx, s.seen.Topic, i)
		if err != nil {
			return err
		}
		p := part{run: held}
		if known {
			offset, found, err := log.offsetAt(ctx, s.seen.Topic, i, from)
			if err != nil {
				return err
			}
			if p.run.From = max(held.From, offset); !found {
				p.run.From = held.To
			}
		}
		p.cut = held.From > 0 && p.run.From == held.From
		s.seen.Removed = s.seen.Removed || p.cut
		sum += p.run.To - p.run.From
		s.parts = append(s.parts, p)
	}
	if sum <= most {
		return nil
	}
	s.seen.NotRead = true
	for i := range s.parts { // each gives up the same share
		p := &s.parts[i]
		n := p.run.To - p.run.From
		if keep := int64(float64(n) * float64(most) / float64(sum)); keep < n {
			p.run.From, p.cut = p.run.To-keep, true
		}
	}
	return nil
}

// since is from when on the records of the rows can be.
func (s *topicScan) since() (from time.Time, known bool) {
	for _, r := range s.rows {
		at, ok := r.begun()
		if !ok {
			return time.Time{}, false
		}
		if from.IsZero() || at.Before(from) {
			from = at
		}
	}
	return from.Add(-slack), true
}

// readPartition notes the records of the relay in a partition.
func (s *topicScan) readPartition(ctx context.Context, partition int32) error {
	p := &s.parts[partition]
	_, read, err := s.v.cfg.Log.log.read(ctx, s.seen.Topic, partition, p.run, endOfLog, func(r *kafka.Record) {
		if p.since.IsZero() {
			p.since = r.Time
		}
		s.note(partition, r)
	})
	if s.seen.Records += read; read > 0 && (s.seen.Since.IsZero() || p.since.Before(s.seen.Since)) {
		s.seen.Since = p.since.UTC()
	}
	return err
}

// note keeps what a record says.
func (s *topicScan) note(partition int32, r *kafka.Record) {
	event, row, ok := s.v.identify(r.Headers)
	if !ok {
		return
	}
	known := s.records[event]
	if known == nil {
		s.records[event] = &recorded{row, partition, r.Offset, 1}
		return
	}
	if known.count++; known.count == 2 {
		s.seen.Doubled++
	}
	s.seen.Repetitions++
}

// identify reads which event a record is of; not ok: none of this relay's.
func (v *verification) identify(headers []kafka.Header) (event outbox.ID, row int64, ok bool) {
	var isRow, isEvent bool
	for _, h := range headers {
		switch {
		case h.Key == "cdcr-id":
			id, err := strconv.ParseInt(string(h.Value), 10, 64)
			row, isRow = id, err == nil
		case h.Key == "ce_source" && v.cfg.Source != "" && string(h.Value) != v.cfg.Source:
			return outbox.ID{}, 0, false
		case !isEvent && slices.Contains(eventIDHeaders, h.Key):
			id, err := outbox.ParseID(string(h.Value))
			event, isEvent = id, err == nil
		}
	}
	return event, row, isRow && isEvent
}

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

// judgeRows finds rows without a record, and first records out of order.
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
	s.total.disorder = append(s.total.disorder, slices.DeleteFunc(slices.Compact(sorted(late)), func(id int64) bool { return replayed[id] })...)
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
		if found := s.records[r.event]; found != nil && found.row == r.id {
			delete(s.records, r.event)
		}
	}
	missing, err := s.v.withoutRow(ctx, s.records)
	for deadline := time.Now().Add(s.v.cfg.Wait); err == nil && len(missing) > 0 && time.Now().Before(deadline); {
		// A record can be there before the commit of its row is visible.
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		before := len(missing)
		if missing, err = s.v.withoutRow(ctx, missing); len(missing) == before {
			break
		}
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
