package waltest

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// DefaultTable is the OID of the outbox table when a Builder names none.
const DefaultTable = 16385

// postgresEpoch is PostgreSQL's zero time.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Infinity stands for PostgreSQL's timestamp infinity in a Row.
var Infinity = time.Unix(1<<55, 0)

// Row is what is inserted into the outbox table. Zero values are sent as the
// schema's defaults would be: empty strings of nullable columns and zero times
// as NULL, created_at as the transaction's commit time.
type Row struct {
	ID            int64
	EventID       [16]byte // zero: made from ID
	AggregateType string   // empty: "order"
	AggregateID   string
	EventType     string // empty: "created"
	Payload       []byte // nil is NULL
	Headers       string // empty: "{}"
	ContentType   string // empty: "application/json"
	Topic         string
	Priority      int16
	CreatedAt     time.Time
	Due           time.Time // next_attempt_at; Infinity is infinity
	Attempts      int32
	Status        int16
}

// Builder makes replication frames: each method returns one whole CopyData
// message as it comes over the wire, so that concatenated results are the
// Frames of an event.Gulp. It has the columns of the design's table, values
// in binary format. Not safe for concurrent use.
type Builder struct {
	// Table is the OID of the outbox table, 0 means DefaultTable.
	Table uint32

	final  pglogrepl.LSN // of the transaction that Begin opened
	commit time.Time
}

// Relation is the description of the outbox table, which the server sends
// before the first insert of a connection.
func (b *Builder) Relation() []byte { return b.RelationOf(b.table(), outboxColumns) }

// Column is one column in a Relation message.
type Column struct {
	Name string
	Type uint32 // OID
}

// OIDs of the types that PostgreSQL itself brings.
const (
	ByteaOID       = 17
	Int8OID        = 20
	Int2OID        = 21
	Int4OID        = 23
	TextOID        = 25
	TimestamptzOID = 1184
	UUIDOID        = 2950
	JSONBOID       = 3802
	LSNOID         = 3220
)

var outboxColumns = []Column{
	{"id", Int8OID},
	{"event_id", UUIDOID},
	{"aggregate_type", TextOID},
	{"aggregate_id", TextOID},
	{"event_type", TextOID},
	{"payload", ByteaOID},
	{"headers", JSONBOID},
	{"content_type", TextOID},
	{"topic", TextOID},
	{"priority", Int2OID},
	{"created_at", TimestamptzOID},
	{"send_status", Int2OID},
	{"attempts", Int4OID},
	{"next_attempt_at", TimestamptzOID},
	{"commit_lsn", LSNOID},
}

// RelationOf describes any table.
func (b *Builder) RelationOf(table uint32, columns []Column) []byte {
	m := append([]byte{'R'}, be32(table)...)
	m = append(m, "public\x00outbox\x00d"...)
	m = binary.BigEndian.AppendUint16(m, uint16(len(columns)))
	for _, c := range columns {
		m = append(m, 0)
		m = append(append(m, c.Name...), 0)
		m = append(m, be32(c.Type)...)
		m = append(m, be32(math.MaxUint32)...) // no type modifier
	}
	return XLogData(0, m)
}

// Begin opens a transaction whose commit record starts at final.
func (b *Builder) Begin(final pglogrepl.LSN, xid uint32) []byte {
	return b.BeginAt(final, xid, postgresEpoch.AddDate(26, 0, 0))
}

// BeginAt is Begin with a commit time.
func (b *Builder) BeginAt(final pglogrepl.LSN, xid uint32, commit time.Time) []byte {
	b.final, b.commit = final, commit
	m := append([]byte{'B'}, be64(uint64(final))...)
	m = append(m, be64(uint64(micros(commit)))...)
	m = append(m, be32(xid)...)
	return XLogData(final, m)
}

// Insert is a row of the outbox table.
func (b *Builder) Insert(row Row) []byte {
	return b.InsertInto(b.table(), b.values(row)...)
}

// InsertInto is a row of any table; a nil value is NULL, all others are sent
// as binary.
func (b *Builder) InsertInto(table uint32, values ...[]byte) []byte {
	m := append([]byte{'I'}, be32(table)...)
	m = append(m, 'N')
	m = binary.BigEndian.AppendUint16(m, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			m = append(m, 'n')
			continue
		}
		m = append(m, 'b')
		m = append(m, be32(uint32(len(v)))...)
		m = append(m, v...)
	}
	return XLogData(b.final, m)
}

// Message is a transactional logical message within the open transaction.
func (b *Builder) Message(prefix, content string) []byte {
	return b.message(1, b.final, prefix, content)
}

// LooseMessage is a logical message outside of any transaction.
func (b *Builder) LooseMessage(at pglogrepl.LSN, prefix, content string) []byte {
	return b.message(0, at, prefix, content)
}

func (b *Builder) message(flags byte, at pglogrepl.LSN, prefix, content string) []byte {
	m := append([]byte{'M', flags}, be64(uint64(at))...)
	m = append(append(m, prefix...), 0)
	m = append(m, be32(uint32(len(content)))...)
	m = append(m, content...)
	return XLogData(at, m)
}

// Commit ends the open transaction, whose commit record ends at end.
func (b *Builder) Commit(end pglogrepl.LSN) []byte {
	m := append([]byte{'C', 0}, be64(uint64(b.final))...)
	m = append(m, be64(uint64(end))...)
	m = append(m, be64(uint64(micros(b.commit)))...)
	return XLogData(end, m)
}

// Transaction is Begin, the rows and Commit.
func (b *Builder) Transaction(final, end pglogrepl.LSN, xid uint32, rows ...Row) []byte {
	frames := b.Begin(final, xid)
	for _, row := range rows {
		frames = append(frames, b.Insert(row)...)
	}
	return append(frames, b.Commit(end)...)
}

// Keepalive tells how far the server has sent.
func (b *Builder) Keepalive(end pglogrepl.LSN, reply bool) []byte {
	m := append([]byte{'k'}, be64(uint64(end))...)
	m = append(m, be64(uint64(micros(b.commit)))...)
	if reply {
		return CopyData(append(m, 1))
	}
	return CopyData(append(m, 0))
}

// XLogData wraps a pgoutput message into a CopyData frame.
func XLogData(start pglogrepl.LSN, message []byte) []byte {
	m := append([]byte{'w'}, be64(uint64(start))...)
	m = append(m, be64(uint64(start))...)
	m = append(m, be64(0)...)
	return CopyData(append(m, message...))
}

// CopyData frames a payload.
func CopyData(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{'d'}, uint32(len(payload)+4)), payload...)
}

func (b *Builder) table() uint32 {
	if b.Table == 0 {
		return DefaultTable
	}
	return b.Table
}

// values are a row's columns in the order of outboxColumns.
func (b *Builder) values(row Row) [][]byte {
	if row.EventID == ([16]byte{}) {
		binary.BigEndian.PutUint64(row.EventID[8:], uint64(row.ID))
	}
	if row.CreatedAt.IsZero() {
		row.CreatedAt = b.commit
	}
	return [][]byte{
		be64(uint64(row.ID)),
		slices.Clone(row.EventID[:]),
		text(row.AggregateType, "order"),
		[]byte(row.AggregateID),
		text(row.EventType, "created"),
		row.Payload,
		append([]byte{1}, text(row.Headers, "{}")...), // jsonb's version byte
		text(row.ContentType, "application/json"),
		text(row.Topic, ""),
		be16(row.Priority),
		timestamp(row.CreatedAt),
		be16(row.Status),
		be32(uint32(row.Attempts)),
		timestamp(row.Due),
		nil,
	}
}

// text is a value, its default when empty, NULL when there is none.
func text(value, byDefault string) []byte {
	switch {
	case value != "":
		return []byte(value)
	case byDefault != "":
		return []byte(byDefault)
	}
	return nil
}

func timestamp(t time.Time) []byte {
	switch {
	case t.IsZero():
		return nil
	case t.Equal(Infinity):
		return be64(math.MaxInt64)
	}
	return be64(uint64(micros(t)))
}

func micros(t time.Time) int64 { return t.UnixMicro() - postgresEpoch.UnixMicro() }

func be16(v int16) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
