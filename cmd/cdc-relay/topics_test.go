package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// pinnedTopics is a database with pinned topics, and an operator's way to it.
type pinnedTopics struct {
	admin                *pgx.Conn
	login                string
	environ              []string
	grown, even, missing string // names
	changedAt            string // of all three
}

func newPinnedTopics(t *testing.T, db *pgtest.DB) *pinnedTopics {
	t.Helper()
	db.Migrate(t, "public")
	broker := kafkatest.Broker(t)
	prefix := kafkatest.Name(t)
	p := &pinnedTopics{admin: db.Conn(t), grown: prefix + "-a", even: prefix + "-b", missing: prefix + "-c"}
	kafkatest.Create(t, broker, p.grown, 6, nil)
	kafkatest.Create(t, broker, p.even, 2, nil)
	var dsn string
	p.login, dsn = db.Operator(t)
	p.environ = []string{"CDC_RELAY_POSTGRES__DSN=" + dsn, "CDC_RELAY_PIPELINE=shop", "CDC_RELAY_KAFKA__BROKERS=" + broker}
	_, err := p.admin.Exec(t.Context(), `INSERT INTO cdc_relay_topic (topic, partitions, wanted, changed_at)
		VALUES ($1, 3, NULL, now() - interval '3 hours'), ($2, 2, NULL, now() - interval '3 hours'), ($3, 4, 5, now() - interval '3 hours')`, p.grown, p.even, p.missing)
	if err != nil {
		t.Fatal(err)
	}
	var changedAt time.Time
	if err := p.admin.QueryRow(t.Context(), "SELECT date_trunc('second', min(changed_at)) FROM cdc_relay_topic").Scan(&changedAt); err != nil {
		t.Fatal(err)
	}
	p.changedAt = changedAt.UTC().Format(time.RFC3339)
	if _, err := p.admin.Exec(t.Context(), "UPDATE cdc_relay_topic SET changed_at = date_trunc('second', changed_at)"); err != nil {
		t.Fatal(err)
	}
	return p
}

// changes are the wanted counts and what the audit trail holds.
func (p *pinnedTopics) changes(t *testing.T) []string {
	t.Helper()
	rows, err := p.admin.Query(t.Context(), `SELECT topic || ' ' || wanted FROM cdc_relay_topic WHERE wanted IS NOT NULL AND topic <> $1
		UNION ALL SELECT concat_ws('|', actor, action, reason, filter) FROM cdc_relay_audit`, p.missing)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTopicsList(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		p := newPinnedTopics(t, db)
		table := func(grown, even string) string {
			return fmt.Sprintf("TOPIC%s  PINNED  PRESENT  WANTED  CHANGED_AT\n%s  3       %-7s  -       %[6]s (3.0 h ago)\n"+
				"%[4]s  2       %-7[5]s  -       %[6]s (3.0 h ago)\n%[7]s  4       -        5       %[6]s (3.0 h ago)\n",
				strings.Repeat(" ", len(p.grown)-len("TOPIC")), p.grown, grown, p.even, even, p.changedAt, p.missing)
		}
		got := runCommand(t, p.environ, "topics", "list")
		if diff := cmp.Diff(table("6", "2"), got.stdout); diff != "" || got.code != 0 || got.stderr != "" {
			t.Errorf("code %d, stderr %q, stdout (-want +got):\n%s", got.code, got.stderr, diff)
		}

		var shown struct {
			V        int
			Pipeline string
			Items    []map[string]any
		}
		got = runCommand(t, p.environ, "topics", "list", "--json")
		if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil {
			t.Fatalf("%v: %+v", err, got)
		}
		want := []map[string]any{
			{"topic": p.grown, "pinned": 3.0, "present": 6.0, "wanted": nil, "changed_at": p.changedAt},
			{"topic": p.even, "pinned": 2.0, "present": 2.0, "wanted": nil, "changed_at": p.changedAt},
			{"topic": p.missing, "pinned": 4.0, "present": nil, "wanted": 5.0, "changed_at": p.changedAt},
		}
		if diff := cmp.Diff(want, shown.Items); diff != "" || shown.V != 1 || shown.Pipeline != "shop" {
			t.Errorf("version %d, pipeline %q, items (-want +got):\n%s", shown.V, shown.Pipeline, diff)
		}

		for name, tt := range map[string]struct{ brokers, warning string }{
			"no broker answers":    {"127.0.0.1:1", "warning: present counts are not known: no Kafka broker answers; check kafka.brokers"},
			"no broker configured": {"", "warning: present counts are not known: kafka.brokers is not configured"},
		} {
			got := runCommand(t, append(p.environ[:2:2], "CDC_RELAY_KAFKA__BROKERS="+tt.brokers), "topics", "list")
			if diff := cmp.Diff(table("-", "-"), got.stdout); diff != "" || got.code != 0 || !strings.HasPrefix(got.stderr, tt.warning) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%s: code %d, stderr %q, stdout (-want +got):\n%s", name, got.code, got.stderr, diff)
			}
		}
	})
}

func TestTopicsRepin(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		p := newPinnedTopics(t, db)
		const effect = "once the leader has drained the topic, its keys are spread over 6 partitions instead of 3;\n" +
			"most keys move: let consumers catch up if they must not see a later event of a key first\n"
		tests := []struct {
			name   string
			args   []string
			code   int
			stdout string
			stderr string
		}{
			{"not confirmed", []string{p.grown}, 5, "topic " + p.grown + " can be repinned: " + effect,
				"error: nothing was changed; to do it, run: cdc-relay topics repin " + p.grown + " --confirm 6\n"},
			{"dry run", []string{p.grown, "--confirm", "6", "--dry-run"}, 0, "topic " + p.grown + " can be repinned: " + effect, ""},
			{"another number", []string{p.grown, "--confirm", "3"}, 5, "", "error: topic " + p.grown + " has 6 partitions, not 3: nothing was changed\n"},
			{"zero", []string{p.grown, "--confirm", "0"}, 5, "", "error: topic " + p.grown + " has 6 partitions, not 0: nothing was changed\n"},
			{"nothing to do", []string{p.even, "--confirm", "2"}, 0, "topic " + p.even + " has the 2 partitions that its keys are spread over: nothing to do\n", ""},
			{"not in Kafka", []string{p.missing, "--confirm", "5"}, 4, "", "error: Kafka has no topic " + p.missing + ", or this login may not see it; create it, or grant DESCRIBE on it\n"},
			{"not pinned", []string{"x' OR true; --", "--confirm", "5"}, 4, "",
				"error: topic x' OR true; -- is not pinned: nothing was published to it yet; cdc-relay topics list shows those that are\n"},
			{"no topic", nil, 2, "", "error: accepts 1 arg(s), received 0; run cdc-relay help\n"},
			{"reason with a zero byte", []string{p.grown, "--reason", "a\x00"}, 2, "", "error: --reason is not UTF-8 text; run cdc-relay help\n"},
		}
		for _, tt := range tests {
			got := runCommand(t, p.environ, append([]string{"topics", "repin"}, tt.args...)...)
			if diff := cmp.Diff(result{tt.code, tt.stdout, tt.stderr}, got, cmp.AllowUnexported(result{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
		if left := p.changes(t); len(left) > 0 {
			t.Fatalf("none of this was to change anything: %v", left)
		}

		got := runCommand(t, p.environ, "topics", "repin", p.grown, "--confirm", "6", "--reason", "more load", "--json")
		var answer map[string]any
		if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 0 {
			t.Fatalf("%v: %+v", err, got)
		}
		delete(answer, "at")
		if diff := cmp.Diff(map[string]any{"v": 1.0, "pipeline": "shop", "result": "repinned", "topic": p.grown, "pinned": 3.0, "present": 6.0,
			"wanted": 6.0, "changed_at": p.changedAt}, answer); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		want := []string{p.grown + " 6", p.login + " (" + person() + ")|repin|more load|topic " + p.grown + ": 3 -> 6 partitions"}
		if diff := cmp.Diff(want, p.changes(t)); diff != "" {
			t.Errorf("wanted and audit (-want +got):\n%s", diff)
		}
		if got := runCommand(t, append(p.environ[:2:2], "CDC_RELAY_KAFKA__BROKERS=127.0.0.1:1"), "topics", "repin", p.grown, "--confirm", "6"); got.code != 1 ||
			!strings.HasPrefix(got.stderr, "error: no Kafka broker answers; ") {
			t.Errorf("no broker: %+v", got)
		}
	})
}
