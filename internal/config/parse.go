package config

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// setting is a value as a source wrote it. Its fields are exported because
// koanf copies what it merges by reflection; it takes a struct as a leaf, so
// it neither merges nor splits what is inside.
type setting struct {
	Text   string
	List   []string
	Map    map[string]string
	Maps   map[string]map[string]string // instead of Map, where the key takes a map of maps
	Form   form
	Origin string
}

type form uint8

const (
	formText form = iota // also a list with commas, or a map as JSON
	formList
	formMap
)

func (f form) String() string {
	return [...]string{"a single value", "a list", "a mapping"}[f]
}

// parse stores what s says in the value that target points to.
func parse(target any, s setting) defect {
	switch t := target.(type) {
	case *[]string:
		return parseList(t, s)
	case *map[string]string:
		return parseNames(t, s)
	case *map[string]RetryOverride:
		return parseOverrides(t, s)
	}
	if s.Form != formText {
		return defect{"is " + s.Form.String(), "write a single value"}
	}
	return parseText(target, s.Text)
}

func parseText(target any, text string) (d defect) {
	switch t := target.(type) {
	case *string:
		*t = text
	case *Secret:
		*t = NewSecret(text)
	case *bool:
		*t, d = parseBool(text)
	case *int:
		*t, d = parseInt(text)
	case *float64:
		*t, d = parseFloat(text)
	case *time.Duration:
		*t, d = parseDuration(text)
	case *Size:
		*t, d = parseSize(text)
	case *Table:
		*t, d = parseTable(text)
	default:
		d = defect{fmt.Sprintf("has the unknown type %T", target), "report this as a defect"}
	}
	return d
}

// quoted shortens what is repeated in a message.
func quoted(text string) string {
	const most = 40
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strconv.Quote(text)
}

func parseBool(text string) (bool, defect) {
	switch text {
	case "true":
		return true, fine
	case "false":
		return false, fine
	}
	return false, defect{quoted(text) + " is not a switch", "write true or false"}
}

func parseInt(text string) (int, defect) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, defect{quoted(text) + " is not a whole number", "write digits, such as 500"}
	}
	return n, fine
}

func parseFloat(text string) (float64, defect) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, defect{quoted(text) + " is not a number", "write a number, such as 0.2"}
	}
	return x, fine
}

// parseDuration reads Go's syntax with days in front: 500ms, 1h30m, 14d, 1d12h.
func parseDuration(text string) (time.Duration, defect) {
	if text == "0" {
		return 0, fine
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, defect{quoted(text) + " has no unit", "write " + text + "s"}
	}
	bad := defect{quoted(text) + " is not a duration", "write a number with a unit of ms, s, m, h or d, such as 5s"}
	var days time.Duration
	rest := text
	if head, tail, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(head, 10, 16)
		if err != nil {
			return 0, bad
		}
		days, rest = time.Duration(n)*24*time.Hour, tail
		if rest == "" {
			return days, fine
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || days > 0 && d < 0 || days > math.MaxInt64-max(d, 0) {
		return 0, bad
	}
	return days + d, fine
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// parseSize reads a number of bytes, or of KiB, MiB or GiB.
func parseSize(text string) (Size, defect) {
	for _, unit := range sizeUnits {
		digits, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			break
		}
		return Size(n * unit.bytes), fine
	}
	return 0, defect{quoted(text) + " is not a size", "write bytes, or a whole number of KiB, MiB or GiB, such as 24MiB"}
}

// String returns the size in its largest whole unit.
func (s Size) String() string {
	for _, unit := range sizeUnits {
		if int64(s) >= unit.bytes && int64(s)%unit.bytes == 0 {
			return strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

func parseTable(text string) (Table, defect) {
	schema, name, found := strings.Cut(text, ".")
	switch {
	case !found || name == "" || strings.Contains(name, "."):
		return Table{}, defect{quoted(text) + " is not a qualified name", "write schema.table, such as public.outbox"}
	case !schemaName.MatchString(schema):
		return Table{}, defect{"the schema " + quoted(schema) + " is not of the form [a-z_][a-z0-9_]*, at most 63 long", "write schema.table, such as public.outbox"}
	case len(name) > maxNameBytes || hasControl(name):
		return Table{}, defect{"the table name is over 63 bytes or has control characters", "write schema.table, such as public.outbox"}
	}
	return Table{Schema: schema, Name: name}, fine
}

func parseList(target *[]string, s setting) defect {
	switch s.Form {
	case formList:
		*target = s.List
	case formText:
		*target = splitList(s.Text)
	case formMap:
		return defect{"is a mapping", "write a list, or values separated by commas"}
	}
	return fine
}

func splitList(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	items := strings.Split(text, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

// parseNames reads a map that is written as YAML or as JSON.
func parseNames(target *map[string]string, s setting) defect {
	switch s.Form {
	case formList:
		return defect{"is a list", "write a mapping"}
	case formMap:
		*target = s.Map
		return fine
	}
	*target = nil
	if strings.TrimSpace(s.Text) == "" {
		return fine
	}
	if err := json.Unmarshal([]byte(s.Text), target); err != nil {
		return defect{"is not a JSON object of strings", `write it as {"name": "value"}`}
	}
	return fine
}
