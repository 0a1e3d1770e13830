package store

import (
	"slices"
	"strings"
	"time"
)

// Rows claims outbox rows: shared status.
type Rows struct{ claims }

// NewRows claims rows of a table, given qualified and quoted, for an owner,
// whose name is for people.
func NewRows(db DB, table, owner string, lease time.Duration, abandonLimit int) *Rows {
	return &Rows{claims{db: db, texts: rowTexts(table), owner: owner, lease: lease, limit: abandonLimit}}
}

// On returns the same on another connection, such as a handler's transaction.
func (r *Rows) On(db DB) *Rows {
	on := *r
	on.db = db
	return &on
}

var rowTexts = perTable(func(table string) *texts {
	common := []string{
		"{table}", table, "{status}", "send_status", "{since}", "sent_at",
		"{id}", "o.id", "{effect}", "false, NULL::bytea, NULL::text",
		"{settled}", "o.sent_at IS NOT NULL OR o.finished_at IS NOT NULL",
		"{keys}", "unnest($1::bigint[], $2::uuid[]) k(id, event_id)",
		"{ordered}", "unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY k(id, event_id, n)",
		"{held}", "unnest($1::bigint[], $2::uuid[], $3::int[]) k(id, event_id, gen)",
	}
	return dialect{
		claim: claimRows, claimOne: claimRow,
		byRow: strings.NewReplacer(slices.Concat(common, []string{
			"{one}", "o.id = $1::bigint AND o.event_id = $2::uuid",
			"{match}", "o.id = k.id AND o.event_id = k.event_id",
			"{among}", "o.id = ANY($1::bigint[])",
		})...),
		byEvent: strings.NewReplacer(slices.Concat(common, []string{
			"{one}", "$1::bigint = 0 AND o.event_id = $2::uuid",
			"{match}", "o.event_id = k.event_id AND (k.id = 0 OR o.id = k.id)",
			"{among}", "o.event_id = ANY($2::uuid[])",
		})...),
	}.fill()
})

const claimRows = `
WITH free AS MATERIALIZED (
  SELECT o.id, o.event_id FROM {table} o JOIN {keys} ON {match} WHERE {among} AND ` + free + `
   ORDER BY o.id FOR NO KEY UPDATE OF o SKIP LOCKED)
UPDATE {table} o` + take + `
  FROM free k WHERE {match} AND {among}
RETURNING ` + claimed

const claimRow = `
UPDATE {table} o` + take + `
 WHERE {one} AND ` + free + `
RETURNING ` + claimed
