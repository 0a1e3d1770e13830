package e2e

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestFrozenWithARequestInFlight: a slow broker owes the leader an answer when
// it freezes. Once another one leads, it publishes nothing more and writes no
// SENT, whatever becomes of that request: at most this one request of it is
// appended late, with an event that its successor publishes anyway.
func TestFrozenWithARequestInFlight(t *testing.T) {
	t.Parallel()
	kafka, valve := harness.StartValvedBroker(t)
	for _, tc := range []struct {
		name string
		hold harness.Direction
		meet func() // what the request meets after the takeover
		late int    // batches
	}{
		{"stored, its answer comes late", harness.Answers, valve.Release, 0},
		{"stored, its answer is lost", harness.Answers, valve.Cut, 0},
		{"it comes late to the broker", harness.Requests, valve.Release, 1},
	} {
		t.Run(tc.name, func(t *testing.T) { // one after the other: they share the valve
			const queued = 5
			b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: kafka, Types: []string{"order"}, Config: quickTakeover})
			watchTerms(b)
			watchSENT(b)
			streams := makeLogin(t, b, "streams", "REPLICATION")
			oldLogin, newLogin := makeLogin(t, b, "old", ""), makeLogin(t, b, "new", "")
			old := b.StartStreaming(logins(b, oldLogin, streams))
			b.Write(50, 8)
			b.Settle()

			valve.Hold(tc.hold)
			t.Cleanup(valve.Release)
			b.InsertOne(harness.Row("order", "order-0", "in flight"))
			b.Wait("the request to be held", func() bool { return valve.Held() == 1 })
			for range queued { // behind it, in the same partition
				b.InsertOne(harness.Row("order", "order-0", "queued"))
			}
			b.Wait("all of it in the relay", func() bool { return old.Counter("inflight_events") == 1+queued })
			produced := valve.Produced()
			freeze(t, old)
			next := b.Start(logins(b, newLogin, streams).With(relayproc.Config{"kafka.brokers": []string{kafka.Test}})) // past the valve
			next.WaitState("streaming")
			b.Wait("the new leader to publish it all", func() bool { return b.CountStatus(check.Sent) == 50+1+queued })
			tc.meet()
			thaw(t, old)
			old.WaitState("standby")

			b.Settle()
			if n := valve.Produced() - produced; n != 0 {
				t.Errorf("%d requests of the old leader after it was replaced, want none", n)
			}
			late := check.Late(batches(t, b))
			if len(late) != tc.late || tc.late == 1 && late[0].Records != 1 {
				t.Errorf("batches that came late: %+v, want %d of one record", late, tc.late)
			}
			if n := b.Count(`SELECT count(*) FROM sent JOIN term ON epoch = 2 WHERE login = $1 AND at > taken`, oldLogin); n != 0 {
				t.Errorf("the old leader wrote SENT for %d rows after it had lost the slot", n)
			}
			b.Finish(harness.Allow{Duplicates: 1}) // the event in flight
		})
	}
}

// TestFrozenBeforeSENT: a leader freezes while it waits to write SENT for an
// event that Kafka has acknowledged. When it moves again it tries once more,
// before it can know that it was replaced, and must not succeed: that its
// successor has published the event as well is not for it to say.
func TestFrozenBeforeSENT(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: quickTakeover})
		old := b.StartStreaming(nil)
		b.Write(50, 8)
		b.Settle()

		unlock := lockSlotRow(t, b, "cdc_relay_slot")
		acked := old.Counter("events_acked_total")
		id := b.InsertOne(harness.Row("order", "order-0", "{}"))
		b.Wait("its ack", func() bool { return old.Counter("events_acked_total") > acked })
		row := lockRow(t, b, id)
		unlock()
		freeze(t, old)
		next := b.Start(nil)
		b.Wait("the new leader to publish it again", func() bool { return next.Counter("events_acked_total") == 1 })
		freeze(t, next)
		b.Wait("the end of what they had begun", func() bool {
			return b.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0
		})
		exec(t, row, `COMMIT`)

		// Else the old leader may learn it from the lease. A lock of the row would not do:
		// a renewal that no longer finds its epoch waits for nobody.
		unlock = lockTable(t, b, "cdc_relay_lease")
		thaw(t, old)
		b.Wait("the old leader to meet the fence", func() bool {
			return old.Counter(`status_writes_total{result="fenced",to="SENT"}`) == 1
		})
		if n := b.CountStatus(check.Sent); n != 50 {
			t.Errorf("%d rows are SENT, want the 50 of before", n)
		}
		unlock()
		thaw(t, next)
		b.Finish(harness.Allow{Duplicates: 2}) // the lease may have run out once more
	})
}

// quickTakeover makes takeovers happen in seconds, and so a pause in
// publishing, which is no fault, on a machine that is busy.
var quickTakeover = relayproc.Config{
	"lease.ttl": "2s", "lease.takeover_after": "1s", "lease.publish_within": "500ms", "lease.renew_interval": "150ms",
}
