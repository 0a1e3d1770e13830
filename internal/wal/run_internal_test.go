package wal

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorder takes down when which status was written.
type recorder struct {
	net.Conn
	start    time.Time
	statuses []sent
}

type sent struct {
	At        time.Duration
	Confirmed uint64
	Asks      bool // for a keepalive
}

func (r *recorder) Write(p []byte) (int, error) {
	if len(p) == headerSize+34 { // else it takes leave
		lsn := uint64(p[29]) // of the applied position, the last byte
		r.statuses = append(r.statuses, sent{At: time.Since(r.start), Confirmed: lsn, Asks: p[38] == 1})
	}
	return len(p), nil
}

func TestIntervalsOfStatuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &recorder{start: time.Now()}
		s := &Stream{interval: time.Second, patience: 2500 * time.Millisecond, stream: conn, seen: newProgress()}
		ctx, cancel := context.WithCancel(t.Context())
		readEnded, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			if err := s.report(ctx, readEnded); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		at := func(d time.Duration, do func()) {
			<-time.After(d - time.Since(conn.start)) // virtual time
			do()
			synctest.Wait()
		}
		keepalive := func(reply byte) func() {
			return func() {
				s.seen.received(time.Now())
				s.seen.keepalive(append(make([]byte, 16), reply))
			}
		}
		at(0, keepalive(0))
		at(500*time.Millisecond, func() { s.Confirm(5) })
		at(600*time.Millisecond, keepalive(1))  // answered at once
		at(650*time.Millisecond, keepalive(1))  // has been answered just now
		at(1200*time.Millisecond, keepalive(0)) // asks nothing
		at(4500*time.Millisecond, func() { s.Confirm(4); s.Confirm(6); cancel() })
		close(readEnded)
		<-ended

		want := []sent{
			{0, 0, true}, // nothing was received yet
			{600 * time.Millisecond, 5, false},
			{1 * time.Second, 5, false},
			{2 * time.Second, 5, false},
			{3 * time.Second, 5, false},
			{4 * time.Second, 5, true}, // 2.8 s of silence
			{4500 * time.Millisecond, 6, true},
		}
		if d := cmp.Diff(want, conn.statuses); d != "" {
			t.Errorf("statuses (-want +got):\n%s", d)
		}
		if s.Confirmed() != 6 {
			t.Errorf("confirmed %s, want 0/6", s.Confirmed())
		}
	})
}

// A server that does not close its side delays the end by the farewell only.
func TestFarewellIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Stream{interval: time.Second, stream: &recorder{}, seen: newProgress()}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		if err := s.report(ctx, make(chan struct{})); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != farewell {
			t.Errorf("took %v, want %v", took, farewell)
		}
	})
}

func TestIntervals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                  string
		serverTimeout, wanted time.Duration
		interval, patience    time.Duration
	}{
		{"default of the server", time.Minute, time.Second, time.Second, 30 * time.Second},
		{"no time-out", 0, 0, time.Second, 30 * time.Second},
		{"short time-out", 2 * time.Second, time.Second, 200 * time.Millisecond, time.Second},
		{"wanted more often", time.Minute, 100 * time.Millisecond, 100 * time.Millisecond, 30 * time.Second},
		{"wanted less often", time.Minute, time.Hour, time.Second, 30 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			interval, patience := intervals(tt.serverTimeout, tt.wanted)
			if interval != tt.interval || patience != tt.patience {
				t.Errorf("intervals(%v, %v) = %v, %v, want %v, %v", tt.serverTimeout, tt.wanted, interval, patience, tt.interval, tt.patience)
			}
		})
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	type read struct {
		at    time.Duration // since the start
		bytes int
		pause time.Duration // before the next read, 100 µs later
	}
	const ms = time.Millisecond
	tests := []struct {
		name  string
		reads []read
	}{
		{"low rate", []read{{0, 300, 0}, {ms, 300, 0}, {2 * ms, 300, 0}}},
		{"backlog", []read{{0, 60 << 10, 0}, {ms, 60 << 10, 0}, {2 * ms, 32 << 10, 0}}},
		{"caught up with a sustained rate", []read{{0, 60 << 10, 0}, {ms, 10 << 10, pauseTime}}},
		{"caught up across two windows", []read{{0, 300, 0}, {9 * ms, 100 << 10, 0}, {11 * ms, 300, pauseTime}}},
		{"one burst", []read{{0, 40 << 10, 0}, {ms, 10 << 10, 0}, {2 * ms, 300, 0}}},
		{"poor pauses in a row end it", []read{{0, 60 << 10, 0}, {ms, 10 << 10, pauseTime}, {12 * ms, 300, pauseTime},
			{23 * ms, 300, pauseTime}, {34 * ms, 300, 0}, {35 * ms, 300, 0}}},
		{"a good pause among poor ones", []read{{0, 60 << 10, 0}, {ms, 10 << 10, pauseTime}, {12 * ms, 300, pauseTime},
			{23 * ms, 300, pauseTime}, {34 * ms, 40 << 10, 0}, {35 * ms, 300, pauseTime}, {46 * ms, 300, pauseTime}}},
		{"a rate just under", []read{{0, 31 << 10, 0}, {9 * ms, 31 << 10, 0}, {19 * ms, 31 << 10, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Unix(1000, 0)
			var p pace
			for i, r := range tt.reads {
				now := start.Add(r.at)
				p.read(r.bytes, now)
				if got := p.pause(now.Add(100 * time.Microsecond)); got != r.pause {
					t.Errorf("read %d: pause %v, want %v", i, got, r.pause)
				}
			}
		})
	}
}
