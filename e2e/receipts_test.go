package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
)

// TestReceiptsRetriedByAPerson: a retry of a receipt keeps the doubt about its
// effect, until a person clears it; a drop makes the event a duplicate.
func TestReceiptsRetriedByAPerson(t *testing.T) {
	t.Parallel()
	r, b := behindARelay(t, consumerproc.Config{Mode: consumerproc.Receipts, Policy: "hold", BeginEffect: true, RetryBase: 100 * time.Millisecond}, nil)
	events := b.Insert(make([]consumerbed.Spec, 3)...)
	doubt, refused, dropped := &events[0], &events[1], &events[2]
	key := func(ev *consumerbed.Event) string { return ev.ID.String() + ":" + consumerproc.Purpose }
	b.Faults(provider.Fault{Match: doubt.ID.String(), Times: 1, Do: provider.AcceptReset})
	b.Order(consumerproc.Started, *refused, 1, consumerproc.FailData)
	b.Order(consumerproc.Started, *dropped, 1, consumerproc.FailData)
	again := func(p *consumerbed.Process) *consumerbed.Process {
		if p != nil {
			p.Terminate()
			b.Seek(doubt.PartitionName, 0)
		}
		return b.Start()
	}
	command := func(args ...string) string {
		output, code := r.Command(nil, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d\n%s", args, code, output)
		}
		return output
	}
	held := consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "CONSUMER_AMBIGUOUS", Accepted: 1}

	b.Publish(events)
	p := again(nil)
	b.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{doubt.ID: "CONSUMER_AMBIGUOUS", refused.ID: "APP_TEST", dropped.ID: "APP_TEST"}})
	b.Want("in doubt", *doubt, held)
	list := command("receipts", "list")
	for _, ev := range events {
		if !strings.Contains(list, ev.ID.String()) {
			t.Errorf("%s is not listed:\n%s", ev.ID, list)
		}
	}
	command("receipts", "retry", key(doubt), key(refused))
	command("receipts", "drop", key(dropped), "--reason", "never existed")

	p = again(p)
	b.Wait("the doubt to be held again", func() bool { return b.Facts(*doubt).Generation == 2 && b.Facts(*doubt).Status == check.Failed })
	b.WaitStatus(check.Consumed, *refused)
	b.Want("in doubt, retried", *doubt, consumerbed.Facts{Status: check.Failed, Generation: 2, Attempts: 2, Code: "CONSUMER_AMBIGUOUS", Accepted: 1})
	b.Want("refused, retried", *refused, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 1, Received: 1})
	command("receipts", "retry", key(doubt), "--clear-doubt", "--reason", "the provider has no such message")

	again(p)
	b.WaitStatus(check.Consumed, *doubt)
	b.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{dropped.ID: "APP_TEST"}})
	if s := b.Steps(consumerproc.Started, *dropped); len(s) != 1 {
		t.Errorf("the dropped event was handled %d times, want once", len(s))
	}
	if n := b.Count(`SELECT count(*) FROM cdc_relay_audit WHERE action IN ('receipt_retry', 'receipt_drop')`); n != 4 {
		t.Errorf("%d entries in the audit trail, want 4", n)
	}
}
