package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// farewell bounds the wait for the server's end of the connection.
	farewell = 2 * time.Second
	// replyGap is the least time to the answer to a request for a status.
	replyGap = 100 * time.Millisecond
)

// Run reads the stream and confirms positions until ctx ends or the
// connection fails; it closes Gulps and the connection. When ctx ends, the
// last permitted position is sent before Run returns nil. An error that is no
// *fault.Blocked may pass with a new connection. Start must have succeeded;
// Run is called once.
func (s *Stream) Run(ctx context.Context) error {
	defer close(s.gulps)
	defer s.Close()
	reader := &reader{
		conn:     s.stream,
		caughtUp: s.socket.caughtUp,
		seen:     s.seen,
		free:     newBuffers(),
		gulps:    s.gulps,
		beat:     s.pulse.Start("receiver"),
	}
	defer reader.beat.End()
	quit, cancel := context.WithCancel(ctx)
	defer cancel()
	var readErr error
	readEnded := make(chan struct{})
	go func() {
		defer close(readEnded)
		readErr = reader.run(ctx, quit)
	}()
	err := s.report(ctx, readEnded)
	cancel()            // the reader may wait for a buffer
	s.socket.shutdown() // or in a read
	<-readEnded
	if readErr != nil {
		return s.explain(ctx, s.rhythm.tell(readErr))
	}
	return err
}

// report sends standby statuses until ctx or the reading ends.
func (s *Stream) report(ctx context.Context, readEnded <-chan struct{}) error {
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	beat := s.pulse.Start("confirmation")
	defer beat.End()
	var status standbyStatus
	for {
		beat.Work()
		if err := s.send(&status); err != nil {
			return err
		}
		beat.Rest()
		if !s.wait(ctx, readEnded, ticker, status.sent) {
			break
		}
	}
	select {
	case <-readEnded:
		return nil
	default:
		return s.leave(&status, readEnded)
	}
}

// wait returns true when it is time for a status, false at the end.
func (s *Stream) wait(ctx context.Context, readEnded <-chan struct{}, ticker *time.Ticker, sent time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-readEnded:
			return false
		case <-ticker.C:
			return true
		case <-s.seen.reply:
			// the server asks often while it is behind: what it got just now,
			// and what the ticker sends, are answers too
			if time.Since(sent) >= replyGap {
				return true
			}
		}
	}
}

// leave sends the last permitted position and takes leave of the server. It
// gives the server a moment to close its side, since closing ours while data
// is on its way would make the position be lost with the connection.
func (s *Stream) leave(status *standbyStatus, readEnded <-chan struct{}) error {
	if err := s.send(status); err != nil {
		return err
	}
	terminate, err := (&pgproto3.Terminate{}).Encode(nil)
	if err == nil {
		_, err = s.stream.Write(terminate)
	}
	if err != nil {
		return fmt.Errorf("taking leave of the server: %w", err)
	}
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-readEnded:
	case <-timer.C:
	}
	return nil
}

// send sends a status with the last permitted position.
func (s *Stream) send(status *standbyStatus) error {
	now := time.Now()
	lsn := s.permitted.Load()
	silent := now.Sub(s.seen.receivedAt()) >= s.patience
	if _, err := s.stream.Write(status.encode(lsn, now, silent)); err != nil {
		return fmt.Errorf("confirming position %s: %w", pglogrepl.LSN(lsn), err)
	}
	s.confirmed.Store(lsn)
	s.rhythm.beat(now)
	return nil
}

// sendRhythm is how regularly statuses were sent. The server ends a connection
// that has been silent for too long without a word, so this tells whose fault
// it was.
type sendRhythm struct {
	last    time.Time
	longest time.Duration // between two statuses
}

func (r *sendRhythm) beat(now time.Time) {
	if !r.last.IsZero() {
		r.longest = max(r.longest, now.Sub(r.last))
	}
	r.last = now
}

// tell adds to an error of the network how regularly statuses were sent.
func (r *sendRhythm) tell(err error) error {
	var network syscall.Errno
	if r.last.IsZero() || !errors.As(err, &network) && !errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("%w (the last status was sent %v ago, the longest pause between two was %v)",
		err, time.Since(r.last).Round(time.Millisecond), r.longest.Round(time.Millisecond))
}

// standbyStatus is a standby status update in its CopyData frame.
type standbyStatus struct {
	frame [headerSize + 34]byte
	sent  time.Time
}

// postgresEpoch is 2000-01-01 in microseconds since the Unix epoch.
const postgresEpoch = 946_684_800_000_000

// encode sets all three positions: the flushed one is what moves the slot.
// wantReply asks the server for a keepalive.
func (s *standbyStatus) encode(lsn uint64, now time.Time, wantReply bool) []byte {
	s.sent = now
	f := s.frame[:]
	f[0] = copyData
	binary.BigEndian.PutUint32(f[1:], uint32(len(f)-1))
	f[5] = pglogrepl.StandbyStatusUpdateByteID
	for _, position := range []int{6, 14, 22} { // written, flushed, applied
		binary.BigEndian.PutUint64(f[position:], lsn)
	}
	binary.BigEndian.PutUint64(f[30:], uint64(now.UnixMicro()-postgresEpoch))
	f[38] = 0
	if wantReply {
		f[38] = 1
	}
	return f
}
