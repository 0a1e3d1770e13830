package sink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
)

// class says what is to be done about an attempt to publish a batch.
type class uint8

const (
	classDone   class = iota // it is in the log
	classRecord              // a record is at fault: find it, refuse it, publish the others
	classTopic               // the topic is at fault: refuse the batch
	classBroker              // nobody's data is at fault: send the same bytes again
	classFence               // another producer has taken over: stop
)

// String returns the class as the metrics name it.
func (c class) String() string {
	return [...]string{"done", "record", "topic", "broker", "fence"}[c]
}

// verdict is the whole answer to "retry, park or stop".
type verdict struct {
	class class
	// appended: this attempt may have put the batch into the log, now or
	// later. A refusal of a later attempt then frees no sequence numbers.
	appended bool
	// refresh the metadata before the next attempt.
	refresh bool
	// renew the producer id before the next attempt.
	renew bool
	// reseal: make the bytes of the batch anew.
	reseal bool
	// code and permanent describe the failure of the row (classRecord, classTopic).
	code      string
	permanent bool
	// whole: no single record is at fault, the batch is refused as it is.
	whole bool
	// blocked is the doctor check to name once blockedAfter attempts of a
	// batch have ended like this; empty if time alone can heal it.
	blocked      string
	blockedAfter int
}

// Doctor checks, as operators know them.
const (
	checkConnect    = "kafka.connect"
	checkPartitions = "kafka.partitions"
	checkACL        = "kafka.acl"
	checkIdentity   = "kafka.identity"
	checkSharedID   = "kafka.txid_shared"
)

// Codes that kafka-go has no constant for.
const (
	codeUnknownTopicID    = kafka.Error(100)
	codeInconsistentTopic = kafka.Error(103)
)

// coordinatorTries is after how many attempts the lack of a coordinator is for
// a person: with the usual backoff, clearly later than coordinatorPatience.
const coordinatorTries = 20

// codes holds what each answer of a broker means. It was
// written down row by row from the brokers' documentation and trials; the
// Temporary method of kafka.Error says something else and is not used.
var codes = map[kafka.Error]verdict{
	kafka.MessageSizeTooLarge: {class: classRecord, code: "RECORD_TOO_LARGE", permanent: true},
	kafka.RecordListTooLarge:  {class: classRecord, code: "RECORD_TOO_LARGE", permanent: true},
	kafka.InvalidRecord:       {class: classRecord, code: "RECORD_INVALID", permanent: true},
	kafka.InvalidTimestamp:    {class: classRecord, code: "TIMESTAMP_INVALID"},
	kafka.PolicyViolation:     {class: classRecord, code: "POLICY_VIOLATION"},
	kafka.InvalidTopic:        {class: classRecord, code: "TOPIC_NAME_INVALID", permanent: true, whole: true},

	kafka.TopicAuthorizationFailed: {class: classTopic, code: "TOPIC_DENIED", whole: true},

	// Known by its sequence to be in the log already.
	kafka.DuplicateSequenceNumber: {class: classDone},

	// Whether a topic is gone for good is decided by time: see watcher.missing.
	kafka.UnknownTopicOrPartition: {class: classBroker, refresh: true},
	kafka.LeaderNotAvailable:      {class: classBroker, refresh: true},
	kafka.BrokerNotAvailable:      {class: classBroker, refresh: true},
	kafka.ReplicaNotAvailable:     {class: classBroker, refresh: true},
	kafka.ListenerNotFound:        {class: classBroker, refresh: true},
	kafka.FencedLeaderEpoch:       {class: classBroker, refresh: true},
	kafka.UnknownLeaderEpoch:      {class: classBroker, refresh: true},
	codeUnknownTopicID:            {class: classBroker, refresh: true},
	codeInconsistentTopic:         {class: classBroker, refresh: true},
	kafka.NotEnoughReplicas:       {class: classBroker},
	kafka.ThrottlingQuotaExceeded: {class: classBroker},

	// Answers that can follow an append.
	kafka.NotLeaderForPartition:        {class: classBroker, refresh: true, appended: true},
	kafka.NetworkException:             {class: classBroker, refresh: true, appended: true},
	kafka.KafkaStorageError:            {class: classBroker, refresh: true, appended: true},
	kafka.RequestTimedOut:              {class: classBroker, appended: true},
	kafka.NotEnoughReplicasAfterAppend: {class: classBroker, appended: true},

	// The broker lost what it knew of the producer, or never knew it. The last
	// two mean something else under a fenced identity: see worker.judge.
	kafka.OutOfOrderSequenceNumber: {class: classBroker, renew: true},
	kafka.UnknownProducerId:        {class: classBroker, renew: true},
	kafka.InvalidProducerEpoch:     {class: classBroker, renew: true},
	kafka.ProducerFenced:           {class: classBroker, renew: true},

	// Answers to a request for a producer id. Where there will never be a
	// coordinator, the identity steps down before a person is called.
	kafka.GroupLoadInProgress:          {class: classBroker, blocked: checkIdentity, blockedAfter: coordinatorTries},
	kafka.GroupCoordinatorNotAvailable: {class: classBroker, blocked: checkIdentity, blockedAfter: coordinatorTries},
	kafka.NotCoordinatorForGroup:       {class: classBroker, blocked: checkIdentity, blockedAfter: coordinatorTries},
	kafka.ConcurrentTransactions:       {class: classBroker, blocked: checkIdentity, blockedAfter: coordinatorTries},

	// The bytes did not arrive as they were sent: the encoder, or memory.
	kafka.InvalidMessage: {class: classBroker, reseal: true, blocked: checkConnect, blockedAfter: 3},

	kafka.SASLAuthenticationFailed:           {class: classBroker, refresh: true, blocked: checkConnect},
	kafka.UnsupportedSASLMechanism:           {class: classBroker, refresh: true, blocked: checkConnect},
	kafka.IllegalSASLState:                   {class: classBroker, refresh: true, blocked: checkConnect},
	kafka.ClusterAuthorizationFailed:         {class: classBroker, blocked: checkACL},
	kafka.TransactionalIDAuthorizationFailed: {class: classBroker, blocked: checkACL},
	kafka.InvalidRequiredAcks:                {class: classBroker, blocked: checkConnect},
	kafka.UnsupportedVersion:                 {class: classBroker, blocked: checkConnect},
	kafka.InvalidRequest:                     {class: classBroker, blocked: checkConnect},
	kafka.UnsupportedForMessageFormat:        {class: classBroker, blocked: checkConnect},
	kafka.UnsupportedCompressionType:         {class: classBroker, blocked: checkConnect},
	kafka.InvalidTransactionState:            {class: classBroker, blocked: checkIdentity},
	kafka.InvalidProducerIDMapping:           {class: classBroker, blocked: checkIdentity},
	kafka.InvalidTransactionTimeout:          {class: classBroker, blocked: checkIdentity},
}

// unknownCode is any answer that the table does not list, -1 above all.
var unknownCode = verdict{class: classBroker, appended: true, blocked: checkConnect, blockedAfter: 10}

// classify says what the end of one attempt means: nil, an answer of the
// broker (a kafka.Error in the chain), or an error on the way to it.
func classify(err error) verdict {
	if err == nil {
		return verdict{class: classDone}
	}
	var code kafka.Error
	if errors.As(err, &code) {
		if v, ok := codes[code]; ok {
			return v
		}
		return unknownCode
	}
	return classifyLocal(err)
}

// classifyLocal judges errors that are no answer.
func classifyLocal(err error) verdict {
	v := verdict{class: classBroker, refresh: true}
	switch {
	case errors.Is(err, errNotPermitted):
		v.refresh = false // nothing was sent, and Kafka is not to blame
	case isTLS(err):
		v.blocked = checkConnect
	case isUnrouted(err):
		// The request found no broker to go to. The cause may be a dead
		// broker or a wrong password as well: the watcher finds out.
	case errors.Is(err, syscall.ECONNREFUSED), isDial(err), errors.Is(err, kafkaconn.ErrClosed):
		// There was no connection to send anything on.
	default:
		// A time-out, a broken connection, an answer that makes no sense:
		// the broker may have read the request, and may yet act on it.
		v.appended = true
	}
	return v
}

// isUnrouted reports whether the client knew no broker to send a request to.
func isUnrouted(err error) bool {
	var topic *protocol.TopicError
	var partition *protocol.TopicPartitionError
	return errors.As(err, &topic) || errors.As(err, &partition)
}

func isTLS(err error) bool {
	var (
		record    tls.RecordHeaderError
		alert     tls.AlertError
		verify    *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		noRoots   x509.SystemRootsError
	)
	if errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &verify) || errors.As(err, &authority) ||
		errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &noRoots) {
		return true
	}
	// An alert of the peer comes as a net.OpError with this operation.
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error")
}

// isDial reports whether no connection was made, for want of a name, a route
// or an answer.
func isDial(err error) bool {
	var dns *net.DNSError
	var op *net.OpError
	return errors.As(err, &dns) || errors.As(err, &op) && op.Op == "dial"
}

// safe returns what may be logged of an error: of an answer its code, not the
// broker's own words, which can quote keys and values.
func safe(err error) string {
	var code kafka.Error
	switch {
	case err == nil:
		return "nothing was heard"
	case errors.As(err, &code):
		return "the broker answers " + codeText(code)
	}
	return err.Error()
}

// codeText is the number and the name of an error code.
func codeText(code kafka.Error) string {
	return strconv.Itoa(int(code)) + " (" + code.Title() + ")"
}
