package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// badEvents have something planted in payload, key and headers, and something
// that Kafka or the relay refuses.
var badEvents = []struct{ code, typ, columns, values string }{
	{"RECORD_TOO_LARGE", "order", "payload, headers", fmt.Sprintf(`convert_to('%[1]s' || repeat('x', %[2]d), 'UTF8'), '{"%[1]s": "%[1]s"}'`, planted, topicLimit)},
	{"TIMESTAMP_INVALID", "order", "payload, headers, created_at", fmt.Sprintf(`'%[1]s', '{"%[1]s": "%[1]s"}', now() - interval '1 h'`, planted)},
	{"TOPIC_NOT_ALLOWED", "order", "payload, headers, topic", fmt.Sprintf(`'%[1]s', '{"%[1]s": "%[1]s"}', 'elsewhere'`, planted)},
	{"TOPIC_UNKNOWN", ghost, "payload, headers", fmt.Sprintf(`'%[1]s', '{"%[1]s": "%[1]s"}'`, planted)},
	{"HEADERS_INVALID", "order", "payload, headers", fmt.Sprintf(`'%[1]s', '{"ce_id": "%[1]s"}'`, planted)},
	{"NULL_PAYLOAD", "order", "payload, headers", fmt.Sprintf(`NULL, '{"%[1]s": "%[1]s"}'`, planted)},
}

// TestFailuresKeepSecrets: whatever is wrong with an event, what is in it is
// told neither by the log, nor by metrics, nor by the row's error.
func TestFailuresKeepSecrets(t *testing.T) {
	t.Parallel()
	b := newGhostBed(t, pgtest.New(t, 18), blocking.With(relayproc.Config{
		"record.timestamp": "event", "retry.max_attempts": 2, "retry.by_type": map[string]any{ghost: map[string]any{"topic_max_attempts": 3}},
	}))
	for name, value := range map[string]int{"max.message.bytes": topicLimit, "message.timestamp.before.max.ms": 600_000} {
		if err := b.Admin.Set(t.Context(), b.Topic("order"), name, fmt.Sprint(value)); err != nil {
			t.Fatal(err)
		}
	}
	p := startProbed(t, b, nil)
	p.waitHealth("/readyz", 200, "streaming", "")
	refused := map[int64]bool{}
	for _, bad := range badEvents {
		aggregate := planted + bad.code
		refused[insertWith(t, b, bad.typ, aggregate, bad.columns, bad.values)] = true
		b.Insert(harness.Row(bad.typ, aggregate, planted)) // has to wait
	}
	b.Wait("all bad ones to be FAILED", func() bool { return b.CountStatus(check.Failed) == len(badEvents) })
	for _, bad := range badEvents {
		if n := b.Count(`SELECT count(*) FROM outbox WHERE error_code = $1 AND send_status = 3 AND error_message <> ''
			AND position($2 IN error_message) = 0 AND aggregate_id = $2 || $1`, bad.code, planted); n != 1 {
			t.Errorf("%d rows have failed with %s and a sentence that tells nothing of them, want 1", n, bad.code)
		}
	}
	texts := map[string]string{"the log": p.Output()}
	for _, path := range []string{"/metrics", "/statusz"} {
		_, body, err := p.get(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(body)
	}
	for what, text := range texts {
		if strings.Contains(text, planted) {
			t.Errorf("%s tells what is in an event", what)
		}
	}
	if n := b.Count(`SELECT attempts FROM outbox WHERE error_code = 'TOPIC_UNKNOWN'`); n != 3 {
		t.Errorf("%d attempts at the missing topic, want the 3 of its aggregate type", n)
	}
	createGhost(t, b) // the checker looks at all topics
	b.Finish(harness.Allow{Refused: refused})
}
