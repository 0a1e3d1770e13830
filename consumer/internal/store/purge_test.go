package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

const day = 24 * time.Hour

func purgeOf(table string) store.Purge {
	return store.Purge{Table: table, OlderThan: 30 * day, Horizon: 30 * day, Page: 3}
}

// TestPurge removes what is old and has an outcome that no person must look at.
func TestPurge(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		exec := func(sql string) {
			t.Helper()
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		// Ten of each, some made at the same moment, so that pages end between them.
		for what, set := range map[string]string{
			"old-done":     "40, 4, NULL, now()",
			"old-bare":     "40, 4, NULL, NULL",
			"old-waived":   "40, 3, NULL, now()",
			"old-failed":   "40, 3, 'infinity', NULL",
			"old-live":     "40, 5, NULL, NULL",
			"old-waiting":  "40, 2, now(), NULL",
			"young-done":   "29, 4, NULL, now()",
			"young-waived": "29, 3, NULL, now()",
		} {
			exec(`INSERT INTO outbox_receipt (event_id, purpose, created_at, status, next_attempt_at, finished_at)
				SELECT gen_random_uuid(), '` + what + `', date_trunc('hour', now()) - i / 3 * interval '1 hour' - interval '1 day' * ` + set + ` FROM generate_series(1, 10) i`)
		}
		p := purgeOf("outbox_receipt")
		p.Purpose = "old-done"
		if n, err := p.Run(t.Context(), conn); n != 10 || err != nil {
			t.Errorf("purged %d of one purpose, %v", n, err)
		}
		if n, err := purgeOf("outbox_receipt").Run(t.Context(), conn); n != 20 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
		rows, err := conn.Query(t.Context(), "SELECT purpose, count(*)::int FROM outbox_receipt GROUP BY 1")
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]int{}
		var what string
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&what, &n}, func() error { left[what] = n; return nil }); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{"old-failed": 10, "old-live": 10, "old-waiting": 10, "young-done": 10, "young-waived": 10}
		if diff := cmp.Diff(want, left); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
}

// TestPurgeRefuses what would make an old record look new.
func TestPurgeRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		purge store.Purge
		want  string
	}{
		{"below the horizon", store.Purge{OlderThan: 30*day - 1, Horizon: 30 * day, Page: 1}, "would look new"},
		{"no horizon", store.Purge{OlderThan: 30 * day, Page: 1}, "no horizon"},
		{"negative", store.Purge{OlderThan: -day, Horizon: -day, Page: 1}, "no horizon"},
		{"no page", store.Purge{OlderThan: day, Horizon: day}, "at least 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			// without a database: it must not get there
			if n, err := test.purge.Run(t.Context(), nil); n != 0 || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%d, %v; want an error with %q", n, err, test.want)
			}
		})
	}
}

// TestPurgeLeavesLockedReceipts for the next time.
func TestPurgeLeavesLockedReceipts(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_receipt (event_id, purpose, created_at)
			SELECT gen_random_uuid(), 'p' || i, now() - i * interval '100 days' FROM generate_series(1, 5) i`); err != nil {
			t.Fatal(err)
		}
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM outbox_receipt WHERE purpose = 'p2' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		if n, err := purgeOf("outbox_receipt").Run(t.Context(), conn); n != 4 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := purgeOf("outbox_receipt").Run(t.Context(), conn); n != 1 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
	})
}

// TestPurgeCanBeStopped between two pages.
func TestPurgeCanBeStopped(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_receipt (event_id, purpose, created_at)
			SELECT gen_random_uuid(), 'p', now() - i * interval '100 days' FROM generate_series(1, 5) i`); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := purgeOf("outbox_receipt")
		p.Pause = time.Hour
		ended := make(chan error, 1)
		go func() {
			n, err := p.Run(ctx, conn)
			if n != 3 {
				t.Errorf("purged %d before the pause", n)
			}
			ended <- err
		}()
		watcher := db.Conn(t)
		pgtest.Eventually(t, "the first page to be gone", func() bool {
			var left int
			err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM outbox_receipt").Scan(&left)
			return err == nil && left == 2
		}, func() string { return "it is not" })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}
