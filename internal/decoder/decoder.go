package decoder

import (
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Config tells which table holds the events.
type Config struct {
	// Table is the OID of the outbox table.
	Table uint32
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
}

// Decoder decodes the stream of one replication connection. It is not safe
// for concurrent use.
type Decoder struct {
	table    uint32
	names    map[string]string
	relation []column // of the outbox table, nil until it was described

	open   bool          // between Begin and Commit
	commit pglogrepl.LSN // Begin's final LSN of the open transaction
	time   int64         // its commit time, microseconds since the Unix epoch
}

// New returns a decoder for a connection that has just begun to stream.
func New(cfg Config) *Decoder { return &Decoder{table: cfg.Table, names: cfg.Columns} }

// Decode decodes the payload of one CopyData message into m, whose slices
// then point into copyData. An error is an *Error, and final.
func (d *Decoder) Decode(copyData []byte, m *Message) error {
	if err := d.decode(copyData, m); err != nil {
		return &Error{LSN: m.LSN, Err: err}
	}
	return nil
}

func (d *Decoder) decode(copyData []byte, m *Message) error {
	r := reader{rest: copyData}
	m.LSN = 0
	switch frame := r.uint8(); {
	case r.short:
		return errTruncated
	case frame == pglogrepl.XLogDataByteID:
		m.LSN = pglogrepl.LSN(r.uint64())
		r.take(16) // the same LSN again and the server's clock
		return d.pgoutput(&r, m)
	case frame == pglogrepl.PrimaryKeepaliveMessageByteID:
		return keepalive(&r, m)
	default:
		return fmt.Errorf("frame of unknown type %q", frame)
	}
}

func keepalive(r *reader, m *Message) error {
	m.Kind = Keepalive
	m.ServerEnd = pglogrepl.LSN(r.uint64())
	r.take(8) // the server's clock
	m.ReplyRequested = r.uint8() != 0
	return r.end()
}

func (d *Decoder) pgoutput(r *reader, m *Message) error {
	switch kind := r.uint8(); kind {
	case 'I':
		return d.insert(r, m)
	case 'B':
		return d.begin(r, m)
	case 'C':
		return d.commitMessage(r, m)
	case 'M':
		return d.logical(r, m)
	case 'R':
		m.Kind, m.Type = Ignored, kind
		return d.describe(r)
	case 'Y', 'O', 'U', 'D', 'T':
		m.Kind, m.Type = Ignored, kind
		return nil
	default:
		if r.short {
			return errTruncated
		}
		return fmt.Errorf("pgoutput message of unknown type %q", kind)
	}
}

func (d *Decoder) begin(r *reader, m *Message) error {
	m.Kind = Begin
	m.CommitLSN = pglogrepl.LSN(r.uint64())
	m.CommitTime = unixMicros(int64(r.uint64()))
	m.XID = r.uint32()
	if d.open {
		return errors.New("a Begin message within a transaction")
	}
	d.open, d.commit, d.time = true, m.CommitLSN, m.CommitTime
	return r.end()
}

func (d *Decoder) commitMessage(r *reader, m *Message) error {
	m.Kind = Commit
	r.take(1 + 8) // flags, unused; the start of the commit record, as in Begin
	m.EndLSN = pglogrepl.LSN(r.uint64())
	r.take(8) // commit time, as in Begin
	if !d.open {
		return errors.New("a Commit message outside of a transaction")
	}
	d.open = false
	return r.end()
}

func (d *Decoder) logical(r *reader, m *Message) error {
	m.Kind = Logical
	m.Transactional = r.uint8()&1 != 0
	r.take(8) // its LSN, as in the frame
	m.Prefix = r.text()
	m.Content = r.take(r.length())
	if m.Transactional && !d.open {
		return errors.New("transactional logical message outside of a transaction")
	}
	return r.end()
}

func (d *Decoder) insert(r *reader, m *Message) error {
	if table := r.uint32(); table != d.table {
		m.Kind, m.Type = Ignored, 'I'
		return r.ignore()
	}
	m.Kind = Insert
	switch {
	case !d.open:
		return errors.New("an Insert message outside of a transaction")
	case d.relation == nil:
		return errors.New("an Insert message for a table that no Relation message has described")
	}
	// what a table without these columns, or a NULL in them, stands for
	m.Event = event.Event{
		Ref:         event.Ref{CommitLSN: d.commit},
		ContentType: defaultContentType,
		CreatedAt:   d.time,
	}
	if err := tuple(r, d.relation, &m.Event); err != nil {
		return fmt.Errorf("decoding an inserted row: %w", err)
	}
	return r.end()
}
