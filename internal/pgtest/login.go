package pgtest

import (
	"context"
	"strings"
	"testing"
)

// operatorGrants are the rights of a person who looks after the outbox, and no
// more.
const operatorGrants = `
GRANT SELECT ON outbox, cdc_relay_slot, cdc_relay_lease, cdc_relay_topic, cdc_relay_schema_version TO {login};
GRANT UPDATE (send_status, attempts, next_attempt_at, commit_lsn, claim_generation, claimed_by, lease_until, sent_at,
              finished_at, error_code, error_message) ON outbox TO {login};
GRANT UPDATE ON cdc_relay_topic, outbox_receipt, outbox_quarantine TO {login};
GRANT INSERT ON cdc_relay_audit TO {login};
GRANT SELECT ON cdc_relay_audit, outbox_readable, outbox_quarantine TO {login};
GRANT DELETE ON outbox TO {login};
GRANT SELECT, DELETE ON outbox_receipt TO {login}`

// consumerGrants are the rights of a consumer.
const consumerGrants = `
GRANT SELECT (id, event_id, aggregate_type, event_type, send_status, attempts, next_attempt_at, claim_generation,
              claimed_by, lease_until, sent_at, finished_at, error_code) ON outbox TO {login};
GRANT UPDATE (send_status, attempts, next_attempt_at, claim_generation, claimed_by, lease_until, finished_at,
              error_code, error_message) ON outbox TO {login};
GRANT SELECT, INSERT, UPDATE ON outbox_receipt, outbox_quarantine TO {login}`

// Operator makes a login for people who look after the outbox of the schema
// public, with the documented rights of cdc_relay_operator, and returns its
// name and DSN. It goes with the test.
func (db *DB) Operator(t testing.TB) (login, dsn string) {
	t.Helper()
	return db.login(t, "operator", operatorGrants)
}

// Consumer makes a login for consumers, with the documented rights of
// cdc_relay_consumer, likewise.
func (db *DB) Consumer(t testing.TB) (login, dsn string) {
	t.Helper()
	return db.login(t, "consumer", consumerGrants)
}

func (db *DB) login(t testing.TB, what, grants string) (login, dsn string) {
	t.Helper()
	login = db.Name + "_" + what // roles belong to the whole server
	db.Exec(t, strings.ReplaceAll(`REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE {login} LOGIN;
		GRANT USAGE ON SCHEMA public TO {login};`+grants, "{login}", login))
	t.Cleanup(func() {
		conn := connect(t, db.DSN)
		defer conn.Close(context.Background())
		for _, sql := range []string{"DROP OWNED BY " + login, "DROP ROLE " + login} {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Errorf("removing the login of the %s: %s: %v", what, sql, err)
			}
		}
	})
	dsn = strings.Replace(db.DSN, "postgres@", login+"@", 1)
	if dsn == db.DSN {
		t.Fatal("the test server's DSN does not log in as postgres without a password")
	}
	return login, dsn
}
