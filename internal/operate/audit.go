package operate

// auditSQL is the end of every statement that acts on rows: it writes one audit
// entry for each row in changed and returns the rows. $4 is the person, $5 the
// action, $6 the reason and $7 the filter; the last two may be NULL.
const auditSQL = `,
noted AS (
  INSERT INTO {audit} (actor, action, id, event_id, reason, filter)
  SELECT ` + actorSQL + `, $5::text, c.id, c.event_id, $6::text, $7::text FROM changed c)
SELECT c.id::bigint, c.position FROM changed c`

// actorSQL is who acts: the login, which the server vouches for, and the person
// as the operating system names him, which it does not.
const actorSQL = `session_user || coalesce(' (' || nullif($4::text, '') || ')', '')`

// orNull is a text for a column that is NULL rather than empty.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
