package waltest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

// patience ends a script whose client does not come forward. It is there to
// end a broken test, not to measure anything.
const patience = 30 * time.Second

// Server plays a PostgreSQL server that speaks the replication protocol: the
// first connection gets the first script, and so on. A step that does not see
// what it expects fails the test.
type Server struct {
	listener net.Listener
	tls      *tls.Config
	ended    sync.WaitGroup
}

// Script is what the server does on one connection, step by step. At its end
// the server closes the connection.
type Script []Step

// Step is one thing that the server does or expects.
type Step func(*Conn) error

// Serve starts a server on 127.0.0.1 that ends with the test. The test fails
// if a script fails, or has not ended.
func Serve(t testing.TB, scripts ...Script) *Server { return serve(t, nil, scripts) }

// ServeTLS is Serve for clients that use TLS.
func ServeTLS(t testing.TB, config *tls.Config, scripts ...Script) *Server {
	return serve(t, config, scripts)
}

func serve(t testing.TB, config *tls.Config, scripts []Script) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	s := &Server{listener: listener, tls: config}
	failed := make(chan error, len(scripts))
	s.ended.Go(func() {
		for i, script := range scripts {
			if err := s.play(script); err != nil {
				failed <- fmt.Errorf("script of connection %d: %w", i+1, err)
				return
			}
		}
	})
	t.Cleanup(func() {
		listener.Close()
		s.ended.Wait()
		select {
		case err := <-failed:
			t.Error(err)
		default:
		}
	})
	return s
}

// DSN is where the server listens, for a user and a database of any name.
func (s *Server) DSN() string {
	mode := "disable"
	if s.tls != nil {
		mode = "require"
	}
	return fmt.Sprintf("postgres://relay@%s/app?sslmode=%s", s.listener.Addr(), mode)
}

func (s *Server) play(script Script) error {
	conn, err := s.listener.Accept()
	if err != nil {
		return fmt.Errorf("waiting for the client: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	c := &Conn{Conn: conn, tls: s.tls, backend: pgproto3.NewBackend(conn, conn)}
	for i, step := range script {
		if err := step(c); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	takeLeave(conn)
	return nil
}

// takeLeave ends our side and reads what the client still sends: closing with
// unread bytes would send a reset instead of an end.
func takeLeave(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, tcp) // until the client closes, or the deadline
	}
}

// Conn is the server's side of one connection.
type Conn struct {
	net.Conn
	tls     *tls.Config
	backend *pgproto3.Backend
	last    Status // the last one that came
}

func (c *Conn) send(messages ...pgproto3.BackendMessage) error {
	for _, m := range messages {
		c.backend.Send(m)
	}
	return c.backend.Flush()
}

// query expects a query that begins with prefix.
func (c *Conn) query(prefix string) error {
	msg, err := c.backend.Receive()
	if err != nil {
		return fmt.Errorf("waiting for %q: %w", prefix, err)
	}
	query, ok := msg.(*pgproto3.Query)
	if !ok || !strings.HasPrefix(query.String, prefix) {
		return fmt.Errorf("got %T %+v, want a query %q", msg, msg, prefix)
	}
	return nil
}

// Login lets the client in without a password. check, unless nil, looks at
// the startup parameters.
func Login(check func(parameters map[string]string) error) Step {
	return func(c *Conn) error {
		parameters, err := c.startup()
		if err != nil {
			return err
		}
		if check != nil {
			if err := check(parameters); err != nil {
				return err
			}
		}
		return c.send(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "server_version", Value: "18.4"},
			&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// startup reads the startup message, over TLS if the server has it.
func (c *Conn) startup() (map[string]string, error) {
	for {
		msg, err := c.backend.ReceiveStartupMessage()
		if err != nil {
			return nil, fmt.Errorf("waiting for the startup message: %w", err)
		}
		switch msg := msg.(type) {
		case *pgproto3.StartupMessage:
			return msg.Parameters, nil
		case *pgproto3.SSLRequest:
			if c.tls == nil {
				return nil, errors.New("the client asks for TLS")
			}
			if _, err := c.Write([]byte{'S'}); err != nil {
				return nil, err
			}
			secure := tls.Server(c.Conn, c.tls)
			if err := secure.HandshakeContext(context.Background()); err != nil {
				return nil, fmt.Errorf("making the TLS connection: %w", err)
			}
			c.Conn, c.backend = secure, pgproto3.NewBackend(secure, secure)
		default:
			return nil, fmt.Errorf("got %T, want a startup message", msg)
		}
	}
}

// RefuseLogin asks for a password and refuses it.
func RefuseLogin(code, message string) Step {
	return func(c *Conn) error {
		if _, err := c.startup(); err != nil {
			return err
		}
		if err := c.send(&pgproto3.AuthenticationCleartextPassword{}); err != nil {
			return err
		}
		if err := c.backend.SetAuthType(pgproto3.AuthTypeCleartextPassword); err != nil {
			return err
		}
		if _, err := c.backend.Receive(); err != nil {
			return fmt.Errorf("waiting for the password: %w", err)
		}
		return c.send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message})
	}
}

// Answer expects a query that begins with prefix and answers with rows of
// text.
func Answer(prefix string, rows ...[]string) Step {
	return func(c *Conn) error {
		if err := c.query(prefix); err != nil {
			return err
		}
		var messages []pgproto3.BackendMessage
		for i, row := range rows {
			var values [][]byte
			var fields []pgproto3.FieldDescription
			for _, v := range row {
				values = append(values, []byte(v))
				fields = append(fields, pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: TextOID, DataTypeSize: -1, TypeModifier: -1})
			}
			if i == 0 {
				messages = append(messages, &pgproto3.RowDescription{Fields: fields})
			}
			messages = append(messages, &pgproto3.DataRow{Values: values})
		}
		messages = append(messages, &pgproto3.CommandComplete{CommandTag: []byte("SELECT")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
		return c.send(messages...)
	}
}

// Refuse expects a query that begins with prefix and answers with an error.
func Refuse(prefix, code, message string) Step {
	return func(c *Conn) error {
		if err := c.query(prefix); err != nil {
			return err
		}
		return c.send(&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: message},
			&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// What Identify tells about the server.
const (
	SystemID = 7_000_000_000_000_000_001
	Timeline = 3
)

// Identify answers who the server is and what its settings are.
func Identify(walSenderTimeout time.Duration) Step {
	return IdentifyAs(walSenderTimeout, "f", "logical")
}

// IdentifyAs is Identify for a server in recovery ("t") or with another
// wal_level.
func IdentifyAs(walSenderTimeout time.Duration, recovery, walLevel string) Step {
	return steps(
		Answer("IDENTIFY_SYSTEM", []string{fmt.Sprint(SystemID), fmt.Sprint(Timeline), "0/1", "app"}),
		Answer("SELECT pg_catalog.pg_is_in_recovery()", []string{recovery, walLevel, "180004", fmt.Sprint(walSenderTimeout.Milliseconds())}),
	)
}

// StartReplication expects the client to start to stream, and sends frames in
// the same write as the answer.
func StartReplication(frames ...[]byte) Step {
	return func(c *Conn) error {
		if err := c.query("START_REPLICATION SLOT "); err != nil {
			return err
		}
		answer := []byte{'W', 0, 0, 0, 7, 0, 0, 0}
		for _, frame := range frames {
			answer = append(answer, frame...)
		}
		_, err := c.Write(answer)
		return err
	}
}

// Streaming is a script's usual beginning: login, identity, START_REPLICATION.
func Streaming(walSenderTimeout time.Duration) Step {
	return steps(Login(nil), Identify(walSenderTimeout), StartReplication())
}

// Send sends bytes as they are.
func Send(frames ...[]byte) Step {
	return func(c *Conn) error {
		for _, frame := range frames {
			if _, err := c.Write(frame); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
		return nil
	}
}

// SendMessage sends a protocol message other than CopyData.
func SendMessage(messages ...pgproto3.BackendMessage) Step {
	return func(c *Conn) error { return c.send(messages...) }
}

// Status is a standby status update.
type Status struct {
	Written, Flushed, Applied pglogrepl.LSN
	ReplyRequested            bool
}

// ExpectStatus reads statuses until one satisfies the condition.
func ExpectStatus(what string, condition func(Status) bool) Step {
	return func(c *Conn) error {
		for {
			status, err := c.status()
			if err != nil {
				return fmt.Errorf("waiting for a status with %s: %w", what, err)
			}
			if condition(status) {
				return nil
			}
		}
	}
}

// ExpectConfirmed reads statuses until one confirms lsn in all three
// positions.
func ExpectConfirmed(lsn pglogrepl.LSN) Step {
	return ExpectStatus(fmt.Sprintf("position %s", lsn), func(s Status) bool {
		return s.Written == lsn && s.Flushed == lsn && s.Applied == lsn
	})
}

// ExpectTerminate reads statuses until the client takes leave, and fails
// unless the last one of the connection confirmed lsn.
func ExpectTerminate(lsn pglogrepl.LSN) Step {
	return func(c *Conn) error {
		for {
			_, err := c.status()
			if errors.Is(err, errTerminated) && c.last.Flushed == lsn {
				return nil
			}
			if err != nil {
				return fmt.Errorf("waiting for the client to take leave, last position %s, want %s: %w", c.last.Flushed, lsn, err)
			}
		}
	}
}

var errTerminated = errors.New("the client has taken leave")

func (c *Conn) status() (Status, error) {
	msg, err := c.backend.Receive()
	if err != nil {
		return Status{}, err
	}
	switch msg := msg.(type) {
	case *pgproto3.Terminate:
		return Status{}, errTerminated
	case *pgproto3.CopyData:
		c.last, err = parseStatus(msg.Data)
		return c.last, err
	}
	return Status{}, fmt.Errorf("got %T, want a standby status", msg)
}

// Wait waits until the channel is closed.
func Wait(ch <-chan struct{}) Step {
	return func(*Conn) error {
		select {
		case <-ch:
			return nil
		case <-time.After(patience):
			return errors.New("waited for the test in vain")
		}
	}
}

// Cut closes the connection without a word, so that the client sees a reset.
func Cut() Step {
	return func(c *Conn) error {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			if err := tcp.SetLinger(0); err != nil {
				return err
			}
		}
		return c.Close()
	}
}

func steps(list ...Step) Step {
	return func(c *Conn) error {
		for _, step := range list {
			if err := step(c); err != nil {
				return err
			}
		}
		return nil
	}
}
