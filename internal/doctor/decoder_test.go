package doctor

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
)

// typeOIDs are those of the types in columnRules.
var typeOIDs = map[string]uint32{
	"smallint": 21, "integer": 23, "bigint": 20, "text": 25, "character varying": 1043, "character": 1042, "uuid": 2950,
	"bytea": 17, "json": 114, "jsonb": 3802, "timestamp with time zone": 1184, "timestamp without time zone": 1114,
}

// What is checked before the stream is what its decoder asks for: the same
// columns, required or not, and the same types.
func TestColumnRulesAreThoseOfTheDecoder(t *testing.T) {
	t.Parallel()
	fields := func(change func(columnRule) (oid uint32, keep bool)) (list []decoder.Field) {
		for _, rule := range columnRules {
			if oid, keep := change(rule); keep && rule.streamed {
				list = append(list, decoder.Field{Name: rule.name, OID: oid})
			}
		}
		return list
	}
	check := func(what string, fits bool, list []decoder.Field) {
		t.Helper()
		if _, err := decoder.NewRow(list, nil); (err == nil) != fits {
			t.Errorf("%s: the decoder says %v, the rules say that it fits: %t", what, err, fits)
		}
	}
	for _, changed := range columnRules {
		if !changed.streamed {
			continue
		}
		for kind, oid := range typeOIDs {
			check(fmt.Sprintf("%s of type %s", changed.name, kind), slices.Contains(changed.types, kind), fields(func(rule columnRule) (uint32, bool) {
				if rule.name == changed.name {
					return oid, true
				}
				return typeOIDs[rule.types[0]], true
			}))
		}
		missing := fields(func(rule columnRule) (uint32, bool) { return typeOIDs[rule.types[0]], rule.name != changed.name })
		// what the relay updates must be there, whether the stream needs it or not
		check("no "+changed.name, !changed.required || changed.name == "attempts", missing)
	}
}
