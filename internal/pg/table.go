package pg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxName is PostgreSQL's limit for a name, in bytes.
const maxName = 63

// Table is the name of a table, both parts as they are stored in the catalog.
type Table struct {
	Schema string
	Name   string
}

// ParseTable reads schema.table. Names are taken as written, without folding
// to lower case; a name that holds a dot or a quote is put between double
// quotes, with quotes inside doubled, as in SQL.
func ParseTable(s string) (Table, error) {
	schema, rest, err := cutName(s)
	if err != nil {
		return Table{}, fmt.Errorf("table %q: %w", s, err)
	}
	name, found := strings.CutPrefix(rest, ".")
	if !found {
		return Table{}, fmt.Errorf("table %q: want schema.table, such as public.outbox", s)
	}
	name, rest, err = cutName(name)
	if err != nil {
		return Table{}, fmt.Errorf("table %q: %w", s, err)
	}
	if rest != "" {
		return Table{}, fmt.Errorf("table %q: want schema.table; put a name that holds a dot between double quotes", s)
	}
	return Table{Schema: schema, Name: name}, nil
}

// cutName takes one name off the front of s.
func cutName(s string) (name, rest string, err error) {
	if quoted, found := strings.CutPrefix(s, `"`); found {
		name, rest, err = cutQuoted(quoted)
	} else {
		end := strings.IndexAny(s, `."`)
		if end < 0 {
			end = len(s)
		}
		name, rest = s[:end], s[end:]
	}
	switch {
	case err != nil:
		return "", "", err
	case name == "":
		return "", "", errors.New("a name is empty: want schema.table, such as public.outbox")
	case len(name) > maxName:
		return "", "", fmt.Errorf("a name is longer than %d bytes", maxName)
	case strings.ContainsRune(name, 0):
		return "", "", errors.New("a name holds a zero byte")
	}
	return name, rest, nil
}

// cutQuoted takes what stands before the closing quote.
func cutQuoted(s string) (name, rest string, err error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `"`)
		if !found {
			return "", "", errors.New("a closing double quote is missing")
		}
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after, nil
		}
		b.WriteByte('"')
		s = after[1:]
	}
}

// Ident is the name for SQL, both parts quoted.
func (t Table) Ident() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// String is the name for people, and what the prefix of requeue messages
// holds: both parts as they are.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Columns tells how columns of the design are named in a table that names them
// otherwise.
type Columns map[string]string

// Name is the name of a column of the design as it is stored in the catalog.
func (c Columns) Name(design string) string {
	if name, mapped := c[design]; mapped {
		return name
	}
	return design
}

// Ident is the same for SQL, quoted.
func (c Columns) Ident(design string) string { return pgx.Identifier{c.Name(design)}.Sanitize() }

// Sibling is a table of that name in the same schema.
func (t Table) Sibling(name string) Table { return Table{Schema: t.Schema, Name: name} }
