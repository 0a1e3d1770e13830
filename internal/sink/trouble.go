package sink

import (
	"errors"
	"sync"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// troubles holds the conditions that a person must clear, by what they are
// about, and reports the oldest of them whenever that one changes. Safe for
// concurrent use.
type troubles struct {
	outcomes Outcomes

	mu       sync.Mutex
	list     []trouble // oldest first
	reported string    // the text that stands; empty if none does
}

type trouble struct {
	subject string // connection, topic NAME, partition NAME/NUMBER
	blocked *fault.Blocked
}

// set notes a trouble with subject, or a change of it.
func (t *troubles) set(subject string, b *fault.Blocked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		if t.list[i].subject == subject {
			t.list[i].blocked = b
			t.report()
			return
		}
	}
	t.list = append(t.list, trouble{subject, b})
	t.report()
}

// clear notes that nothing is wrong with subject.
func (t *troubles) clear(subject string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		if t.list[i].subject == subject {
			t.list = append(t.list[:i], t.list[i+1:]...)
			t.report()
			return
		}
	}
}

func (t *troubles) report() {
	if len(t.list) == 0 {
		t.reported = ""
		t.outcomes.Trouble(nil)
		return
	}
	b := t.list[0].blocked
	if text := b.Error(); text != t.reported {
		t.reported = text
		t.outcomes.Trouble(b)
	}
}

// connectTrouble says why the cluster cannot be reached.
func connectTrouble(err error) *fault.Blocked {
	b := &fault.Blocked{Reason: checkConnect, Err: err}
	var code kafka.Error
	switch {
	case isTLS(err):
		b.What = "the TLS connection to the Kafka brokers cannot be made"
		b.Remedy = "check kafka.tls (CA, server name, client certificate) against the brokers' certificates"
	case errors.As(err, &code) && classify(code).blocked == checkConnect && isSASL(code):
		b.What = "the Kafka brokers refuse the login"
		b.Remedy = "check kafka.sasl (mechanism, user name, password)"
	default:
		b.What = "no Kafka broker answers"
		b.Remedy = "check whether the brokers run, then kafka.brokers, the network, kafka.tls and kafka.sasl"
	}
	return b
}

func isSASL(code kafka.Error) bool {
	return code == kafka.SASLAuthenticationFailed || code == kafka.UnsupportedSASLMechanism || code == kafka.IllegalSASLState
}

// batchTrouble says why a batch does not get through.
func batchTrouble(v verdict, topic string, err error) *fault.Blocked {
	var code kafka.Error
	if !errors.As(err, &code) || isSASL(code) {
		return connectTrouble(err)
	}
	b := &fault.Blocked{Reason: v.blocked, Err: err}
	switch v.blocked {
	case checkACL:
		b.What = "the Kafka cluster refuses to let the relay publish to topic " + topic
		b.Remedy = "grant its login WRITE and DESCRIBE on the topic, and IDEMPOTENT_WRITE on the cluster before Kafka 3.0"
	case checkIdentity:
		b.What, b.Remedy = identityTrouble(code, topic)
	default:
		b.What = "the Kafka broker keeps refusing requests for topic " + topic + " with error " + codeText(code)
		b.Remedy = "look that error up in the broker's log; check its version, kafka.compression and whatever lies between"
	}
	return b
}

// identityTrouble says why there is no producer identity to publish under.
func identityTrouble(code kafka.Error, topic string) (what, remedy string) {
	switch code {
	case kafka.InvalidTransactionTimeout:
		return "the Kafka cluster does not allow the transaction time-out of " + transactionTimeout.String() + " that kafka.identity fenced asks for",
			"raise transaction.max.timeout.ms of the brokers to that, or set kafka.identity to idempotent"
	case kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup, kafka.ConcurrentTransactions:
		return "the Kafka cluster gives the relay no producer id: the coordinator answers " + codeText(code),
			"look at the state of the topic __transaction_state and of its brokers; or set kafka.identity from fenced to idempotent, or from that to none"
	}
	return "the Kafka broker refuses the relay's producer identity for topic " + topic,
		"set kafka.identity to none and report what the broker's log says"
}

// sharedIDTrouble tells that somebody else publishes under our transactional
// id though this instance leads the slot.
func sharedIDTrouble(transactionalID string, answer error) *fault.Blocked {
	return &fault.Blocked{
		Reason: checkSharedID,
		What:   "something else than the instances of this slot publishes to Kafka under the transactional id " + transactionalID,
		Remedy: "give this slot's relays a kafka.transactional_id that nothing else in the Kafka cluster has; if nothing else has this one, a request of a former leader came late, and the relay goes on at its next try",
		Err:    answer,
	}
}
