package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// modelGroup is the coordinator of the group, guarded by the world's lock. It
// makes everybody give up all partitions in each rebalance.
type modelGroup struct {
	generation int
	preparing  bool // a rebalance is under way
	members    []*modelMember
	committed  [modelPartitions]int64 // 0: nothing
	assigned   [modelPartitions]modelAssignment
	reset      bool // a person has moved an offset
}

// modelAssignment is since when a partition is read from where.
type modelAssignment struct {
	from int64
	at   time.Time
}

// modelSession is after how long a silent member is taken for dead.
const modelSession = 10 * time.Second

// modelMember is a process in the group.
type modelMember struct {
	p      *modelProcess
	joined bool                    // waits for the next generation
	next   chan []group.Assignment // has room for one
	number int                     // of its generation
	revoke context.CancelFunc
}

// run is a member until ctx ends, as group.Member.Run.
func (m *modelMember) run(ctx context.Context, work work) error {
	for {
		assigned, ok := m.join(ctx)
		if !ok {
			break
		}
		revoked, revoke := context.WithCancel(context.WithoutCancel(ctx))
		m.p.w.entered(m, revoke)
		work(revoked, assigned, m)
		revoke()
		if ctx.Err() != nil {
			break
		}
	}
	m.leave()
	return nil
}

// join waits for a generation; false if ctx ends before.
func (m *modelMember) join(ctx context.Context) ([]group.Assignment, bool) {
	if m.p.pause(ctx, m.p.random.latency()) != nil {
		return nil, false
	}
	m.p.w.join(m)
	select {
	case list := <-m.next:
		return list, true
	case <-ctx.Done():
		return nil, false
	}
}

func (w *modelWorld) join(m *modelMember) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.p.over {
		return
	}
	if !slices.Contains(w.group.members, m) {
		w.group.members = append(w.group.members, m)
	}
	m.joined, m.revoke = true, nil
	w.prepare()
	w.complete()
}

// entered tells how to revoke a generation, which may be over already.
func (w *modelWorld) entered(m *modelMember, revoke context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.revoke = revoke; w.group.preparing || m.number != w.group.generation {
		w.tell(m)
	}
}

func (m *modelMember) leave() {
	m.p.w.mu.Lock()
	defer m.p.w.mu.Unlock()
	if !m.p.over { // else the coordinator does not hear of it
		m.p.w.evict(m)
	}
}

// evict takes a member out of the group. The lock is held.
func (w *modelWorld) evict(m *modelMember) {
	if !slices.Contains(w.group.members, m) {
		return
	}
	w.group.members = slices.DeleteFunc(w.group.members, func(o *modelMember) bool { return o == m })
	w.trace("%s is out of the group", m.p.owner)
	m.joined = false
	w.tell(m)
	w.prepare()
	w.complete()
}

// prepare begins a rebalance. The lock is held.
func (w *modelWorld) prepare() {
	if w.group.preparing {
		return
	}
	w.group.preparing = true
	w.trace("rebalance")
	for _, m := range slices.Clone(w.group.members) {
		w.tell(m)
		number := w.group.generation
		time.AfterFunc(modelSession, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.group.preparing && w.group.generation == number && !m.joined {
				w.evict(m)
			}
		})
	}
}

// tell lets a member learn by a heartbeat that its generation is over. The lock
// is held.
func (w *modelWorld) tell(m *modelMember) {
	if m.revoke == nil {
		return
	}
	revoke := m.revoke
	time.AfterFunc(time.Duration(m.p.random.upTo(1000))*time.Millisecond, func() {
		if m.p.gate() == nil {
			revoke()
		}
	})
}

// complete begins the next generation once all are there. The lock is held.
func (w *modelWorld) complete() {
	g := &w.group
	if len(g.members) == 0 {
		g.preparing = false
		return
	}
	if !g.preparing || slices.ContainsFunc(g.members, func(m *modelMember) bool { return !m.joined }) {
		return
	}
	g.generation++
	g.preparing = false
	lists := make([][]group.Assignment, len(g.members))
	first := w.random.upTo(len(g.members))
	for part := range modelPartitions {
		i := (first + part) % len(g.members)
		from := g.committed[part]
		if from == 0 {
			from = -1
		}
		lists[i] = append(lists[i], group.Assignment{Partition: group.Partition{Topic: modelTopic, Number: part}, Offset: from})
		g.assigned[part] = modelAssignment{g.committed[part], time.Now()}
	}
	for i, m := range g.members {
		m.joined, m.number = false, g.generation
		w.trace("generation %d: %s has %v", g.generation, m.p.owner, lists[i])
		m.next <- lists[i]
	}
}

// Commit implements offsets.
func (m *modelMember) Commit(ctx context.Context, offsets map[group.Partition]int64) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	number := m.number
	elapse(min(m.p.random.latency(), 2*time.Second))
	if err := m.p.gate(); err != nil {
		return err
	}
	err := m.p.w.commit(m, number, offsets)
	elapse(min(m.p.random.latency(), 2*time.Second))
	if err == nil && m.p.random.chance(3) {
		return errors.New("the answer is lost")
	}
	return errors.Join(err, m.p.gate())
}

func (w *modelWorld) commit(m *modelMember, number int, offsets map[group.Partition]int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case time.Now().Before(w.trouble.kafka):
		return errors.New("Kafka is down")
	case m.p.over || number != w.group.generation || !slices.Contains(w.group.members, m):
		return group.ErrRevoked
	}
	for p, offset := range offsets {
		w.committing(p.Number, offset)
		w.group.committed[p.Number] = offset
		w.trace("%s commits %d of %d", m.p.owner, offset, p.Number)
	}
	return nil
}

// modelWait is how long a read waits for records.
const modelWait = 2 * time.Second

// Read implements source.
func (p *modelProcess) Read(ctx context.Context, at group.Partition, from int64) (group.Batch, error) {
	if err := p.pause(ctx, p.random.latency()); err != nil {
		return group.Batch{}, err
	}
	within, cancel := context.WithTimeout(ctx, modelWait)
	defer cancel()
	for {
		batch, added, err := p.w.read(at.Number, max(from, 0), p.random)
		if err != nil || added == nil {
			return batch, err
		}
		select {
		case <-added:
		case <-within.Done():
			return batch, ctx.Err()
		}
	}
}

// read returns the records of a partition from an offset on, or what tells that
// there are more.
func (w *modelWorld) read(part int, from int64, random *modelRandom) (group.Batch, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.trouble.kafka) {
		return group.Batch{}, nil, errors.New("Kafka is down")
	}
	l := &w.logs[part]
	if from > l.end {
		return group.Batch{}, nil, fmt.Errorf("reading: %w", &group.OffsetError{Offset: from, End: l.end})
	}
	b := group.Batch{Next: l.end, End: l.end}
	most := random.upTo(8)
	for _, rec := range l.records {
		switch {
		case rec.Offset < from:
		case len(b.Records) < most:
			b.Records = append(b.Records, rec.Record)
		default:
			b.Next = rec.Offset
			return b, nil, nil
		}
	}
	if len(b.Records) > 0 {
		return b, nil, nil
	}
	return b, l.added, nil
}
