package recovery

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestPin(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		topics := rows.Topics()
		for _, step := range []struct {
			topic         string
			present, want int
		}{
			{"a", 12, 12},
			{"a", 24, 12},
			{"a", 6, 12},
			{"b", 3, 3},
		} {
			got, err := topics.Pin(t.Context(), step.topic, step.present)
			if err != nil || got != step.want {
				t.Errorf("Pin(%s, %d) = %d, %v; want %d", step.topic, step.present, got, err, step.want)
			}
		}
		if _, err := topics.Pin(t.Context(), "none", 0); err == nil {
			t.Error("a count of 0 is pinned")
		}
		// Two instances at once: one waits for the other and takes its count.
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "INSERT INTO public.cdc_relay_topic VALUES ('c', 7, NULL, now())"); err != nil {
			t.Fatal(err)
		}
		pinned := make(chan int)
		go func() {
			got, err := topics.Pin(t.Context(), "c", 8)
			if err != nil {
				t.Errorf("Pin: %v", err)
			}
			pinned <- got
		}()
		watch := db.Conn(t)
		pgtest.Eventually(t, "the second one to wait", func() bool {
			var waiting bool
			err := watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
			return err == nil && waiting
		}, func() string { return "not waiting" })
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-pinned; got != 7 {
			t.Errorf("pinned %d, want the other instance's 7", got)
		}
	})
}

// What a person wants is seen, and pinned by the slot's leader, once.
func TestRepin(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := reconcileRows(t, db)
		topics := rows.Topics()
		wanted := func(want map[string]int) {
			t.Helper()
			got, err := topics.Wanted(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("wanted (-want +got):\n%s", diff)
			}
		}
		exec := func(sql string) {
			t.Helper()
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		wanted(map[string]int{})
		exec(`INSERT INTO public.cdc_relay_topic VALUES ('a', 3, NULL, '2000-01-01'), ('b', 3, 6, '2000-01-01'), ('c', 3, 5, '2000-01-01')`)
		wanted(map[string]int{"b": 6, "c": 5})

		for _, step := range []struct {
			name, topic  string
			wanted, want int
		}{
			{"as wanted", "b", 6, 6},
			{"a second time", "b", 6, 6},
			{"another count is wanted by now", "c", 4, 3},
			{"nothing is wanted any more", "a", 4, 3},
		} {
			if got, err := topics.Repin(t.Context(), step.topic, step.wanted); err != nil || got != step.want {
				t.Errorf("%s: Repin = %d, %v; want %d", step.name, got, err, step.want)
			}
		}
		wanted(map[string]int{"c": 5})
		var changed []string
		if err := conn.QueryRow(t.Context(),
			"SELECT array_agg(topic) FROM public.cdc_relay_topic WHERE changed_at > '2000-01-01'").Scan(&changed); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"b"}, changed); diff != "" {
			t.Errorf("changed_at has moved (-want +got):\n%s", diff)
		}

		exec("UPDATE public.cdc_relay_slot SET epoch = 4")
		if _, err := topics.Repin(t.Context(), "c", 5); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Repin = %v when the epoch has moved, want fault.ErrFenced", err)
		}
		wanted(map[string]int{"c": 5})
	})
}
