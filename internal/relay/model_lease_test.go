package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

const (
	modelTakeover      = 3 * time.Second // without a renewal
	modelPublishWithin = 1500 * time.Millisecond
)

// modelLeadership is one instance's way to the lease. Safe for concurrent use.
type modelLeadership struct {
	w      *modelWorld
	killed bool // guarded by the world's lock: the process is gone

	term *modelTenure // the present or last one, guarded by the world's lock
}

// Acquire takes over once the lease was released, or was not renewed for long.
func (m *modelLeadership) Acquire(ctx context.Context, _ func()) (Tenure, error) {
	for {
		if t := m.try(); t != nil {
			return t, nil
		}
		if err := modelPause(ctx, renewEvery); err != nil {
			return nil, err
		}
	}
}

func (m *modelLeadership) try() *modelTenure {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.killed || w.led && time.Since(w.renewedAt) < modelTakeover {
		return nil
	}
	w.epoch++
	w.openings++
	w.led, w.renewedAt = true, time.Now()
	w.trace("epoch %d begins", w.epoch)
	m.term = &modelTenure{w: w, epoch: w.epoch, renewedAt: time.Now()}
	return m.term
}

// kill ends the process: nothing that it still does has an effect.
func (m *modelLeadership) kill() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.killed = true
	if m.term != nil {
		m.term.end()
	}
}

// depose takes the leadership away, as another instance would.
func (m *modelLeadership) depose() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.term != nil && !m.term.over {
		m.term.end()
		m.w.led = false
	}
}

// modelTenure is one epoch. Safe for concurrent use.
type modelTenure struct {
	w     *modelWorld
	epoch int64

	// guarded by the world's lock
	over      bool // nothing that is done under it has an effect any more
	renewedAt time.Time
	stalled   time.Time // renewals get no answer until then
	offers    pglogrepl.LSN
}

// end makes everything void that is done under this tenure. The world's lock
// is held.
func (t *modelTenure) end() {
	if !t.over {
		t.w.trace("epoch %d ends", t.epoch)
		t.over = true
		t.w.sessionEnded()
	}
}

func (t *modelTenure) Session() event.Session {
	return event.Session{SystemID: 1, Timeline: 1, Epoch: t.epoch}
}

func (t *modelTenure) Run(ctx context.Context, saved func(pglogrepl.LSN)) error {
	for {
		if modelPause(ctx, renewEvery) != nil {
			return nil
		}
		lsn, answer := t.renew()
		switch {
		case answer < 0:
			return fault.ErrFenced
		case answer == 0:
			continue
		case modelPause(ctx, answer) != nil:
			return nil // the answer is lost
		}
		saved(lsn)
	}
}

// renew saves what is offered; answer is how long the answer takes, negative
// when leadership is gone.
func (t *modelTenure) renew() (lsn pglogrepl.LSN, answer time.Duration) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	switch {
	case t.over:
		return 0, -1
	case time.Now().Before(t.stalled):
		return 0, 0
	}
	t.renewedAt, t.w.renewedAt = time.Now(), time.Now()
	t.w.saved = max(t.w.saved, t.offers)
	return t.offers, roundTrip
}

// Offer checks what a session takes for resolved (I1, I3, I4).
func (t *modelTenure) Offer(lsn pglogrepl.LSN) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	if t.over {
		return
	}
	if lsn < t.offers {
		t.w.violated("I1", "the watermark went from %s to %s", t.offers, lsn)
	}
	t.offers = lsn
	t.w.offered(lsn)
}

// Permit waits until the last renewal is fresh.
func (t *modelTenure) Permit(ctx context.Context) error {
	for {
		t.w.mu.Lock()
		over, fresh := t.over, time.Since(t.renewedAt) < modelPublishWithin
		t.w.mu.Unlock()
		switch {
		case over:
			return fault.ErrFenced
		case fresh:
			return nil
		}
		if err := modelPause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func (t *modelTenure) Release(context.Context, pglogrepl.LSN) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	if t.over {
		return fault.ErrFenced
	}
	t.end()
	t.w.led = false
	return nil
}

// stall keeps renewals from being answered for a while, shorter than a
// takeover takes.
func (m *modelLeadership) stall(d time.Duration) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.term != nil {
		m.term.stalled = time.Now().Add(min(d, modelTakeover-renewEvery))
	}
}
