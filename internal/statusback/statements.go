package statusback

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

const slotTable = "cdc_relay_slot"

// statements are the texts for one table. Every update has $1 slot, $2 epoch,
// $3 owner and $4 ids, ascending.
type statements struct {
	wait [formKept]string // waits for row locks, up to lock_timeout
	skip [formKept]string // leaves locked rows out
	look string
}

// What an update sets. The error columns of SENT stay: a consumer may have to
// know how an earlier attempt ended.
const (
	setSent  = `send_status = 2, sent_at = now(), attempts = 0, next_attempt_at = NULL, commit_lsn = NULL`
	setRetry = `send_status = 0, next_attempt_at = now() + v.delay_us * interval '1 microsecond', ` + setAttempt
	setFail  = `send_status = 3, next_attempt_at = 'infinity', ` + setAttempt
	setHeld  = `next_attempt_at = 'infinity', ` + setPlace
	setLater = `next_attempt_at = now() + v.delay_us * interval '1 microsecond', ` + setPlace

	setAttempt = `attempts = o.attempts + 1, error_code = v.code, error_message = v.message, ` + setPlace
	setPlace   = `commit_lsn = coalesce(o.commit_lsn, v.lsn::pg_lsn)`
)

// What an update joins. Naming the ids twice, as an array and by the join,
// makes the planner read them through the primary key; IS NOT DISTINCT FROM
// keeps it from the index on next_attempt_at.
const (
	joinRequeued = `unnest($4::bigint[], $5::timestamptz[]) AS v (id, seen)`
	joinRetry    = `unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::text[], $8::text[], $9::bigint[])
       AS v (id, seen, lsn, code, message, delay_us)`
	joinFail = `unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::text[], $8::text[])
       AS v (id, seen, lsn, code, message)`
	joinHeld  = `unnest($4::bigint[], $5::timestamptz[], $6::text[]) AS v (id, seen, lsn)`
	joinLater = `unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::bigint[]) AS v (id, seen, lsn, delay_us)`

	guardStream = `o.send_status = 0 AND o.next_attempt_at IS NULL`
	guardSeen   = `o.id = v.id AND o.send_status = 0 AND o.next_attempt_at IS NOT DISTINCT FROM v.seen`
	// guardHeld leaves out a row that would be held without a place to be
	// released from: the table's CHECK would fail the whole statement.
	guardHeld = guardSeen + ` AND coalesce(o.commit_lsn, v.lsn::pg_lsn) IS NOT NULL`
)

func newStatements(table pg.Table) statements {
	var s statements
	for f, part := range [formKept]struct{ set, join, guard string }{
		formSent:     {setSent, "", guardStream},
		formRequeued: {setSent, joinRequeued, guardSeen},
		formRetry:    {setRetry, joinRetry, guardSeen},
		formFail:     {setFail, joinFail, guardSeen},
		formHeld:     {setHeld, joinHeld, guardHeld},
		formLater:    {setLater, joinLater, guardSeen},
	} {
		s.wait[f] = updateWaiting(table, part.set, part.join, part.guard)
		s.skip[f] = updateSkipping(table, part.set, part.join, part.guard)
	}
	s.look = fmt.Sprintf(`
SELECT EXISTS (SELECT 1 FROM %s WHERE slot = $1 AND epoch = $2 AND owner = $3),
       o.id IS NOT NULL,
       coalesce(pg_visible_in_snapshot(v.xid::xid8, pg_current_snapshot()), true),
       o.send_status, o.next_attempt_at, o.commit_lsn IS NOT NULL
  FROM unnest($4::bigint[], $5::text[]) WITH ORDINALITY AS v (id, xid, n)
  LEFT JOIN %s o ON o.id = v.id AND o.id = ANY ($4)
 ORDER BY v.n`, table.Sibling(slotTable).Ident(), table.Ident())
	return s
}

// fence locks the slot's row if it is still ours. FOR SHARE makes it
// race-free: it conflicts with the update of a takeover, which waits for this
// statement, or makes this one wait and then look again. MATERIALIZED runs it
// once, before any row of the outbox is touched.
func fence(table pg.Table) string {
	return fmt.Sprintf("e AS MATERIALIZED (SELECT 1 FROM %s WHERE slot = $1 AND epoch = $2 AND owner = $3 FOR SHARE)",
		table.Sibling(slotTable).Ident())
}

func updateWaiting(table pg.Table, set, join, guard string) string {
	return fmt.Sprintf("WITH %s\nUPDATE %s o SET %s%s\n WHERE o.id = ANY ($4) AND %s AND EXISTS (SELECT 1 FROM e) RETURNING o.id",
		fence(table), table.Ident(), set, from("\n  FROM ", join), guard)
}

// updateSkipping locks what it can get, in order, and updates that. The lock
// is the one that an UPDATE takes: a foreign key's check of the row is no
// reason to leave it out.
func updateSkipping(table pg.Table, set, join, guard string) string {
	return fmt.Sprintf(`WITH %s,
     r AS MATERIALIZED (SELECT o.id FROM %s o%s WHERE o.id = ANY ($4) AND %s AND EXISTS (SELECT 1 FROM e)
                         ORDER BY o.id FOR NO KEY UPDATE OF o SKIP LOCKED)
UPDATE %s o SET %s%s
 WHERE o.id = ANY (ARRAY(SELECT id FROM r)) AND %s RETURNING o.id`,
		fence(table), table.Ident(), from(", ", join), guard, table.Ident(), set, from("\n  FROM ", join), guard)
}

func from(prefix, join string) string {
	if join == "" {
		return ""
	}
	return prefix + join
}
