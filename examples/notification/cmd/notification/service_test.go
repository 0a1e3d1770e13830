package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestTheService runs all commands; it takes the relay's part itself. make demo
// shows them with one.
func TestTheService(t *testing.T) {
	t.Parallel()
	db, broker, topic := pgtest.New(t, 18), kafkatest.Broker(t), kafkatest.Name(t)
	db.Migrate(t, "public")
	t.Cleanup(func() { kafkatest.Delete(t, broker, topic) })
	common := settings{
		dsn: db.DSN, keys: aKey, brokers: broker, topics: topic, group: topic, listen: "127.0.0.1:0", metricsListen: "127.0.0.1:0", traces: "log",
	}
	for range 2 { // it can be repeated
		if err := run(t.Context(), []string{"setup"}, common.get, nil); err != nil {
			t.Fatal(err)
		}
	}
	web, mails := start(t, "api", common), start(t, "provider", common)
	common[providerURL] = "http://" + mails.addr
	status := start(t, "consume", common)

	if got, _ := call(t, "POST", "http://"+web.addr+"/users", `{"email": "zoe.quux@example.com"}`); got != 202 {
		t.Fatalf("registering: %d", got)
	}
	conn := db.Conn(t)
	relay(t, conn, broker, topic)
	pgtest.Eventually(t, "the row to be CONSUMED", func() bool { return rowStatus(t, conn) == outbox.Consumed }, func() string {
		return fmt.Sprintf("status %d", rowStatus(t, conn))
	})
	_, mailbox := call(t, "GET", "http://"+mails.addr+"/mailbox", "")
	token := regexp.MustCompile(`token=([A-Za-z0-9_-]{43})`).FindStringSubmatch(mailbox)
	if token == nil || strings.Count(mailbox, `"id"`) != 1 {
		t.Fatalf("mailbox %s", mailbox)
	}
	if got, _ := call(t, "POST", "http://"+web.addr+"/verify", `{"email": "zoe.quux@example.com", "token": "`+token[1]+`"}`); got != 204 {
		t.Errorf("verifying: %d", got)
	}
	if got, body := call(t, "GET", "http://"+status.addr+"/healthz", ""); got != 200 || !strings.Contains(body, topic) {
		t.Errorf("health: %d %s", got, body)
	}
	want := fmt.Sprintf(`cdc_consumer_records_total{outcome="consumed",topic="%s"} 1`, topic)
	if _, body := call(t, "GET", "http://"+status.addr+"/metrics", ""); !strings.Contains(body, want) {
		t.Errorf("no %s in the metrics", want)
	}
	consumed, served := status.stop(), web.stop()
	link := regexp.MustCompile(`"link":"([0-9a-f]{32}/[0-9a-f]{16})"`).FindStringSubmatch(consumed)
	if link == nil || !strings.Contains(served, `"span":"`+link[1]+`"`) {
		t.Errorf("the consumer's span is linked to %v, which is no span of the API", link)
	}
	for _, secret := range []string{"quux", token[1], "AAECAwQF"} {
		if strings.Contains(consumed+served+mails.stop(), secret) {
			t.Errorf("%q is in a log", secret)
		}
	}
}

func rowStatus(t *testing.T, conn *pgx.Conn) (status outbox.Status) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT send_status FROM outbox`).Scan(&status); err != nil {
		t.Fatal(err)
	}
	return status
}

// relay publishes the one row and writes SENT.
func relay(t *testing.T, conn *pgx.Conn, broker, topic string) {
	t.Helper()
	var (
		id         int64
		eventID    string
		key, trace string
		payload    []byte
	)
	err := conn.QueryRow(t.Context(), `UPDATE outbox SET send_status = 2, sent_at = clock_timestamp()
		RETURNING id, event_id::text, aggregate_id, headers->>'traceparent', payload`).Scan(&id, &eventID, &key, &trace, &payload)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: topic, Key: []byte(key), Value: payload, Headers: []kgo.RecordHeader{
		{Key: "ce_id", Value: []byte(eventID)}, {Key: "traceparent", Value: []byte(trace)}, {Key: "cdcr-id", Value: fmt.Append(nil, id)},
	}}
	if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
}
