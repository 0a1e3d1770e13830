package store

import (
	"strings"
	"sync"
)

// statement is a text for events named by row id and event id, and one for
// those of which some row id is not known: each finds the rows by an index.
type statement struct{ byRow, byEvent string }

func (s statement) of(refs []Ref) string {
	for _, r := range refs {
		if r.RowID == 0 {
			return s.byEvent
		}
	}
	return s.byRow
}

// texts are the statements of one table.
type texts struct {
	claim, claimOne, takeOver, states, renew, done, doneNow, handBack, fail, release statement

	// Of receipts only.
	beginEffect, clearEffect, providerRef, insert, again, recordFailure, recordDelay string
}

// perTable makes the statements of a table once, as that takes as long as a fast
// statement does. It keeps them for all tables that there were, some 20 KB each.
func perTable(fill func(table string) *texts) func(table string) *texts {
	var known sync.Map // the *texts by table
	return func(table string) *texts {
		t, ok := known.Load(table)
		if !ok {
			t, _ = known.LoadOrStore(table, fill(table))
		}
		return t.(*texts)
	}
}

// dialect is what differs between outbox rows and receipts. {table} and so on
// are filled in.
type dialect struct {
	claim, claimOne string
	byRow, byEvent  *strings.Replacer
}

// fill makes the statements. The condition "among" says of the whole list what
// "match" says of one: so the index finds the rows, and no others are looked
// at, whatever the plan of the join is.
func (d dialect) fill() *texts {
	of := func(text string) statement {
		return statement{byRow: d.byRow.Replace(text), byEvent: d.byEvent.Replace(text)}
	}
	return &texts{
		claim: of(d.claim), claimOne: of(d.claimOne), takeOver: of(takeOverText), states: of(statesText),
		renew: of(renewText), done: of(doneText), doneNow: of(doneNowText), handBack: of(handBackText), fail: of(failText), release: of(releaseText),
	}
}

// free is what can be claimed.
const free = `o.{status} = 2 AND (o.next_attempt_at IS NULL OR o.next_attempt_at <= clock_timestamp())`

// take claims it.
const take = `
   SET {status} = 5, claim_generation = o.claim_generation + 1, claimed_by = $3::text,
       lease_until = clock_timestamp() + $4::bigint * interval '1 us'`

// claimed are the columns of a Claim.
const claimed = `{id}, o.event_id, o.claim_generation, o.attempts, o.error_code,
       coalesce(EXTRACT(epoch FROM clock_timestamp() - o.{since}), 0)::float8, {effect}`

// leaseOver says that nobody has the claim any more.
const leaseOver = `(o.lease_until IS NULL OR o.lease_until <= clock_timestamp())`

// parks says that an abandonment is one too many: it follows another one.
const parks = `(o.error_code = 'CONSUMER_ABANDONED' AND o.attempts + 1 >= $5::int)`

// takeOverText does not wait for locks.
const takeOverText = `
WITH free AS MATERIALIZED (
  SELECT o.event_id FROM {table} o WHERE {one} AND o.{status} = 5 AND ` + leaseOver + ` FOR NO KEY UPDATE SKIP LOCKED)
UPDATE {table} o
   SET claim_generation = o.claim_generation + 1, attempts = o.attempts + 1,
       claimed_by = $3::text,
       {status} = CASE WHEN ` + parks + ` THEN 3 ELSE 5 END,
       lease_until = CASE WHEN ` + parks + ` THEN NULL ELSE clock_timestamp() + $4::bigint * interval '1 us' END,
       next_attempt_at = CASE WHEN ` + parks + ` THEN 'infinity' ELSE o.next_attempt_at END,
       error_code = 'CONSUMER_ABANDONED', error_message = 'an attempt ended without an outcome'
  FROM free f WHERE {one} AND o.event_id = f.event_id
RETURNING ` + claimed + `, o.{status} = 3`

const statesText = `
SELECT o.{status}::int, {settled}, o.claimed_by, o.claim_generation,
       EXTRACT(epoch FROM o.lease_until - clock_timestamp())::float8,
       CASE WHEN isfinite(o.next_attempt_at) THEN EXTRACT(epoch FROM o.next_attempt_at - clock_timestamp())::float8
            WHEN o.next_attempt_at = 'infinity' THEN 86400 END
  FROM {ordered} LEFT JOIN {table} o ON {match} AND {among}
 ORDER BY k.n`

// ours is the guard of everything that an owner does.
const ours = `o.{status} = 5 AND o.claim_generation = k.gen`

// unlocked picks the claims that are still ours, and of these the rows that
// nobody has locked: "mine" is what the statement's snapshot shows.
const unlocked = `
WITH mine AS MATERIALIZED (
  SELECT {id} AS id, o.event_id, k.gen FROM {table} o JOIN {held} ON {match} WHERE {among} AND ` + ours + `),
free AS MATERIALIZED (
  SELECT {id} AS id, o.event_id, k.gen FROM {table} o JOIN {held} ON {match} WHERE {among} AND ` + ours + `
     FOR NO KEY UPDATE OF o SKIP LOCKED),
written AS (
  UPDATE {table} o`

// answers tell for each of mine whether it was written, or is locked.
const answers = `
    FROM free k WHERE {match} AND {among} AND ` + ours + `)
SELECT m.id, m.event_id, m.gen, EXISTS (SELECT 1 FROM free f WHERE f.event_id = m.event_id) FROM mine m`

const renewText = unlocked + `
     SET lease_until = clock_timestamp() + $4::bigint * interval '1 us'` + answers

// finished ends a claim as CONSUMED.
const finished = `
   SET {status} = 4, finished_at = clock_timestamp(), lease_until = NULL, next_attempt_at = NULL,
       error_code = NULL, error_message = NULL`

const doneNowText = unlocked + finished + answers

const doneText = `
UPDATE {table} o` + finished + `
  FROM {held} WHERE {match} AND {among} AND ` + ours + `
RETURNING {id}, o.event_id, o.claim_generation, true`

const handBackText = `
UPDATE {table} o SET {status} = 2, claimed_by = NULL, lease_until = NULL
  FROM {held} WHERE {match} AND {among} AND ` + ours + `
RETURNING {id}, o.event_id, o.claim_generation, true`

const failText = `
UPDATE {table} o
   SET {status} = 3, next_attempt_at = 'infinity', attempts = o.attempts + 1, lease_until = NULL,
       error_code = $4::text, error_message = $5::text
 WHERE {one} AND o.{status} = 5 AND o.claim_generation = $3::int`

// An attempt in doubt stays so, whatever this one says.
const releaseText = `
UPDATE {table} o
   SET {status} = 2, next_attempt_at = clock_timestamp() + $4::bigint * interval '1 us', attempts = o.attempts + 1,
       claimed_by = NULL, lease_until = NULL, error_message = $6::text,
       error_code = CASE WHEN o.error_code IN ('CONSUMER_ABANDONED', 'CONSUMER_AMBIGUOUS') THEN 'CONSUMER_AMBIGUOUS'
                         ELSE $5::text END
 WHERE {one} AND o.{status} = 5 AND o.claim_generation = $3::int`
