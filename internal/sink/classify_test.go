package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
)

// Each code with what it leads to, as docs and trials have it.
func TestClassifyAnswers(t *testing.T) {
	t.Parallel()
	brokerOnly := verdict{class: classBroker}
	refresh := verdict{class: classBroker, refresh: true}
	maybe := verdict{class: classBroker, refresh: true, appended: true}
	appended := verdict{class: classBroker, appended: true}
	renew := verdict{class: classBroker, renew: true}
	unknown := verdict{class: classBroker, appended: true, blocked: "kafka.connect", blockedAfter: 10}
	person := func(check string) verdict { return verdict{class: classBroker, blocked: check} }
	login := verdict{class: classBroker, refresh: true, blocked: "kafka.connect"}
	record := func(code string, permanent bool) verdict {
		return verdict{class: classRecord, code: code, permanent: permanent}
	}
	coordinator := verdict{class: classBroker, blocked: "kafka.identity", blockedAfter: 20}
	for code, want := range map[int]verdict{
		-1:  unknown,
		2:   {class: classBroker, reseal: true, blocked: "kafka.connect", blockedAfter: 3},
		3:   refresh,
		5:   refresh,
		6:   maybe,
		7:   appended,
		8:   refresh,
		9:   refresh,
		10:  record("RECORD_TOO_LARGE", true),
		13:  maybe,
		14:  coordinator,
		15:  coordinator,
		16:  coordinator,
		17:  {class: classRecord, code: "TOPIC_NAME_INVALID", permanent: true, whole: true},
		18:  record("RECORD_TOO_LARGE", true),
		19:  brokerOnly,
		20:  appended,
		21:  person("kafka.connect"),
		29:  {class: classTopic, code: "TOPIC_DENIED", whole: true},
		31:  person("kafka.acl"),
		32:  record("TIMESTAMP_INVALID", false),
		33:  login,
		34:  login,
		35:  person("kafka.connect"),
		42:  person("kafka.connect"),
		43:  person("kafka.connect"),
		44:  record("POLICY_VIOLATION", false),
		45:  renew,
		46:  {class: classDone},
		47:  renew,
		48:  person("kafka.identity"),
		49:  person("kafka.identity"),
		50:  person("kafka.identity"),
		51:  coordinator,
		53:  person("kafka.acl"),
		56:  maybe,
		58:  login,
		59:  renew,
		72:  refresh,
		74:  refresh,
		75:  refresh,
		76:  person("kafka.connect"),
		87:  record("RECORD_INVALID", true),
		89:  brokerOnly,
		90:  renew,
		100: refresh,
		103: refresh,
		// not in the table: nothing may be concluded
		4:     unknown,
		12345: unknown,
	} {
		for _, err := range []error{kafka.Error(code), fmt.Errorf("produce: %w: the broker's words", kafka.Error(code))} {
			if diff := cmp.Diff(want, classify(err), cmp.AllowUnexported(verdict{})); diff != "" {
				t.Errorf("code %d (-want +got):\n%s", code, diff)
			}
		}
	}
}

func TestClassifyLocal(t *testing.T) {
	t.Parallel()
	opError := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	nothingSent := verdict{class: classBroker, refresh: true}
	maybeSent := verdict{class: classBroker, refresh: true, appended: true}
	person := verdict{class: classBroker, refresh: true, blocked: "kafka.connect"}
	for name, tc := range map[string]struct {
		err  error
		want verdict
	}{
		"none":                {nil, verdict{class: classDone}},
		"no topic":            {protocol.NewErrNoTopic("t"), nothingSent},
		"no partition":        {protocol.NewErrNoPartition("t", 1), nothingSent},
		"no leader":           {protocol.NewErrNoLeader("t", 1), nothingSent},
		"not permitted":       {errNotPermitted, verdict{class: classBroker}},
		"an empty answer":     {protocol.ErrNoTopic, maybeSent},
		"refused":             {opError("dial", os.NewSyscallError("connect", syscall.ECONNREFUSED)), nothingSent},
		"no route":            {opError("dial", os.NewSyscallError("connect", syscall.EHOSTUNREACH)), nothingSent},
		"no such host":        {opError("dial", &net.DNSError{Err: "no such host", Name: "kafka"}), nothingSent},
		"ended":               {kafkaconn.ErrClosed, nothingSent},
		"deadline of context": {context.DeadlineExceeded, maybeSent},
		"deadline of socket":  {opError("read", os.ErrDeadlineExceeded), maybeSent},
		"end of file":         {io.EOF, maybeSent},
		"torn":                {io.ErrUnexpectedEOF, maybeSent},
		"reset":               {opError("read", os.NewSyscallError("read", syscall.ECONNRESET)), maybeSent},
		"broken pipe":         {opError("write", os.NewSyscallError("write", syscall.EPIPE)), maybeSent},
		"closed":              {opError("read", net.ErrClosed), maybeSent},
		"correlation id":      {protocol.Error("correlation id mismatch"), maybeSent},
		"anything else":       {errors.New("anything else"), maybeSent},
		"certificate":         {&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, person},
		"host name":           {x509.HostnameError{Certificate: &x509.Certificate{}, Host: "kafka"}, person},
		"no TLS there":        {tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, person},
		"alert of the broker": {opError("remote error", tls.AlertError(42)), person},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{tc.err, wrapped(tc.err)} {
				if diff := cmp.Diff(tc.want, classify(err), cmp.AllowUnexported(verdict{})); diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			}
		})
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kafka.(*Client).RawProduce: %w", err)
}

// What is logged of an answer is its code, never the broker's words.
func TestSafe(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("%w: record with key top-secret is too large", kafka.MessageSizeTooLarge)
	if got, want := safe(err), "the broker answers 10 (Message Size Too Large)"; got != want {
		t.Errorf("safe = %q, want %q", got, want)
	}
}
