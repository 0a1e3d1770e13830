package operate

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// kitConditions are conditions on the rows that consumers keep, as SQL and as
// the flags that set them.
type kitConditions struct {
	selection
	flags []string
}

// flag notes a flag that has no condition of its own.
func (c *kitConditions) flag(name, value string) {
	c.flags = append(c.flags, flagText(name, value))
}

// add adds a condition in which %s stands for a value.
func (c *kitConditions) add(flag, shown, condition string, value any) {
	c.flag(flag, shown)
	c.where = append(c.where, fmt.Sprintf(condition, c.bind(value)))
}

func (c *kitConditions) text(flag, column, value string) {
	if value != "" {
		c.add(flag, value, column+" = %s::text", value)
	}
}

// times bounds a column; zero is no bound.
func (c *kitConditions) times(column string, since, until time.Time) {
	if !since.IsZero() {
		c.add("since", since.UTC().Format(time.RFC3339Nano), column+" >= %s::timestamptz", since)
	}
	if !until.IsZero() {
		c.add("until", until.UTC().Format(time.RFC3339Nano), column+" < %s::timestamptz", until)
	}
}

// end is the end of a statement that reads the picked rows in order.
func (c *kitConditions) end(from, order string, limit int) string {
	c.from, c.order = from, order
	return c.rows(limit)
}

func eventTexts(ids []outbox.ID) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	return texts
}
