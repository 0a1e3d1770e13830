package recovery

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// logged is a log that a test reads while somebody writes it.
type logged struct{ text atomic.Value }

func (l *logged) Write(p []byte) (int, error) {
	text, _ := l.text.Load().(string)
	l.text.Store(text + string(p))
	return len(p), nil
}

func (l *logged) String() string {
	text, _ := l.text.Load().(string)
	return text
}

// newSweep is the sweep of the leader under epoch 3, walking 5 rows at a time,
// for claims whose lease has been over for five minutes.
func newSweep(t *testing.T, db *pgtest.DB) (*Sweep, *pgx.Conn, *logged) {
	t.Helper()
	rows, conn := reconcileRows(t, db)
	log := &logged{}
	s := NewSweep(rows.cfg, SweepConfig{
		Every: 10 * time.Millisecond, After: 5 * time.Minute,
		Swept: prometheus.NewCounter(prometheus.CounterOpts{Name: "swept"}),
	}, slog.New(slog.NewTextHandler(log, nil)))
	return s, conn, log
}

// claimSQL inserts a row as its consumer left it; the lease has been over for
// so many seconds.
const claimSQL = `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, send_status, sent_at, attempts,
		claim_generation, claimed_by, lease_until, next_attempt_at, error_code)
	VALUES ('t', 'a', 'e', '{}', $1, now() - interval '1 hour', 2, $2, 'worker-1', now() - $3 * interval '1 second',
		$4::text::timestamptz, $5) RETURNING id`

func claim(t *testing.T, conn querier, status, generation, over int, due, code any) (id int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), claimSQL, status, generation, over, due, code).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// sweepOnce walks over the table once.
func sweepOnce(t *testing.T, s *Sweep) {
	t.Helper()
	for first := true; first || s.walk.underway; first = false {
		if err := s.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func query(t *testing.T, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func TestSweep(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, log := newSweep(t, db)
		db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('sweep_%s', 'test_decoding')", db.Name))
		const long, short, live = 301, 290, -30
		for _, row := range []struct {
			status, generation, over int
			due, code                any
		}{
			{0, 1, long, nil, nil},                    // 1
			{2, 1, long, nil, nil},                    // 2: SENT is never swept
			{2, 1, long, "2000-01-01", nil},           // 3: nor while it waits for another attempt
			{3, 1, long, "infinity", "CONSUMER_DATA"}, // 4
			{3, 1, long, nil, "CONSUMER_DATA"},        // 5
			{4, 1, long, nil, nil},                    // 6
			{5, 1, live, nil, nil},                    // 7
			{5, 1, short, nil, nil},                   // 8: somebody may still take it over
			{5, 7, long, nil, "CONSUMER_SYSTEM"},      // 9: stranded
			{5, 1, long, "2000-01-01", nil},           // 10: stranded, after a delay
			{5, 1, long, nil, nil},                    // 11: locked
			{5, 2, long, nil, "CONSUMER_ABANDONED"},   // 12: stranded, on another page
			{2, 0, live, "2100-01-01", nil},           // 13
		} {
			claim(t, conn, row.status, row.generation, row.over, row.due, row.code)
		}
		db.Exec(t, "UPDATE public.outbox SET commit_lsn = '0/1' WHERE id = 10")
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 11 FOR NO KEY UPDATE"); err != nil {
			t.Fatal(err)
		}
		others := `SELECT md5(string_agg(o::text, ',' ORDER BY id)) FROM public.outbox o WHERE id NOT IN (9, 10, 12)`
		whole := NewSweep(s.rows, s.cfg, s.log)
		whole.rows.Page = 100
		ids, open, last, err := whole.page(t.Context())
		if diff := cmp.Diff([]int64{9, 10, 11, 12}, ids); err != nil || diff != "" || open != 1 || last != 13 {
			t.Errorf("%v, the first open row is %d and the last one %d, stranded (-want +got):\n%s", err, open, last, diff)
		}
		before := query(t, conn, others)
		began := query(t, conn, "SELECT clock_timestamp()::text")
		sweepOnce(t, s)

		if after := query(t, conn, others); after != before {
			t.Error("rows that are not stranded, or locked, were changed")
		}
		const stranded = `SELECT string_agg(concat_ws(' ', id, send_status, attempts, claim_generation, error_code,
				sent_at IS NULL AND claimed_by IS NULL AND lease_until IS NULL AND commit_lsn IS NULL AND next_attempt_at >= $1::text::timestamptz),
			', ' ORDER BY id) FROM public.outbox WHERE id IN (9, 10, 12)`
		want := "9 0 0 7 CONSUMER_ABANDONED t, 10 0 0 1 CONSUMER_ABANDONED t, 12 0 0 2 CONSUMER_ABANDONED t"
		if got := query(t, conn, stranded, began); got != want {
			t.Errorf("stranded rows are\n%s, want\n%s", got, want)
		}
		audited := query(t, conn, `SELECT string_agg(concat_ws(' ', a.id, a.action, a.actor = session_user || ' (cdc-relay)', o.event_id = a.event_id,
				regexp_replace(a.reason, '\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', 'T')), ', ' ORDER BY a.id)
			FROM public.cdc_relay_audit a JOIN public.outbox o USING (id)`)
		const since = " of worker-1: its lease has been over since T"
		want = "9 sweep t t claim 7" + since + ", 10 sweep t t claim 1" + since + ", 12 sweep t t claim 2" + since
		if audited != want {
			t.Errorf("audited is\n%s, want\n%s", audited, want)
		}
		messages := query(t, conn, `SELECT string_agg(substring(data FROM 'content:(\d+)'), ' ') FROM pg_logical_slot_get_changes('sweep_' || current_database(), NULL, NULL)
			WHERE data LIKE 'message: transactional: 1 prefix: cdc-relay/public.outbox,%'`)
		if messages != "9 10 12" {
			t.Errorf("messages in the slot are of %s, want those of the stranded rows", messages)
		}
		if got := testutil.ToFloat64(s.cfg.Swept); got != 3 {
			t.Errorf("%v rows counted, want 3", got)
		}
		if !strings.Contains(log.String(), `level=WARN`) || !strings.Contains(log.String(), `rows=2 ids="[9 10]"`) {
			t.Errorf("logged %q, want the rows of each page", log)
		}

		s.rows.Epoch++ // of somebody who does not lead
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		sweepOnce(t, s)
		if got := query(t, conn, "SELECT send_status::text FROM public.outbox WHERE id = 11"); got != "5" {
			t.Errorf("a row has status %s after the sweep of another epoch, want it left alone", got)
		}
		s.rows.Epoch--
		sweepOnce(t, s)
		if got := query(t, conn, "SELECT send_status::text FROM public.outbox WHERE id = 11"); got != "0" {
			t.Errorf("a row that was locked has status %s after the next sweep, want 0", got)
		}
	})
}

// A row that its consumer finishes while a sweep looks at it is not swept.
func TestSweepIsGuarded(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		done, renewed := claim(t, conn, 5, 1, 400, nil, nil), claim(t, conn, 5, 1, 400, nil, nil)
		if err := s.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ids, _, _, err := s.page(t.Context())
		if diff := cmp.Diff([]int64{done, renewed}, ids); err != nil || diff != "" {
			t.Fatalf("%v, stranded (-want +got):\n%s", err, diff)
		}
		db.Exec(t, fmt.Sprintf(`UPDATE public.outbox SET send_status = 4 WHERE id = %d;
			UPDATE public.outbox SET lease_until = now() + interval '30 s', claim_generation = 2 WHERE id = %d`, done, renewed))
		if err := s.requeue(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		if got := query(t, conn, "SELECT string_agg(send_status::text, ' ' ORDER BY id) FROM public.outbox"); got != "4 5" {
			t.Errorf("rows are %s, want them as their consumers left them", got)
		}
		if n := query(t, conn, "SELECT count(*)::text FROM public.cdc_relay_audit"); n != "0" {
			t.Errorf("%s rows audited, want none", n)
		}
	})
}

// A row that cannot be swept holds up only those of its page, and the next walk
// finds it again.
func TestSweepRefused(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		s.walk.lowWaterAge = 0
		const page = 5
		for range 2 * page {
			claim(t, conn, 5, 1, 400, nil, nil)
		}
		db.Exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON public.outbox FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION public.refuse()`)
		for walk, want := range []string{"5 5 5 5 5 0 0 0 0 0", "0 0 0 0 0 0 0 0 0 0"} {
			if walk == 1 {
				db.Exec(t, "DROP TRIGGER refuse ON public.outbox")
			}
			var errs []error
			for first := true; first || s.walk.underway; first = false {
				if err := s.step(t.Context()); err != nil {
					errs = append(errs, err)
				}
			}
			if len(errs) != 1-walk || walk == 0 && !strings.Contains(errs[0].Error(), "not this one") {
				t.Errorf("walk %d: %v", walk, errs)
			}
			if got := query(t, conn, "SELECT string_agg(send_status::text, ' ' ORDER BY id) FROM public.outbox"); got != want {
				t.Errorf("walk %d: rows are %s, want %s", walk, got, want)
			}
		}
	})
}

// A login without the documented rights is told which ones.
func TestSweepWithoutRights(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		claim(t, conn, 5, 1, 400, nil, nil)
		login, _ := db.Consumer(t)
		db.Exec(t, "GRANT SELECT ON public.cdc_relay_slot, public.cdc_relay_lease TO "+login)
		if _, err := s.rows.DB.Exec(t.Context(), "SET ROLE "+login); err != nil {
			t.Fatal(err)
		}
		if err := s.step(t.Context()); err == nil || !strings.Contains(err.Error(), "INSERT on cdc_relay_audit") {
			t.Errorf("%v, want the right that is missing", err)
		}
	})
}

// A page with more stranded rows than one transaction takes.
func TestSweepOfMany(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		s.rows.Page = 5000
		const n = 2*sweepBatch + 1
		db.Exec(t, fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, send_status, sent_at, claim_generation, lease_until)
			SELECT 't', 'a', 'e', 5, now(), 1, now() - interval '1 hour' FROM generate_series(1, %d)`, n))
		sweepOnce(t, s)
		if got := testutil.ToFloat64(s.cfg.Swept); got != n {
			t.Errorf("%v rows counted, want %d", got, n)
		}
		if got := query(t, conn, "SELECT count(DISTINCT xmin::text) || ' ' || count(*) FROM public.outbox WHERE send_status = 0"); got != fmt.Sprintf("3 %d", n) {
			t.Errorf("transactions and rows: %s, want 3 %d", got, n)
		}
	})
}

// The mark of claims passes what consumers are done with, and nothing else.
func TestConsumerLowWaterMark(t *testing.T) {
	t.Parallel()
	const settled = 3
	for _, tc := range []struct {
		name   string
		status int
		stops  bool
	}{
		{"READY", 0, true}, {"INPROGRESS", 1, true}, {"SENT", 2, true}, {"FAILED", 3, false}, {"CONSUMED", 4, false}, {"CONSUMING", 5, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, 18)
			s, conn, _ := newSweep(t, db)
			s.walk.lowWaterAge = 0
			for range settled {
				claim(t, conn, 4, 1, -30, nil, nil)
			}
			claim(t, conn, tc.status, 1, -30, nil, nil)
			last := claim(t, conn, 4, 1, -30, nil, nil)
			want := last
			if tc.stops {
				want = settled
			}
			mark := func() int64 {
				var id int64
				if err := conn.QueryRow(t.Context(), "SELECT coalesce(consumer_low_water_id, 0) FROM public.cdc_relay_lease").Scan(&id); err != nil {
					t.Fatal(err)
				}
				return id
			}
			// Transactions of other databases count, too: it may take a while.
			pgtest.Eventually(t, fmt.Sprintf("a mark of %d", want), func() bool {
				sweepOnce(t, s)
				return mark() >= want
			}, func() string { return fmt.Sprint(mark()) })
			if got := mark(); got != want {
				t.Errorf("mark %d, want %d", got, want)
			}
			if got := lowWater(t, conn); got != 0 {
				t.Errorf("the mark of reconcile is %d, want it left alone", got)
			}
		})
	}
}

// What is below the mark is looked at by the walk from the first row on.
func TestSweepBelowTheMark(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		replayed := claim(t, conn, 5, 1, 400, nil, nil)
		db.Exec(t, fmt.Sprintf("UPDATE public.cdc_relay_lease SET consumer_low_water_id = %d", replayed))
		status := func() string { return query(t, conn, "SELECT send_status::text FROM public.outbox") }
		sweepOnce(t, s)
		if got := status(); got != "5" {
			t.Errorf("status %s after a walk from the mark, want it not looked at", got)
		}
		s.walk.restart()
		sweepOnce(t, s)
		if got := status(); got != "0" {
			t.Errorf("status %s after a walk from the first row, want 0", got)
		}
	})
}

// A table whose events nobody claims is not walked over all the time: only its
// oldest and newest rows are looked at, until one was claimed.
func TestSweepOfATableWithoutClaims(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		for range 40 {
			insert(t, conn, 2, nil)
		}
		pages := func() (n int) {
			for first := true; first || s.walk.underway; first = false {
				if err := s.step(t.Context()); err != nil {
					t.Fatal(err)
				}
				n++
			}
			return n
		}
		claimed := func(id int) {
			t.Helper()
			db.Exec(t, fmt.Sprintf(`UPDATE public.outbox SET send_status = 5, claim_generation = 1, lease_until = now() - interval '1 hour' WHERE id = %d`, id))
		}
		swept := func() int { return int(testutil.ToFloat64(s.cfg.Swept)) }
		const whole, ends = 9, 3 // the last page is empty
		if n := pages(); n != whole {
			t.Errorf("the first walk had %d pages, want %d", n, whole)
		}
		if n := pages(); n != ends {
			t.Errorf("the second walk had %d pages, want %d", n, ends)
		}
		for _, step := range []struct {
			name string
			id   int
			walk int // pages of the walk that meets it
		}{
			{"a first claim among the oldest rows", 2, whole},
			{"a first claim among the newest rows", 38, ends},
		} {
			db.Exec(t, "UPDATE public.outbox SET send_status = 2, claim_generation = 0, next_attempt_at = NULL")
			pages()
			claimed(step.id)
			claimed(20)
			before := swept()
			if n := pages(); n != step.walk {
				t.Errorf("%s: met by a walk of %d pages, want %d", step.name, n, step.walk)
			}
			if n := pages(); n != whole || swept() != before+2 {
				t.Errorf("%s: the next walk had %d pages and %d rows were swept by then, want %d and 2", step.name, n, swept()-before, whole)
			}
			db.Exec(t, "UPDATE public.outbox SET claim_generation = 0")
			pages()
		}
		db.Exec(t, "UPDATE public.outbox SET send_status = 2, claim_generation = 0, next_attempt_at = NULL")
		pages()
		claimed(20)
		s.walk.restart()
		if n := pages(); n != whole || swept() != 5 {
			t.Errorf("the walk from the first row on had %d pages, %d rows swept, want %d and 5", n, swept(), whole)
		}
	})
}

func TestSweepRuns(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, log := newSweep(t, db)
		claim(t, conn, 5, 1, 400, nil, nil)
		db.Exec(t, "ALTER TABLE public.cdc_relay_audit RENAME TO away")
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		ended := make(chan error, 1)
		go func() {
			ended <- s.Run(ctx, func() bool {
				if asked++; asked == 3 && log.String() != "" {
					t.Errorf("it looked before the line was accepting: %s", log)
				}
				return asked > 3
			})
		}()
		state := func() string { return log.String() }
		pgtest.Eventually(t, "a warning", func() bool { return strings.Contains(log.String(), "trying again") }, state)
		if got := query(t, conn, "SELECT send_status::text FROM public.outbox"); got != "5" {
			t.Errorf("status %s though it cannot be audited, want 5", got)
		}
		db.Exec(t, "ALTER TABLE public.away RENAME TO cdc_relay_audit")
		pgtest.Eventually(t, "the row to be swept", func() bool {
			return query(t, conn, "SELECT send_status::text FROM public.outbox") == "0"
		}, state)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v, want nil", err)
		}
	})
}

// The statements find their rows by the primary key, whatever was planned while
// the table was empty.
func TestSweepNeverScansTheTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		s, conn, _ := newSweep(t, db)
		s.rows.Page = 1000
		for range 10 { // more often than custom plans are tried
			sweepOnce(t, s)
			if err := s.requeue(t.Context(), []int64{1}); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, conn, 20_000)
		if _, err := conn.Exec(t.Context(), `UPDATE public.outbox SET send_status = 5, claim_generation = 1,
			lease_until = now() - interval '1 hour' WHERE id % 1000 = 7`); err != nil {
			t.Fatal(err)
		}
		scans := `SELECT seq_tup_read::text FROM pg_stat_user_tables WHERE relname = 'outbox'`
		flushStatistics(t, conn) // the update's own scan is counted before
		before := query(t, conn, scans)
		sweepOnce(t, s)
		flushStatistics(t, s.rows.DB.(*pgx.Conn))
		if got := testutil.ToFloat64(s.cfg.Swept); got != 20 {
			t.Errorf("%v rows swept, want 20", got)
		}
		if after := query(t, conn, scans); after != before {
			t.Errorf("%s rows had been read by scans of the table before, %s after", before, after)
		}
	})
}

// flushStatistics makes a session tell what it has counted: that goes out between
// statements.
func flushStatistics(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, sql := range []string{"SELECT pg_stat_force_next_flush()", "SELECT 1"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// A table whose columns have other names.
func TestSweepOfAMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := reconcileRows(t, db)
		cfg := rows.cfg
		cfg.Columns = map[string]string{}
		var sql bytes.Buffer
		for _, name := range []string{"id", "event_id", "send_status", "next_attempt_at", "commit_lsn", "attempts", "sent_at",
			"claim_generation", "claimed_by", "lease_until", "error_code", "error_message"} {
			cfg.Columns[name] = "My " + name
			fmt.Fprintf(&sql, `ALTER TABLE public.outbox RENAME COLUMN %s TO "My %[1]s";`, name)
		}
		claim(t, conn, 5, 1, 400, nil, nil)
		// the trigger's function names the column
		db.Exec(t, "ALTER TABLE public.outbox DISABLE TRIGGER outbox_requeue;"+sql.String())
		s := NewSweep(cfg, SweepConfig{After: time.Minute, Swept: prometheus.NewCounter(prometheus.CounterOpts{Name: "swept"})}, slog.New(slog.DiscardHandler))
		sweepOnce(t, s)
		if got := query(t, conn, `SELECT "My send_status" || ' ' || "My error_code" FROM public.outbox`); got != "0 CONSUMER_ABANDONED" {
			t.Errorf("the row is %s, want it swept", got)
		}
	})
}
