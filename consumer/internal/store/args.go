package store

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// uuid has a codec in every mode of the driver, in arrays too.
func uuid(id outbox.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// micros is a duration as a parameter. The driver's interval is not understood
// in all of its modes.
func micros(d time.Duration) int64 { return d.Microseconds() }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// maxMessage is the length of a message, in bytes.
const maxMessage = 500

// sentence makes s fit into a column: text refuses zero bytes and what is not
// UTF-8.
func sentence(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// refNames finds the name by which an event was asked for: its row id may have
// been left out.
type refNames map[outbox.ID][]Ref

func nameRefs(refs []Ref) refNames {
	names := make(refNames, len(refs))
	for _, r := range refs {
		names[r.EventID] = append(names[r.EventID], r)
	}
	return names
}

// find returns the first name of a row; its id is 0 if it has none.
func (n refNames) find(row Ref) Ref {
	for _, r := range n[row.EventID] {
		if r.RowID == 0 || row.RowID == 0 || r.RowID == row.RowID {
			return r
		}
	}
	return row
}
