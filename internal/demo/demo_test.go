package main

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestDemo(t *testing.T) {
	t.Parallel()
	pgtest.Env(t, "CDC_TEST_PG18_DSN")
	pgtest.Env(t, "CDC_TEST_KAFKA")
	if err := demo(t.Context(), harness.Binary(t, harness.Plain)); err != nil {
		t.Error(err)
	}
}

func TestDemoRemovesWhatItMadeWhenItFails(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, 18)
	pgtest.Env(t, "CDC_TEST_KAFKA")
	count := func() (n int) {
		if err := db.Conn(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'cdc\_demo\_%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	w, err := newWorld(t.Context(), "/no/such/program")
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v, want one that names the program", err)
	}
	if count() == 0 {
		t.Error("no database was made")
	}
	name := w.name
	if err := w.remove(t.Context()); err != nil {
		t.Error(err)
	}
	var left bool
	if err := db.Conn(t).QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left {
		t.Errorf("database %s is left", name)
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	good := func() *report {
		retries := float64(lateEvents * lateAttempts)
		return &report{
			mails: mails{accepted: registrations, attempts: registrations + 2, refused: 1, lost: 1, verified: registrations},
			sent:  events, requeued: requeues{delayed: delayedEvents, retries: retries, received: delayedEvents + retries},
			check: &check.Report{Committed: events, Records: events, Statuses: map[int16]int{check.Consumed: events}},
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(*report)
		ok    bool
	}{
		{"all agree", func(*report) {}, true},
		{"one not consumed", func(r *report) { r.check.Statuses[check.Consumed]-- }, false},
		{"one not SENT", func(r *report) { r.sent-- }, false},
		{"a record too many", func(r *report) { r.check.Records++ }, false},
		{"one not written", func(r *report) { r.check.Committed-- }, false},
		{"the delayed event too early", func(r *report) { r.late = -time.Millisecond }, false},
		{"the delayed event not requeued", func(r *report) { r.requeued.delayed--; r.requeued.received-- }, false},
		{"too few retries", func(r *report) { r.requeued.retries--; r.requeued.received-- }, false},
		{"a retry more", func(r *report) { r.requeued.retries++; r.requeued.received++ }, true},
		{"one not back through the WAL", func(r *report) { r.requeued.received-- }, false},
		{"an e-mail missing", func(r *report) { r.mails.accepted-- }, false},
		{"an e-mail too many", func(r *report) { r.mails.surplus++ }, false},
		{"a token that did not work", func(r *report) { r.mails.verified-- }, false},
		{"nothing refused", func(r *report) { r.mails.refused-- }, false},
		{"no answer lost", func(r *report) { r.mails.lost-- }, false},
		{"more attempts", func(r *report) { r.mails.attempts++; r.mails.lost++ }, true},
		{"a broken promise", func(r *report) { r.check.Problems = []check.Problem{{Kind: check.Disorder, Text: "x"}} }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := good()
			tc.spoil(r)
			if err := r.verdict(); (err == nil) != tc.ok {
				t.Errorf("verdict %v, want success %t", err, tc.ok)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i)
	}
	for _, tc := range []struct {
		name   string
		sorted []time.Duration
		q      float64
		want   time.Duration
	}{
		{"nothing", nil, 0.5, 0},
		{"one", []time.Duration{7}, 0.99, 7},
		{"the median", hundred, 0.5, 50},
		{"the last", hundred, 1, 99},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := quantile(tc.sorted, tc.q); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
