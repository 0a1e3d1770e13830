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
	// settling is how long a record may be there before its row is visible.
	settling = 3 * time.Second
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
		return fmt.Errorf("asking Kafka about the topics: %w; check kafka.brokers, kafka.tls and kafka.sasl, and whether the brokers run", err)
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
	late        []int64 // out of order, unless they were delayed
	noRow       []int64
}

// judgeTopics adds the findings.
func (v *verification) judgeTopics(s *scanned) {
	v.found(FoundNoTopic, int64(len(s.unreachable)), sorted(s.unreachable), fmt.Sprint(s.noTopic))
	v.foundRows(FoundNoRecord, s.noRecord)
	v.foundRows(FoundNoRow, s.noRow)
	v.foundRows(FoundOutOfOrder, s.late)
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
