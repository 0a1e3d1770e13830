package store_test

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestFirstAttemptsStayHOT: the claim and the end of an ordinary event make no
// new index entry, one by one or in small chunks; a chunk of 100 is more than
// the room on its pages. A server of its own: a snapshot held anywhere else
// keeps dead versions on their pages.
func TestFirstAttemptsStayHOT(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, version, "autovacuum = off", "fsync = off")
			for _, k := range []kind{kinds[0], kinds[2]} {
				t.Run(k.name, func(t *testing.T) {
					f := setup(t, cluster.New(t), k)
					for range 150 {
						const chunk = 3
						list, err := f.Claim(t.Context(), f.events(t, chunk))
						if err != nil || len(list) != chunk {
							t.Fatalf("claimed %d, %v", len(list), err)
						}
						held := make([]store.Held, chunk)
						for i, c := range list {
							held[i] = c.Held()
						}
						if kept, err := f.Done(t.Context(), held); len(kept) != chunk || err != nil {
							t.Fatalf("completed %d, %v", len(kept), err)
						}
					}
					f.pool.Close() // a session tells its statistics at its end at the latest
					var updated, hot int
					pgtest.Eventually(t, "the statistics to arrive", func() bool {
						updates := 450 // of receipts the claim is an INSERT
						if !k.receipts() {
							updates = 900
						}
						err := f.admin.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", k.table).
							Scan(&updated, &hot)
						return err == nil && updated >= updates
					}, func() string { return fmt.Sprint(updated) })
					if hot != updated {
						t.Errorf("%d of %d updates were HOT", hot, updated)
					}
				})
			}
		})
	}
}
