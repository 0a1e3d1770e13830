package doctor

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// columnRule is what the relay asks of a column of the table.
type columnRule struct {
	name     string
	required bool
	streamed bool // read from the stream, else only from the table
	written  bool // updated by the relay
	types    []string
}

var (
	integers = []string{"smallint", "integer", "bigint"}
	texts    = []string{"text", "character varying", "character"}
	zoned    = []string{"timestamp with time zone"}
)

var columnRules = []columnRule{
	{"id", true, true, false, integers},
	{"event_id", true, true, false, []string{"uuid"}},
	{"aggregate_type", true, true, false, texts},
	{"aggregate_id", true, true, false, texts},
	{"event_type", true, true, false, texts},
	{"payload", true, true, false, []string{"bytea", "json", "jsonb", "text", "character varying"}},
	{"headers", false, true, false, []string{"jsonb", "json", "text"}},
	{"content_type", false, true, false, texts},
	{"topic", false, true, false, texts},
	{"priority", false, true, false, integers},
	{"created_at", false, true, false, []string{"timestamp with time zone", "timestamp without time zone"}},
	{"send_status", true, true, true, integers},
	{"attempts", true, true, true, integers},
	{"next_attempt_at", true, true, true, zoned},
	{"commit_lsn", true, false, true, []string{"pg_lsn"}},
	{"sent_at", true, false, true, zoned},
	{"error_code", true, false, true, texts},
	{"error_message", true, false, true, texts},
}

// column is the name in the table of a column of the design.
func (c Config) column(design string) string {
	return pg.Columns(c.Columns).Name(design)
}

// written lists the columns that the relay updates, by their names in the table.
func (c Config) written() []string {
	var names []string
	for _, rule := range columnRules {
		if rule.written {
			names = append(names, c.column(rule.name))
		}
	}
	return names
}

// columnProblems says, a phrase each, which columns are missing or of a type
// that the relay cannot use.
func columnProblems(table map[string]string, cfg Config) []string {
	var problems []string
	for _, rule := range columnRules {
		name := cfg.column(rule.name)
		_, mapped := cfg.Columns[rule.name]
		kind, exists := table[name]
		switch {
		case !exists && (rule.required || mapped):
			problems = append(problems, "column "+name+" is missing")
		case exists && !slices.Contains(rule.types, kind):
			problems = append(problems, "column "+name+" is "+kind+" and not "+strings.Join(rule.types, " or "))
		}
	}
	return problems
}

// unpublished lists the columns that the relay reads from the stream and that
// the publication leaves out.
func unpublished(published []string, table map[string]string, cfg Config) []string {
	var missing []string
	for _, rule := range columnRules {
		name := cfg.column(rule.name)
		if _, exists := table[name]; exists && rule.streamed && !slices.Contains(published, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

func identList(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = pgx.Identifier{name}.Sanitize()
	}
	return strings.Join(quoted, ", ")
}
