package recovery

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

var owner = [16]byte{15: 7}

// reconcileRows are Rows of the leader under epoch 3, walking 5 rows at a time.
func reconcileRows(t *testing.T, db *pgtest.DB) (*Rows, *pgx.Conn) {
	t.Helper()
	db.Migrate(t, "public")
	db.Exec(t, `INSERT INTO public.cdc_relay_slot VALUES ('s1', 3, '00000000-0000-0000-0000-000000000007');
		INSERT INTO public.cdc_relay_lease (slot, epoch, owner) VALUES ('s1', 3, '00000000-0000-0000-0000-000000000007')`)
	rows := New(Config{
		DB: connect(t, db), Table: outboxTable, Slot: "s1", Page: 5, Epoch: 3, Owner: owner,
		Missed: prometheus.NewCounter(prometheus.CounterOpts{Name: "missed"}),
	})
	return rows, db.Conn(t)
}

func unsent(t *testing.T, rows *Rows) []int64 {
	t.Helper()
	ids, err := rows.Unsent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func lowWater(t *testing.T, conn *pgx.Conn) (id int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT coalesce(low_water_id, 0) FROM public.cdc_relay_lease").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestUnsent(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := reconcileRows(t, db)
		if ids := unsent(t, rows); ids != nil {
			t.Errorf("in an empty table: %v", ids)
		}
		for i := range 24 {
			switch status := 2; {
			case i == 0 || i == 2 || i == 16: // ids 1, 3 and 17
				insert(t, conn, 0, nil)
			case i == 4:
				insert(t, conn, 0, "2000-01-01")
			default:
				insert(t, conn, status, nil)
			}
		}
		// A call lists one page and the next call goes on behind it.
		for call, want := range [][]int64{{1, 3}, {17}, {1, 3}, {17}} {
			if diff := cmp.Diff(want, unsent(t, rows)); diff != "" {
				t.Fatalf("call %d (-want +got):\n%s", call, diff)
			}
		}
		db.Exec(t, "UPDATE public.outbox SET send_status = 2")
		for range 2 {
			if ids := unsent(t, rows); ids != nil {
				t.Errorf("when all are SENT: %v", ids)
			}
		}
	})
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := reconcileRows(t, db)
		db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('requeue_%s', 'test_decoding')", db.Name))
		missed, sent := insert(t, conn, 0, nil).ID, insert(t, conn, 2, nil).ID
		parked, locked := insert(t, conn, 0, "infinity").ID, insert(t, conn, 0, nil).ID
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT 1 FROM public.outbox WHERE id = $1 FOR UPDATE", locked); err != nil {
			t.Fatal(err)
		}
		ids := []int64{missed, sent, parked, locked, 1 << 40}
		n, err := rows.Requeue(t.Context(), ids)
		if err != nil || n != 1 {
			t.Errorf("%d rows requeued, %v; want 1", n, err)
		}
		if got := testutil.ToFloat64(rows.cfg.Missed); got != 1 {
			t.Errorf("%v rows counted, want 1", got)
		}
		var messages int
		err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_logical_slot_get_changes('requeue_' || current_database(), NULL, NULL)
			WHERE data LIKE 'message: transactional: 1 prefix: cdc-relay/public.outbox,%content:' || $1::bigint`, missed).Scan(&messages)
		if err != nil || messages != 1 {
			t.Errorf("%d messages in the slot, %v; want 1", messages, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		rows.cfg.Epoch++ // of somebody who does not lead
		if n, err := rows.Requeue(t.Context(), ids); err != nil || n != 0 {
			t.Errorf("%d rows requeued under another epoch, %v; want 0", n, err)
		}
	})
}

// The low-water mark moves behind what was there when it was noted, once that
// is long ago and its transactions have ended, and stops before what is unsent.
func TestLowWaterMark(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := reconcileRows(t, db)
		rows.walk.lowWaterAge = 0
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := insert(t, tx, 2, nil).ID
		insert(t, conn, 2, nil)
		last := insert(t, conn, 2, nil).ID
		for range 3 {
			unsent(t, rows)
		}
		if got := lowWater(t, conn); got != 0 {
			t.Errorf("low-water mark %d while a transaction of then is open, want none", got)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Transactions of other databases count, too: it may take a while.
		walkUntil := func(want int64) {
			t.Helper()
			pgtest.Eventually(t, fmt.Sprintf("a low-water mark of %d", want), func() bool {
				unsent(t, rows)
				return lowWater(t, conn) >= want
			}, func() string { return fmt.Sprint(lowWater(t, conn)) })
			if got := lowWater(t, conn); got != want {
				t.Errorf("low-water mark %d, want %d", got, want)
			}
		}
		walkUntil(last)
		db.Exec(t, fmt.Sprintf("UPDATE public.outbox SET send_status = 0 WHERE id = %d", late))
		if ids := unsent(t, rows); ids != nil {
			t.Errorf("below the mark: %v, want nothing until the walk begins with the first row", ids)
		}
		missed := insert(t, conn, 0, nil).ID
		insert(t, conn, 2, nil)
		walkUntil(missed - 1)
		rows.walk.restart()
		if diff := cmp.Diff([]int64{late, missed}, unsent(t, rows)); diff != "" {
			t.Errorf("from the first row on (-want +got):\n%s", diff)
		}
		unsent(t, rows)
		if got := lowWater(t, conn); got != missed-1 {
			t.Errorf("low-water mark %d after a walk from the first row, want %d: it never falls", got, missed-1)
		}
	})
}
