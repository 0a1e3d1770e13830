package decoder

import (
	"fmt"
	"slices"
	"strings"
)

// field is a part of an event that comes from a column.
type field uint8

const (
	fieldNone field = iota // a column that is none of ours
	fieldID
	fieldEventID
	fieldAggregateType
	fieldAggregateID
	fieldEventType
	fieldPayload
	fieldHeaders
	fieldContentType
	fieldTopic
	fieldPriority
	fieldCreatedAt
	fieldStatus
	fieldAttempts
	fieldDue
)

// Type OIDs of pg_catalog, the same in every server.
const (
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidUUID        = 2950
	oidJSONB       = 3802
)

var (
	integers = []uint32{oidInt2, oidInt4, oidInt8}
	texts    = []uint32{oidText, oidVarchar, oidBpchar}
)

// design is the outbox table as designed: which column fills which field.
var design = []struct {
	name  string
	field field
	// required columns must exist; for the others the schema's default stands in
	required bool
	// nullable columns may hold NULL
	nullable bool
	types    []uint32
}{
	{"id", fieldID, true, false, integers},
	{"event_id", fieldEventID, true, false, []uint32{oidUUID}},
	{"aggregate_type", fieldAggregateType, true, false, texts},
	{"aggregate_id", fieldAggregateID, true, false, texts},
	{"event_type", fieldEventType, true, false, texts},
	{"payload", fieldPayload, true, true, []uint32{oidBytea, oidJSON, oidJSONB, oidText, oidVarchar}},
	{"headers", fieldHeaders, false, true, []uint32{oidJSON, oidJSONB, oidText}},
	{"content_type", fieldContentType, false, true, texts},
	{"topic", fieldTopic, false, true, texts},
	{"priority", fieldPriority, false, true, integers},
	{"created_at", fieldCreatedAt, false, true, []uint32{oidTimestamptz, oidTimestamp}},
	{"send_status", fieldStatus, true, false, integers},
	{"attempts", fieldAttempts, false, true, integers},
	{"next_attempt_at", fieldDue, true, true, []uint32{oidTimestamptz}},
}

var defaultContentType = []byte("application/json")

// column tells how to read one value of a tuple.
type column struct {
	field    field
	nullable bool
	oid      uint32
	name     string // for errors
}

// describe takes over the columns of a Relation message, if it is about the
// outbox table. One comes before the first insert and after each change of
// the table.
func (d *Decoder) describe(r *reader) error {
	if r.uint32() != d.table {
		return r.ignore()
	}
	d.relation = nil
	r.text()  // schema
	r.text()  // table
	r.take(1) // replica identity
	count := int(r.uint16())
	columns := make([]column, 0, count)
	for range count {
		r.take(1) // part of the key
		name := string(r.text())
		oid := r.uint32()
		r.take(4) // type modifier
		columns = append(columns, column{name: name, oid: oid})
	}
	if err := r.end(); err != nil {
		return err
	}
	if err := assign(columns, d.names); err != nil {
		return fmt.Errorf("reading the columns of the outbox table: %w", err)
	}
	d.relation = columns
	return nil
}

// assign finds the design's columns among those of the table, by name. names
// are the mapped ones.
func assign(columns []column, names map[string]string) error {
	for _, want := range design {
		name, mapped := names[want.name]
		if !mapped {
			name = want.name
		}
		i := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
		switch {
		case i < 0 && (want.required || mapped):
			return fmt.Errorf("column %q (%s) is missing; add it or map another one in outbox.columns", name, want.name)
		case i < 0:
			continue
		case columns[i].field != fieldNone:
			return fmt.Errorf("column %q is mapped twice, also as %s; correct outbox.columns", name, want.name)
		case !slices.Contains(want.types, columns[i].oid):
			return fmt.Errorf("column %q (%s) has the type with OID %d; it must be %s",
				name, want.name, columns[i].oid, typeNames(want.types))
		}
		columns[i].field, columns[i].nullable = want.field, want.nullable
	}
	return nil
}

func typeNames(oids []uint32) string {
	names := make([]string, len(oids))
	for i, oid := range oids {
		names[i] = typeName(oid)
	}
	return strings.Join(names, ", ")
}

func typeName(oid uint32) string {
	switch oid {
	case oidBytea:
		return "bytea"
	case oidInt2:
		return "smallint"
	case oidInt4:
		return "integer"
	case oidInt8:
		return "bigint"
	case oidText:
		return "text"
	case oidJSON:
		return "json"
	case oidJSONB:
		return "jsonb"
	case oidBpchar:
		return "char(n)"
	case oidVarchar:
		return "varchar"
	case oidTimestamp:
		return "timestamp"
	case oidTimestamptz:
		return "timestamptz"
	case oidUUID:
		return "uuid"
	}
	return fmt.Sprintf("OID %d", oid)
}
