package operate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func failedAt(lsn string) string {
	return "send_status = 3, next_attempt_at = 'infinity', error_code = 'RECORD_TOO_LARGE', commit_lsn = '" + lsn + "'"
}

func heldAt(lsn string) string { return "next_attempt_at = 'infinity', commit_lsn = '" + lsn + "'" }

// Which held rows become due when rows before them are skipped: the first parked
// one of the aggregate, if it stood behind a skipped one.
func TestSkipReleases(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rows []string // of one aggregate
		skip []int    // places among them
		due  []int
	}{
		{"the head", []string{failedAt("0/1"), heldAt("0/2"), heldAt("0/3")}, []int{0}, []int{1}},
		{"in the order of commit, not of ids", []string{heldAt("0/9"), heldAt("0/8"), failedAt("0/7")}, []int{2}, []int{1}},
		{"of one transaction by id", []string{failedAt("0/1"), heldAt("0/1"), heldAt("0/1")}, []int{0}, []int{1}},
		{"another failed one stands there", []string{failedAt("0/1"), failedAt("0/2"), heldAt("0/3")}, []int{0}, nil},
		{"a retry stands there", []string{failedAt("0/1"), "next_attempt_at = now() + interval '1 hour', commit_lsn = '0/2'", heldAt("0/3")}, []int{0}, nil},
		{"both failed ones at once", []string{failedAt("0/1"), failedAt("0/2"), heldAt("0/3")}, []int{0, 1}, []int{2}},
		{"behind one that is on its way already", []string{heldAt("0/1"), failedAt("0/2"), heldAt("0/3")}, []int{1}, nil},
		{"a failure at the consumer", []string{consumeFailed, heldAt("0/3")}, []int{0}, nil},
		{"nothing waits", []string{failedAt("0/1"), ready}, []int{0}, nil},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				other := b.insert(t, "other than "+tt.name, heldAt("0/5"))
				ids := b.insert(t, tt.name, tt.rows...)
				var skip []int64
				for _, place := range tt.skip {
					skip = append(skip, ids[place])
				}
				for _, r := range b.apply(t, Order{Action: Skip, From: failedOnly, Reason: "test"}, skip...) {
					if r.Outcome != Skipped {
						t.Errorf("result: %+v", r)
					}
				}
				var due []int
				for place, id := range ids {
					if strings.HasSuffix(b.row(t, id), "due now") {
						due = append(due, place)
					}
				}
				if diff := cmp.Diff(tt.due, due, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("due rows (-want +got):\n%s", diff)
				}
				if !strings.HasSuffix(b.row(t, other[0]), "due infinity") {
					t.Errorf("the row of another aggregate: %s", b.row(t, other[0]))
				}
			})
		}
	})
}

// Whatever becomes due is told to the relay, by the trigger, in the same
// transaction.
func TestRelayIsTold(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			// A slot's creation waits for all transactions of the cluster.
			b := newBench(t, pgtest.StartCluster(t, version).New(t))
			ids := b.insert(t, "a", failedAt("0/1"), heldAt("0/2"))
			ids = append(ids, b.insert(t, "b", publishFailed)...)
			b.exec(t, "SELECT pg_create_logical_replication_slot('looker', 'test_decoding')")
			b.apply(t, Order{Action: Skip, From: failedOnly, Reason: "test"}, ids[0])
			b.apply(t, Order{Action: Replay, From: failedOnly}, ids[2])
			rows, err := b.admin.Query(t.Context(), `SELECT data FROM pg_logical_slot_get_changes('looker', NULL, NULL) WHERE data LIKE 'message:%'`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			var got []string
			for rows.Next() {
				var data string
				if err := rows.Scan(&data); err != nil {
					t.Fatal(err)
				}
				got = append(got, data)
			}
			var want []string
			for _, id := range []int64{ids[1], ids[2]} {
				content := fmt.Sprint(id)
				want = append(want, fmt.Sprintf("message: transactional: 1 prefix: cdc-relay/public.outbox, sz: %d content:%s", len(content), content))
			}
			if diff := cmp.Diff(want, got); diff != "" || rows.Err() != nil {
				t.Errorf("%v, messages (-want +got):\n%s", rows.Err(), diff)
			}
		})
	}
}

// A held row that somebody has locked does not keep the skip waiting: the relay
// finds it at its next look.
func TestSkipBeforeALockedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", failedAt("0/1"), heldAt("0/2"))
		tx, err := b.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		if _, err := tx.Exec(t.Context(), "SELECT FROM outbox WHERE id = $1 FOR UPDATE", ids[1]); err != nil {
			t.Fatal(err)
		}
		if got := outcomes(b.apply(t, Order{Action: Skip, From: failedOnly, Reason: "test"}, ids[0])); got[0] != "skipped FAILED" {
			t.Errorf("results: %v", got)
		}
		if !strings.HasSuffix(b.row(t, ids[1]), "due infinity") {
			t.Errorf("the locked row: %s", b.row(t, ids[1]))
		}
	})
}

// The statements find their rows by index, on a table that was never analysed
// and in an aggregate with very many parked rows.
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		b.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)")
		b.exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, send_status, next_attempt_at, commit_lsn)
			SELECT 'order', 'hot', 'created', '{}', CASE g WHEN 1 THEN 3 ELSE 0 END, 'infinity', ('0/' || to_hex(g))::pg_lsn FROM generate_series(1, 50000) g`)
		ids := []int64{1, 2, 3, 4, 5, 6, 7, 8}
		for _, test := range []struct {
			name    string
			sql     string
			args    []any
			buffers int
			index   string
		}{
			{"skip", changeText(Skip, ""), []any{ids, []int16{3}, false, "p", "skip", "r", "f"}, 400, "outbox_pkey"},
			{"skip without locked rows", changeText(Skip, "SKIP LOCKED"), []any{ids, []int16{3}, false, "p", "skip", "r", "f"}, 400, "outbox_pkey"},
			{"release", touchSQL, []any{ids, []string{"0/1", "0/1", "0/1", "0/1", "0/1", "0/1", "0/1", "0/1"}}, 400, "outbox_parked_idx"},
			{"look", lookSQL, []any{ids}, 400, "outbox_pkey"},
		} {
			plan := b.explain(t, test.sql, test.args)
			if strings.Contains(plan, "Seq Scan on outbox") || !strings.Contains(plan, test.index) {
				t.Errorf("%s does not go by %s:\n%s", test.name, test.index, plan)
			}
			var hits, reads int
			_, line, _ := strings.Cut(plan, "Buffers: shared")
			line, _, _ = strings.Cut(line, "\n")
			for field := range strings.FieldsSeq(line) {
				fmt.Sscanf(field, "hit=%d", &hits)
				fmt.Sscanf(field, "read=%d", &reads)
			}
			if hits+reads == 0 || hits+reads > test.buffers {
				t.Errorf("%s touches %d pages:\n%s", test.name, hits+reads, plan)
			}
		}
	})
}

// explain runs a statement, takes it back and returns its plan.
func (b *bench) explain(t *testing.T, sql string, args []any) string {
	t.Helper()
	tx, err := b.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+b.actions.table.sql(sql), args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(line + "\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}
