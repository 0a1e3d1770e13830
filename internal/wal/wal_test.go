package wal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noTimeout is a wal_sender_timeout that asks nothing of the client.
const noTimeout = 0

func config(t testing.TB, dsn string) wal.Config {
	t.Helper()
	conf, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conf.RuntimeParams["application_name"] = "cdc-relay/s"
	return wal.Config{Conn: conf, Slot: "s", Publication: "p", ConfirmInterval: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
}

func connect(t testing.TB, cfg wal.Config) *wal.Stream {
	t.Helper()
	s, err := wal.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	return s
}

// running is a stream that runs.
type running struct {
	*wal.Stream
	stop context.CancelFunc
	done chan error
}

// start runs a stream to the end of the test.
func start(t testing.TB, cfg wal.Config) *running {
	t.Helper()
	s := connect(t, cfg)
	if err := s.Start(t.Context()); err != nil {
		s.Close()
		t.Fatalf("starting: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Stream: s, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx); close(r.done) }()
	t.Cleanup(func() {
		stop()
		for range r.done { // until it is closed
		}
	})
	return r
}

// end waits for Run to return.
func (r *running) end(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("the stream did not end")
		return nil
	}
}

// stopClean stops the stream and expects a clean end.
func (r *running) stopClean(t testing.TB) {
	t.Helper()
	r.stop()
	if err := r.end(t); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

// collect takes gulps until they hold n bytes, and returns those.
func (r *running) collect(t testing.TB, n int) []byte {
	t.Helper()
	var got []byte
	for len(got) < n {
		select {
		case g, ok := <-r.Gulps():
			if !ok {
				t.Fatalf("the stream ended after %d of %d bytes: %v", len(got), n, <-r.done)
			}
			wholeFrames(t, g.Frames)
			got = append(got, g.Frames...)
			g.Release()
		case <-time.After(30 * time.Second):
			t.Fatalf("got %d of %d bytes", len(got), n)
		}
	}
	return got
}

// drain releases the gulps that are there.
func (r *running) drain() {
	for len(r.Gulps()) > 0 {
		(<-r.Gulps()).Release()
	}
}

// endDiscarding waits for Run to return and takes no notice of what it read.
func (r *running) endDiscarding(t testing.TB) error {
	t.Helper()
	go func() {
		for g := range r.Gulps() {
			g.Release()
		}
	}()
	return r.end(t)
}

func systemID(s *wal.Stream) string {
	id, _ := s.Server()
	return fmt.Sprint(id)
}

// frameLength is the length in a message's header.
func frameLength(frames []byte) int { return int(binary.BigEndian.Uint32(frames[1:])) }

func wholeFrames(t testing.TB, frames []byte) {
	t.Helper()
	for len(frames) > 0 {
		if len(frames) < 5 || frames[0] != 'd' {
			t.Fatalf("gulp is not made of whole CopyData messages")
		}
		size := 1 + frameLength(frames)
		if size > len(frames) {
			t.Fatalf("gulp ends within a message")
		}
		frames = frames[size:]
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, condition, func() string { return "not reached" })
}

func wantBytes(t testing.TB, want, got []byte) {
	t.Helper()
	if !bytes.Equal(want, got) {
		t.Errorf("got %d bytes, want %d, or others", len(got), len(want))
	}
}

func wantBlocked(t testing.TB, err error, reason string) {
	t.Helper()
	blocked := fault.AsBlocked(err)
	if blocked == nil || blocked.Reason != reason {
		t.Fatalf("got error %v, want blocked for %s", err, reason)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	frames := append(b.Relation(), b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1}, waltest.Row{ID: 2})...)
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		waltest.ExpectConfirmed(0),
		waltest.Send(frames),
		waltest.ExpectConfirmed(0x120),
		waltest.Send(b.Keepalive(0x200, false)),
		waltest.ExpectTerminate(0x200),
	})
	cfg := config(t, server.DSN())
	cfg.Pulse = pulse.NewBoard()
	s := start(t, cfg)
	if system, timeline := s.Server(); system != waltest.SystemID || timeline != waltest.Timeline {
		t.Errorf("server is %d, timeline %d", system, timeline)
	}
	wantBytes(t, frames, s.collect(t, len(frames)))
	s.Confirm(0x120)
	s.Confirm(0x110) // never back
	wantBytes(t, b.Keepalive(0x200, false), s.collect(t, 1))
	if got := s.ServerEnd(); got != 0x200 {
		t.Errorf("server's end is %s, want 0/200", got)
	}
	if s.ReceivedAt().IsZero() {
		t.Error("nothing was received")
	}
	if parts := cfg.Pulse.Parts(); len(parts) != 2 || parts[0].Name != "confirmation" || parts[1].Name != "receiver" {
		t.Errorf("parts that run: %v", parts)
	}
	s.Confirm(0x200)
	s.stopClean(t)
	if got := s.Confirmed(); got != 0x200 {
		t.Errorf("confirmed %s, want 0/200", got)
	}
	if _, open := <-s.Gulps(); open {
		t.Error("Gulps is not closed after the end")
	}
	if parts := cfg.Pulse.Parts(); len(parts) != 0 {
		t.Errorf("parts that run after the end: %v", parts)
	}
}

// What the server sends right behind its answer to START_REPLICATION must not
// be lost in the driver's buffers.
func TestStreamKeepsBytesBehindTheHandshake(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	frames := append(b.Keepalive(0x1, false), b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1})...)
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.StartReplication(frames),
		waltest.ExpectTerminate(0),
	})
	s := start(t, config(t, server.DSN()))
	wantBytes(t, frames, s.collect(t, len(frames)))
	s.stopClean(t)
}

func TestStreamOverTLS(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	first := b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1})
	var backlog []byte
	for id := range int64(2000) {
		backlog = append(backlog, b.Transaction(0x200, 0x220, 2, waltest.Row{ID: id + 2, Payload: make([]byte, 1000)})...)
	}
	backlog = append(backlog, b.Transaction(0x300, 0x320, 3, waltest.Row{ID: 1, Payload: make([]byte, 1<<20)})...)
	server := waltest.ServeTLS(t, waltest.SelfSigned(t), waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.StartReplication(first),
		waltest.ExpectConfirmed(0x120),
		waltest.Send(backlog, first), // the last one must not wait for more to come
		waltest.ExpectTerminate(0x320),
	})
	s := start(t, config(t, server.DSN()))
	wantBytes(t, first, s.collect(t, len(first)))
	s.Confirm(0x120)
	wantBytes(t, append(backlog, first...), s.collect(t, len(backlog)+len(first)))
	s.Confirm(0x320)
	s.stopClean(t)
}

func TestStartupParameters(t *testing.T) {
	t.Parallel()
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(func(got map[string]string) error {
			want := map[string]string{
				"user": "relay", "database": "app", "application_name": "cdc-relay/s", "replication": "database",
				"client_encoding": "UTF8", "client_min_messages": "warning", "bytea_output": "hex", "datestyle": "ISO",
				"statement_timeout": "0", "lock_timeout": "0", "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0",
			}
			if d := cmp.Diff(want, got); d != "" {
				return fmt.Errorf("startup parameters (-want +got):\n%s", d)
			}
			return nil
		}),
		waltest.Identify(noTimeout),
	})
	connect(t, config(t, server.DSN())).Close()
}

// Gulps that nobody takes stop the reading, not the statuses.
func TestStatusesFlowUnderBackPressure(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	transaction := b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1, Payload: make([]byte, 100<<10)})
	const transactions = 100 // 10 MB: more than buffers and sockets hold
	sent := make(chan struct{})
	var backlog [][]byte
	for range transactions {
		backlog = append(backlog, transaction)
	}
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		func(c *waltest.Conn) error { // sends while the statuses are read
			failed := make(chan error, 1)
			go func() { failed <- waltest.Send(backlog...)(c); close(sent) }()
			for lsn := pglogrepl.LSN(1); lsn <= 5; lsn++ {
				if err := waltest.ExpectConfirmed(lsn)(c); err != nil {
					return err
				}
			}
			if err := waltest.ExpectConfirmed(0x120)(c); err != nil {
				return err
			}
			return <-failed
		},
		waltest.ExpectTerminate(0x120),
	})
	s := start(t, config(t, server.DSN()))
	for lsn := pglogrepl.LSN(1); lsn <= 5; lsn++ {
		s.Confirm(lsn)
		eventually(t, fmt.Sprintf("position %s confirmed", lsn), func() bool { return s.Confirmed() == lsn })
	}
	select {
	case <-sent:
		t.Error("10 MB were read although nobody took the gulps")
	default:
	}
	s.collect(t, transactions*len(transaction))
	s.Confirm(0x120)
	<-sent
	s.stopClean(t)
}

// The end while the reader waits for a buffer.
func TestStopUnderBackPressure(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	transaction := b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1, Payload: make([]byte, 100<<10)})
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		func(c *waltest.Conn) error {
			failed := make(chan error, 1)
			go func() {
				for range 100 {
					if err := waltest.Send(transaction)(c); err != nil {
						break // the client has left
					}
				}
				close(failed)
			}()
			err := waltest.ExpectTerminate(7)(c)
			c.Close()
			<-failed
			return err
		},
	})
	s := start(t, config(t, server.DSN()))
	eventually(t, "all buffers full", func() bool { return len(s.Gulps()) == 3 })
	s.Confirm(7)
	s.stopClean(t)
}

// A connection that breaks while the reader waits for a buffer: the status
// that cannot be sent ends the stream.
func TestConnectionLostUnderBackPressure(t *testing.T) {
	t.Parallel()
	transaction := (&waltest.Builder{}).Transaction(0x100, 0x120, 1, waltest.Row{ID: 1, Payload: make([]byte, 100<<10)})
	full := make(chan struct{})
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		func(c *waltest.Conn) error {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for range 100 {
					if err := waltest.Send(transaction)(c); err != nil {
						return // cut
					}
				}
			}()
			err := waltest.Wait(full)(c)
			if err == nil {
				err = waltest.Cut()(c)
			}
			<-ended
			return err
		},
	})
	s := start(t, config(t, server.DSN()))
	eventually(t, "all buffers full", func() bool { return len(s.Gulps()) == 3 })
	close(full)
	if err := s.end(t); err == nil {
		t.Error("the stream ended cleanly")
	}
}

// A server that does not close its side after the farewell is left anyway.
func TestStopLeavesSilentServer(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		waltest.ExpectTerminate(0),
		waltest.Wait(ended),
	})
	s := start(t, config(t, server.DSN()))
	s.stopClean(t)
	close(ended)
}

func TestLargeMessage(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	var frames []byte
	for _, size := range []int{10, 5 << 20, 200 << 10, 256 << 10, 300 << 10, 10, 1 << 20} {
		frames = append(frames, b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1, Payload: bytes.Repeat([]byte{byte(size)}, size)})...)
	}
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout), waltest.Send(frames), waltest.ExpectTerminate(0),
	})
	s := start(t, config(t, server.DSN()))
	wantBytes(t, frames, s.collect(t, len(frames)))
	s.stopClean(t)
}

func TestStreamEnds(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	fatal := func(code, message string) waltest.Step {
		return waltest.SendMessage(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message})
	}
	tests := []struct {
		name string
		end  waltest.Step
		text string
	}{
		{"57P01", fatal("57P01", "terminating connection due to administrator command"), "administrator command (SQLSTATE 57P01)"},
		{"data is not repeated", fatal("22021", "invalid byte sequence: secret"), "SQLSTATE 22021"},
		{"closed", func(*waltest.Conn) error { return nil }, "closed the connection"},
		{"cut", waltest.Cut(), "connection"},
		{"CopyDone", waltest.SendMessage(&pgproto3.CopyDone{}), "the server ended the stream"},
		{"closed within a message", waltest.Send(b.Keepalive(1, false)[:9]), "closed the connection"},
		{"impossible length", waltest.Send([]byte{'d', 0xff, 0xff, 0xff, 0xff}), "impossible length"},
		{"length 0", waltest.Send([]byte{'d', 0, 0, 0, 0}), "impossible length"},
		{"unexpected message", waltest.SendMessage(&pgproto3.ParseComplete{}), "unexpected type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := waltest.Serve(t, waltest.Script{waltest.Streaming(noTimeout), waltest.Send(b.Keepalive(1, false)), tt.end})
			s := start(t, config(t, server.DSN()))
			err := s.end(t)
			if err == nil || !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got error %v, want %q", err, tt.text)
			}
			if fault.AsBlocked(err) != nil {
				t.Errorf("%v waits for a person", err)
			}
		})
	}
}

// A message as long as a backlog's read, with nothing behind it, must not
// wait in the buffer for more to come.
func TestLargeReadWithNothingBehind(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	script := waltest.Script{waltest.Streaming(noTimeout)}
	var messages [][]byte
	for i, size := range []int{33 << 10, 40 << 10, 50 << 10, 60 << 10} {
		position := pglogrepl.LSN(i + 1)
		messages = append(messages, b.Transaction(position, position, 1, waltest.Row{ID: 1, Payload: make([]byte, size)}))
		script = append(script, waltest.Send(messages[i]), waltest.ExpectConfirmed(position))
	}
	server := waltest.Serve(t, append(script, waltest.ExpectTerminate(4)))
	s := start(t, config(t, server.DSN()))
	for i, message := range messages {
		wantBytes(t, message, s.collect(t, len(message)))
		s.Confirm(pglogrepl.LSN(i + 1))
	}
	s.stopClean(t)
}

// ParameterStatus and harmless notices within the stream do not disturb it,
// even in the middle of a gulp.
func TestStreamSkipsOtherMessages(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	other, err := (&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err = (&pgproto3.NoticeResponse{Severity: "WARNING", SeverityUnlocalized: "WARNING", Code: "01000", Message: "hello"}).Encode(other)
	if err != nil {
		t.Fatal(err)
	}
	one, two := b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1}), b.Transaction(0x200, 0x220, 2, waltest.Row{ID: 2})
	server := waltest.Serve(t, waltest.Script{
		waltest.Streaming(noTimeout),
		waltest.Send(bytes.Join([][]byte{other, one, other, other, two, other}, nil)),
		waltest.ExpectTerminate(0),
	})
	s := start(t, config(t, server.DSN()))
	wantBytes(t, append(one, two...), s.collect(t, len(one)+len(two)))
	s.stopClean(t)
}
