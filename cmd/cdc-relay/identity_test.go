package main

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestTransactionalID: without one in the configuration, system, database and
// slot make one that all instances have and no other slot.
func TestTransactionalID(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, 18)
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	session := event.Session{SystemID: 18446744073709551615, Timeline: 3, Epoch: 7}
	for _, tc := range []struct{ name, configured, want string }{
		{"made", "", fmt.Sprintf("cdc-relay/18446744073709551615/%s/orders", db.Name)},
		{"configured", "mine", "mine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &opener{c: loadTest(t, "CDC_RELAY_SLOT__NAME=orders", "CDC_RELAY_KAFKA__TRANSACTIONAL_ID="+tc.configured)}
			if got, err := o.transactionalID(t.Context(), pool, session); err != nil || got != tc.want {
				t.Errorf("transactional id %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}
