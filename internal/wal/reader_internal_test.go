package wal

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// chunks is a connection that delivers one chunk at each read, or what of it
// the reader has room for. It ends with EOF.
type chunks struct {
	rest [][]byte
	last int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[0])
	c.rest[0] = c.rest[0][n:]
	if len(c.rest[0]) == 0 {
		c.rest = c.rest[1:]
	}
	c.last = n
	return n, nil
}

func (c *chunks) caughtUp() bool { return c.last < backlogRead || len(c.rest) == 0 }

// gulp is what a test looks at.
type gulp struct {
	frames []byte
	paused bool
}

// readAll runs a reader over the chunks with a receiver that releases at once.
func readAll(t interface {
	Helper()
	Errorf(string, ...any)
}, list ...[]byte) ([]gulp, *reader) {
	t.Helper()
	conn := &chunks{rest: list}
	out := make(chan event.Gulp, bufferCount)
	r := &reader{conn: conn, caughtUp: conn.caughtUp, seen: newProgress(), free: newBuffers(), gulps: out}
	var got []gulp
	done := make(chan struct{})
	go func() {
		defer close(done)
		for g := range out {
			got = append(got, gulp{bytes.Clone(g.Frames), g.Paused})
			g.Release()
		}
	}()
	if err := r.run(context.Background(), context.Background()); err == nil {
		t.Errorf("the end of the connection is no error")
	}
	close(out)
	<-done
	return got, r
}

func joined(gulps []gulp) (all []byte) {
	for _, g := range gulps {
		all = append(all, g.frames...)
	}
	return all
}

// sample is a stream with a message that is not CopyData in it, and the same
// without it.
func sample() (stream, frames []byte) {
	b := &waltest.Builder{}
	parts := [][]byte{b.Keepalive(1, false), b.Relation(), b.Transaction(0x100, 0x120, 1, waltest.Row{ID: 1, Payload: []byte("p")}), b.Keepalive(0x120, true)}
	other, _ := (&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}).Encode(nil) // cannot fail
	for i, part := range parts {
		frames = append(frames, part...)
		stream = append(stream, part...)
		if i == 1 {
			stream = append(stream, other...)
		}
	}
	return stream, frames
}

func TestReaderSplitAnywhere(t *testing.T) {
	t.Parallel()
	stream, frames := sample()
	for at := range stream {
		got, _ := readAll(t, bytes.Clone(stream[:at]), bytes.Clone(stream[at:]))
		if !bytes.Equal(joined(got), frames) {
			t.Errorf("split at %d: got other frames", at)
		}
	}
	var single [][]byte
	for _, b := range stream {
		single = append(single, []byte{b})
	}
	got, r := readAll(t, single...)
	if !bytes.Equal(joined(got), frames) {
		t.Error("split everywhere: got other frames")
	}
	if r.seen.end() != 0x120 || len(r.seen.reply) != 1 {
		t.Error("the last keepalive was not seen")
	}
}

// Whatever the sizes of messages and reads, every byte arrives once, in whole
// frames, and no buffer stays large.
func TestReaderProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(180<<10, 400<<10)), 1, 8).Draw(t, "message sizes")
		for i, size := range sizes {
			stream = append(stream, waltest.CopyData(bytes.Repeat([]byte{byte(i + 1)}, size))...)
		}
		var list [][]byte
		for rest := bytes.Clone(stream); len(rest) > 0; {
			n := min(rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 200<<10)).Draw(t, "read"), len(rest))
			list, rest = append(list, rest[:n]), rest[n:]
		}
		got, r := readAll(t, list...)
		for _, g := range got {
			for frames := g.frames; len(frames) > 0; {
				size := 1 + int(frames[1])<<24 + int(frames[2])<<16 + int(frames[3])<<8 + int(frames[4])
				if size > len(frames) {
					t.Fatal("a gulp ends within a frame")
				}
				frames = frames[size:]
			}
		}
		if !bytes.Equal(joined(got), stream) {
			t.Fatal("the gulps are not what was sent")
		}
		for len(r.free) > 0 {
			if b := <-r.free; len(b.data) != bufferSize {
				t.Fatalf("a buffer of %d bytes was kept", len(b.data))
			}
		}
	})
}

// A read that takes all there is hands over at once; a backlog is collected
// until the buffer is nearly full.
func TestReaderCollectsBacklog(t *testing.T) {
	t.Parallel()
	frame := waltest.CopyData(bytes.Repeat([]byte{'x'}, backlogRead-headerSize)) // as long as a backlog's read
	small := waltest.CopyData([]byte("x"))
	const fill = (bufferSize - readRoom) / backlogRead // reads until the room is short
	type shape struct {
		Bytes  int
		Paused bool
	}
	repeat := func(n int) (list [][]byte) {
		for range n {
			list = append(list, bytes.Clone(frame))
		}
		return list
	}
	tests := []struct {
		name string
		list [][]byte
		want []shape
	}{
		{"low rate", [][]byte{small, small}, []shape{{len(small), true}, {len(small), true}}},
		{"backlog, then caught up", append(repeat(2), small), []shape{{2*len(frame) + len(small), true}}},
		{"long backlog", append(repeat(fill+2), small), []shape{{(fill + 1) * len(frame), false}, {len(frame) + len(small), true}}},
		{"a backlog ends with a large read", repeat(2), []shape{{2 * len(frame), true}}},
		{"half a frame is waited for", [][]byte{small[:3], small[3:]}, []shape{{len(small), true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, _ := readAll(t, tt.list...)
			var shapes []shape
			for _, g := range got {
				shapes = append(shapes, shape{len(g.frames), g.paused})
			}
			if d := cmp.Diff(tt.want, shapes); d != "" {
				t.Errorf("gulps (-want +got):\n%s", d)
			}
		})
	}
}

// Rule: nothing is allocated for an event. What is left is per gulp.
func TestReaderDoesNotAllocate(t *testing.T) {
	stream, _ := sample()
	var many []byte
	for range 100 {
		many = append(many, waltest.CopyData([]byte("wxyz"))...)
	}
	for name, data := range map[string][]byte{"few frames": stream, "many frames": many} {
		conn := &chunks{}
		out := make(chan event.Gulp, bufferCount)
		r := &reader{conn: conn, caughtUp: conn.caughtUp, seen: newProgress(), free: newBuffers(), gulps: out}
		r.buf = <-r.free
		quit := context.Background()
		allocs := testing.AllocsPerRun(100, func() {
			r.filled += copy(r.buf.data[r.filled:], data)
			if err := r.cut(); err != nil || !r.handOver(quit) {
				t.Fatal(err)
			}
			g := <-out
			g.Release()
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// The driver must not get a byte of what follows the answer to
// START_REPLICATION, in however small pieces it comes.
func TestHandshakeStopsAtStream(t *testing.T) {
	t.Parallel()
	first, _ := (&pgproto3.ParameterStatus{Name: "a", Value: "b"}).Encode(nil) // cannot fail
	ready, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil)
	copyBoth := []byte{'W', 0, 0, 0, 7, 0, 0, 0}
	handshakeBytes := bytes.Join([][]byte{first, ready, copyBoth}, nil)
	all := append(bytes.Clone(handshakeBytes), "stream"...)
	for at := range all {
		conn := &netChunks{chunks: chunks{rest: [][]byte{bytes.Clone(all[:at]), bytes.Clone(all[at:])}}}
		if at == 0 {
			conn.rest = conn.rest[1:]
		}
		got, err := io.ReadAll(&handshake{Conn: conn})
		if err != errStreaming || !bytes.Equal(got, handshakeBytes) {
			t.Errorf("split at %d: the driver got %q, error %v", at, got, err)
		}
		if rest, _ := io.ReadAll(conn); string(rest) != "stream" {
			t.Errorf("split at %d: the stream begins with %q", at, rest)
		}
	}
}

// The driver reads from two goroutines when it gives a connection up while a
// write is slow; the race detector once told.
func TestHandshakeReadByTwo(t *testing.T) {
	t.Parallel()
	ready, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil) // cannot fail
	client, server := net.Pipe()
	h := &handshake{Conn: client}
	var got atomic.Int64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			n, _ := io.Copy(io.Discard, h) // until the pipe is closed
			got.Add(n)
		})
	}
	const messages = 100
	for range messages {
		if _, err := server.Write(ready); err != nil {
			t.Fatal(err)
		}
	}
	server.Close()
	readers.Wait()
	if got.Load() != int64(messages*len(ready)) {
		t.Errorf("%d bytes arrived, want %d", got.Load(), messages*len(ready))
	}
}

// netChunks makes chunks a net.Conn that can only be read.
type netChunks struct {
	net.Conn
	chunks
}

func (c *netChunks) Read(p []byte) (int, error) { return c.chunks.Read(p) }
