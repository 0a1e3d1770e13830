package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
)

// TestProviderUnavailable: what the provider does not take is tried again, for
// as long as it takes, and the other partitions go on.
func TestProviderUnavailable(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Partitions: 4, Consumer: consumerproc.Config{Mode: mode, RetryBase: 200 * time.Millisecond}})
		events := b.Insert(inPartitions(4)...)
		faulty := map[string]struct {
			ev   *consumerbed.Event
			do   provider.Fault
			code string // after an attempt
			met  bool   // the provider answers
		}{
			"unreachable": {&events[0], provider.Fault{Do: provider.Refuse}, "CONSUMER_AMBIGUOUS", false},
			"5xx":         {&events[1], provider.Fault{Do: provider.Status, Status: http.StatusServiceUnavailable}, "CONSUMER_AMBIGUOUS", true},
			"429":         {&events[2], provider.Fault{Do: provider.Throttle, Milliseconds: 1000}, "CONSUMER_SYSTEM", true},
		}
		var faults []provider.Fault
		for _, f := range faulty {
			f.do.Match = f.ev.ID.String()
			faults = append(faults, f.do)
		}
		b.Faults(faults...)
		b.Publish(events)
		p := b.Start()
		b.WaitCommitted(events[3])
		for name, f := range faulty {
			b.Wait(name+": several attempts", func() bool { return b.Facts(*f.ev).Attempts > 1 })
			p.WaitReason(f.ev.PartitionName, consumer.WaitingDelay)
			facts := b.Facts(*f.ev)
			if facts.Code != f.code || facts.Accepted != 0 || !f.met && facts.Received != 0 {
				t.Errorf("%s: after failed attempts %+v, want code %s and nothing accepted", name, facts, f.code)
			}
			b.WantStays(name, *f.ev)
		}

		b.Faults()
		b.Finish(consumerbed.Arranged{})
		for name, f := range faulty {
			n := b.Facts(*f.ev).Attempts
			want := consumerbed.Facts{Status: check.Consumed, Attempts: n, Generation: n + 1, Accepted: 1, Received: 1}
			if f.met {
				want.Received = n + 1
			}
			b.Want(name, *f.ev, want)
		}
		b.Want("healthy", events[3], consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1})
	})
}

// TestAnswerLost: the provider has accepted, its answer is cut off or comes too
// late. The policy decides.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	held := consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "CONSUMER_AMBIGUOUS", Accepted: 1}
	for _, tc := range []struct {
		policy string
		mode   consumerproc.Mode
		want   consumerbed.Facts
		asked  int
	}{
		{"repeat", consumerproc.Shared, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 1}, 0},
		{"repeat", consumerproc.Receipts, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 1}, 0},
		{"query", consumerproc.Shared, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1}, 1},
		{"query", consumerproc.Receipts, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1}, 1},
		{"hold", consumerproc.Shared, held, 0},
		{"hold", consumerproc.Receipts, held, 0},
	} {
		t.Run(tc.policy+" "+string(tc.mode), func(t *testing.T) {
			t.Parallel()
			b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{
				Mode: tc.mode, Policy: tc.policy, RetryBase: 100 * time.Millisecond, HandlerTimeout: time.Second,
				BeginEffect: tc.mode == consumerproc.Receipts && tc.policy != "repeat",
			}})
			events := b.Insert(inPartitions(2)...)
			cut, late := &events[0], &events[1]
			b.Faults(
				provider.Fault{Match: cut.ID.String(), Times: 1, Do: provider.AcceptReset},
				provider.Fault{Match: late.ID.String(), Times: 1, Do: provider.AcceptHang}, // until the handler has had enough
			)
			b.Publish(events)
			b.Start()
			failed := consumerbed.Codes{}
			if tc.want.Status == check.Failed {
				failed = consumerbed.Codes{cut.ID: tc.want.Code, late.ID: tc.want.Code}
			}
			b.Finish(consumerbed.Arranged{Failed: failed})
			for name, ev := range map[string]*consumerbed.Event{"cut": cut, "late": late} {
				b.Want(name, *ev, tc.want)
				if n := b.Asked(*ev); n != tc.asked {
					t.Errorf("%s: the provider was asked %d times, want %d", name, n, tc.asked)
				}
			}
		})
	}
}

// TestProviderRefuses: what the provider will never take is FAILED, and what it
// knows by another body is in doubt; the offset moves on.
func TestProviderRefuses(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: mode}})
		events := b.Insert(make([]consumerbed.Spec, 3)...)
		refused, another, next := &events[0], &events[1], &events[2]
		b.Faults(provider.Fault{Match: refused.ID.String(), Do: provider.Status, Status: http.StatusBadRequest})
		b.Send(*another, "another e-mail")
		b.Publish(events)
		b.Start()
		b.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{refused.ID: "APP_REFUSED", another.ID: "CONSUMER_AMBIGUOUS"}})
		b.Want("refused", *refused, consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "APP_REFUSED", Received: 1})
		b.Want("another body", *another, consumerbed.Facts{
			Status: check.Failed, Generation: 1, Attempts: 1, Code: "CONSUMER_AMBIGUOUS", Accepted: 1 /* the test's */, Received: 1})
		b.Want("the next one", *next, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1})
	})
}
