package consumer

import (
	"context"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// modelStore implements memory, for a process.
type modelStore struct{ p *modelProcess }

func (m modelStore) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	return modelAsk(ctx, m.p, func() ([]store.Claim, error) {
		list := m.p.w.table.claim(m.p.owner, refs)
		for _, c := range list {
			m.p.w.claimed(m.p, c.Held())
		}
		return list, nil
	})
}

// modelTaken is the answer of TakeOver.
type modelTaken struct {
	won        store.Claim
	parked, ok bool
}

func (m modelStore) TakeOver(ctx context.Context, ref store.Ref) (store.Claim, bool, bool, error) {
	a, err := modelAsk(ctx, m.p, func() (a modelTaken, err error) {
		if a.won, a.parked, a.ok = m.p.w.table.takeOver(m.p.owner, ref); a.ok {
			m.p.w.takenOver(m.p, a)
		}
		return a, nil
	})
	return a.won, a.parked, a.ok, err
}

func (m modelStore) States(ctx context.Context, refs []store.Ref) ([]store.State, error) {
	return modelAsk(ctx, m.p, func() ([]store.State, error) { return m.p.w.table.states(refs), nil })
}

func (m modelStore) Renew(ctx context.Context, held []store.Held) (renewed, locked []store.Held, err error) {
	return m.each(ctx, func() (a [2][]store.Held, err error) {
		a[0], a[1] = m.p.w.table.renew(held)
		return a, nil
	})
}

func (m modelStore) DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error) {
	return m.each(ctx, func() (a [2][]store.Held, err error) {
		a[0], a[1] = m.p.w.table.doneNow(held)
		for _, h := range a[0] {
			m.p.w.done(m.p, h)
		}
		return a, nil
	})
}

// Done is for Claim.Consumed only, which the line does not call.
func (m modelStore) Done(ctx context.Context, held []store.Held) ([]store.Held, error) {
	kept, _, err := m.DoneNow(ctx, held)
	return kept, err
}

func (m modelStore) each(ctx context.Context, effect func() ([2][]store.Held, error)) (written, locked []store.Held, err error) {
	a, err := modelAsk(ctx, m.p, effect)
	return a[0], a[1], err
}

func (m modelStore) HandBack(ctx context.Context, held []store.Held) error {
	_, err := modelAsk(ctx, m.p, func() (struct{}, error) {
		var ours []store.Held
		for _, h := range held {
			if m.p.w.table.ours(h) != nil {
				ours = append(ours, h)
			}
		}
		err := m.p.w.table.handBack(held)
		if err == nil {
			m.p.w.handedBack(m.p, ours)
		}
		return struct{}{}, err
	})
	return err
}

func (m modelStore) Fail(ctx context.Context, f store.Failure) (bool, error) {
	return modelAsk(ctx, m.p, func() (bool, error) {
		ok, err := m.p.w.table.fail(f)
		if ok {
			m.p.w.failed(m.p, f)
		}
		return ok, err
	})
}

func (m modelStore) Release(ctx context.Context, r store.Release) (bool, error) {
	return modelAsk(ctx, m.p, func() (bool, error) {
		ok, err := m.p.w.table.release(r)
		if ok {
			m.p.w.released(m.p, r)
		}
		return ok, err
	})
}

// modelQuarantine implements quarantine, for a process.
type modelQuarantine struct{ p *modelProcess }

func (q modelQuarantine) Put(ctx context.Context, r store.Record) error {
	_, err := modelAsk(ctx, q.p, func() (struct{}, error) {
		q.p.w.keep(r)
		return struct{}{}, nil
	})
	return err
}

func (q modelQuarantine) AskedToRetry(ctx context.Context, after int64, limit int) ([]store.Stored, error) {
	return modelAsk(ctx, q.p, func() (list []store.Stored, err error) {
		for _, k := range q.p.w.kept {
			if k.ID > after && len(list) < limit && k.resolution == "retry" && !k.resolved {
				list = append(list, k.Stored)
			}
		}
		return list, nil
	})
}

func (q modelQuarantine) Resolve(ctx context.Context, id int64, resolution string) error {
	_, err := q.change(ctx, id, func(k *modelKept) {
		k.resolved, k.resolution = true, resolution
		q.p.w.retried(k)
	})
	return err
}

func (q modelQuarantine) Reopen(ctx context.Context, id int64, reason, message string) (bool, error) {
	return q.change(ctx, id, func(k *modelKept) { k.resolution, k.Reason, k.Message = "", reason, message })
}

// change changes a row that is to be retried.
func (q modelQuarantine) change(ctx context.Context, id int64, do func(*modelKept)) (bool, error) {
	return modelAsk(ctx, q.p, func() (bool, error) {
		for _, k := range q.p.w.kept {
			if k.ID == id && k.resolution == "retry" && !k.resolved {
				do(k)
				return true, nil
			}
		}
		return false, nil
	})
}

// keep stores a record in the quarantine, or counts it. The lock is held.
func (w *modelWorld) keep(r store.Record) {
	for _, k := range w.kept {
		if k.Partition == r.Partition && k.Offset == r.Offset {
			k.seen++
			return
		}
	}
	w.quarantined(r)
	w.kept = append(w.kept, &modelKept{Stored: store.Stored{ID: int64(len(w.kept) + 1), Record: r}, seen: 1})
	w.trace("quarantined %d of %d: %s", r.Offset, r.Partition, r.Reason)
}
