package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelSource delivers the WAL from the confirmed position on, cut into gulps
// anywhere between two messages.
type modelSource struct {
	w      *modelWorld
	term   *modelTenure
	random *modelRandom
	gulps  chan event.Gulp
	more   chan struct{}
	cut    chan struct{} // closed: the connection breaks
}

func newModelSource(w *modelWorld, term *modelTenure) *modelSource {
	return &modelSource{
		w: w, term: term, random: w.random("source"),
		gulps: make(chan event.Gulp), more: make(chan struct{}, 1), cut: make(chan struct{}),
	}
}

func (s *modelSource) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *modelSource) Gulps() <-chan event.Gulp { return s.gulps }

// Confirm checks I2.
func (s *modelSource) Confirm(lsn pglogrepl.LSN) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.term.over {
		return
	}
	if lsn > s.w.saved || lsn > s.term.offers {
		s.w.violated("I2", "%s was confirmed, %s is saved, the watermark is %s", lsn, s.w.saved, s.term.offers)
	}
	s.w.confirmed = max(s.w.confirmed, lsn)
}

// modelKeepalive is how often an idle server says where it stands.
const modelKeepalive = 10 * time.Second

func (s *modelSource) Run(ctx context.Context) error {
	defer close(s.gulps)
	s.w.mu.Lock()
	from := s.w.confirmed
	s.w.mu.Unlock()
	var queue [][]byte
	described := false
	for next := 0; ; {
		var news [][]byte
		news, next = s.read(next, from)
		if len(news) > 0 && !described {
			described = true
			queue = append(queue, s.w.builder.Relation())
		}
		queue = append(queue, news...)
		if len(queue) > 0 {
			n := len(queue)
			if s.random.chance(60) {
				n = s.random.upTo(n)
			}
			if err := s.send(ctx, queue[:n], n == len(queue)); err != nil {
				return ignoreEnd(ctx, err)
			}
			queue = queue[n:]
			continue
		}
		select {
		case <-s.more:
		case <-time.After(modelKeepalive):
			queue = append(queue, s.idle())
		case <-s.cut:
			return errCut
		case <-ctx.Done():
			return nil
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// read returns the messages of transactions that have been committed since,
// and sometimes a keepalive behind them.
func (s *modelSource) read(next int, from pglogrepl.LSN) (frames [][]byte, after int) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for ; next < len(s.w.wal); next++ {
		if s.w.wal[next].end > from {
			frames = append(frames, s.w.wal[next].frames...)
			if s.random.chance(10) && next == len(s.w.wal)-1 {
				frames = append(frames, s.w.builder.Keepalive(s.w.wal[next].end, false))
			}
		}
	}
	return frames, next
}

// idle is what a server says while others write WAL that is not for us.
func (s *modelSource) idle() []byte {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.lsn += 8
	s.w.foreign = append(s.w.foreign, s.w.lsn)
	return s.w.builder.Keepalive(s.w.lsn, false)
}

func (s *modelSource) send(ctx context.Context, frames [][]byte, paused bool) error {
	select {
	case <-time.After(s.random.latency() / 2):
	case <-s.cut:
		return errCut
	case <-ctx.Done():
		return ctx.Err()
	}
	g := event.Gulp{Paused: paused, Release: func() {}}
	for _, f := range frames {
		g.Frames = append(g.Frames, f...)
	}
	select {
	case s.gulps <- g:
		return nil
	case <-s.cut:
		return errCut
	case <-ctx.Done():
		return ctx.Err()
	}
}
