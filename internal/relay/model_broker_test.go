package relay

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelOutcomes are the rows of a mail, by what was said of them, in order.
type modelOutcomes struct{ Acked, Refused, Held, Untracked []int64 }

func (o *modelOutcomes) collect(in *Inbox) {
	m := in.take()
	note := func(list *[]int64, refs []event.Ref) {
		for _, ref := range refs {
			if ref.Seq == event.Untracked {
				o.Untracked = append(o.Untracked, ref.ID)
				continue
			}
			*list = append(*list, ref.ID)
		}
	}
	for _, refs := range m.acked {
		note(&o.Acked, refs)
	}
	for _, r := range m.refused {
		note(&o.Refused, r.refs)
	}
	for _, h := range m.held {
		note(&o.Held, h.refs)
	}
	for _, list := range []*[]int64{&o.Acked, &o.Refused, &o.Held, &o.Untracked} {
		slices.Sort(*list)
	}
}

// Every event gets one outcome. What comes after a refused event of its
// aggregate is held, until the line says Guard.
func TestModelPublisher(t *testing.T) {
	t.Parallel()
	bad := modelFault{permanent: true, times: -1}
	type hand struct {
		ids   []int64
		guard string // an aggregate to be guarded before
		pause time.Duration
	}
	for _, c := range []struct {
		name string
		rows string // a letter for each row: its aggregate, in lower case if it is not ordered
		bad  []int64
		hand []hand
		want modelOutcomes
	}{
		{"nothing is wrong", "AAB", nil, []hand{{ids: []int64{1, 2, 3}}}, modelOutcomes{Acked: []int64{1, 2, 3}}},
		{"in the batch and behind it", "AAACAA", []int64{2}, []hand{{ids: []int64{1, 2, 3, 4}}, {ids: []int64{5, 6}}},
			modelOutcomes{Acked: []int64{1, 4}, Refused: []int64{2}, Held: []int64{3, 5, 6}}},
		{"handed over later", "AAC", []int64{1}, []hand{{ids: []int64{1}, pause: time.Minute}, {ids: []int64{2, 3}}},
			modelOutcomes{Acked: []int64{3}, Refused: []int64{1}, Held: []int64{2}}},
		{"handed over after Guard", "AAC", []int64{1}, []hand{{ids: []int64{1}, pause: time.Minute}, {ids: []int64{2}, guard: "A"}, {ids: []int64{3}}},
			modelOutcomes{Acked: []int64{2, 3}, Refused: []int64{1}}},
		{"another one's Guard", "AAC", []int64{1}, []hand{{ids: []int64{1}, pause: time.Minute}, {ids: []int64{2}, guard: "C"}},
			modelOutcomes{Refused: []int64{1}, Held: []int64{2}}},
		{"refused again after Guard", "AAA", []int64{1, 2},
			[]hand{{ids: []int64{1}, pause: time.Minute}, {ids: []int64{2}, guard: "A", pause: time.Minute}, {ids: []int64{3}}},
			modelOutcomes{Refused: []int64{1, 2}, Held: []int64{3}}},
		{"two bad ones of an aggregate", "AAA", []int64{1, 3}, []hand{{ids: []int64{1, 2, 3}}}, modelOutcomes{Refused: []int64{1}, Held: []int64{2, 3}}},
		{"no order", "aaa", []int64{1, 3}, []hand{{ids: []int64{1, 2, 3}}}, modelOutcomes{Acked: []int64{2}, Refused: []int64{1, 3}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				bubble(t, func(t *testing.T, ctx context.Context) {
					p, in, events := modelPublishing(ctx, seed, c.rows)
					for _, id := range c.bad {
						p.w.kafka.faults[id] = bad
					}
					for _, h := range c.hand {
						if h.guard != "" {
							p.Guard([]uint64{uint64(h.guard[0])})
						}
						for _, id := range h.ids {
							p.Publish(events[id-1 : id])
						}
						p.Flush()
						elapse(h.pause)
					}
					elapse(time.Minute)
					var got modelOutcomes
					got.collect(in)
					if diff := cmp.Diff(c.want, got); diff != "" {
						t.Errorf("seed %d (-want +got):\n%s", seed, diff)
					}
				})
			}
		})
	}
}

// modelPublishing is a publisher at work, and an event for each letter. All go
// to one partition.
func modelPublishing(ctx context.Context, seed uint64, letters string) (*modelPublisher, *Inbox, []event.Event) {
	w := modelTable(make([]modelRow, len(letters))...)
	w.seed = seed
	in := NewInbox()
	events := make([]event.Event, len(letters))
	for i, letter := range letters {
		ref := event.Ref{Seq: event.Seq(i), ID: int64(i + 1), Aggregate: uint64(letter), Ordered: letter < 'a'}
		events[i] = event.Event{Ref: ref, AggregateType: []byte("order"), AggregateID: []byte("a")}
		w.stories[ref.ID].exempt("the test looks by itself")
	}
	term := w.tenure()
	term.renewedAt = time.Now().Add(time.Hour) // it does not run
	p := newModelPublisher(w, term, in.Publisher(), 20*time.Second)
	go func() { _ = p.Run(ctx) }()
	return p, in, events
}

// One silent partition among others: what it has is held, the batch in doubt is
// answered in the end, once, without numbers.
func TestModelPublisherSilentPartition(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, ctx context.Context) {
				p, in, events := modelPublishing(ctx, seed, "AABC")
				events[3].AggregateID = []byte("b") // another partition
				silent := modelPartitionOf("order", "a")
				p.w.kafka.silent[silent] = true
				p.Publish(events[:1])
				p.Flush()
				elapse(10 * time.Second)
				p.Publish(events[1:2])
				p.Flush()
				elapse(30 * time.Second)
				var got modelOutcomes
				if got.collect(in); !cmp.Equal(got, modelOutcomes{}) {
					t.Errorf("with no other partition at work: %+v", got)
				}
				p.Publish(events[3:])
				p.Flush()
				elapse(10 * time.Second)
				p.Publish(events[2:3])
				p.w.mu.Lock()
				delete(p.w.kafka.silent, silent)
				p.w.mu.Unlock()
				elapse(10 * time.Second)
				got.collect(in)
				want := modelOutcomes{Acked: []int64{4}, Held: []int64{1, 2, 3}, Untracked: []int64{1}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("outcomes (-want +got):\n%s", diff)
				}
				log := slices.Sorted(slices.Values(p.w.kafka.log))
				if diff := cmp.Diff([]int64{1, 4}, log); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The checker finds what it is there for.
func TestModelChecker(t *testing.T) {
	t.Parallel()
	row := func(typ string, status int16, due event.Due) modelRow {
		return modelRow{typ: typ, agg: "a", status: status, due: due}
	}
	null, infinity := event.Due{}, event.DueInfinity()
	for _, c := range []struct {
		name string
		rows []modelRow
		do   func(*modelWorld)
		want string // rule; empty: nothing is wrong
	}{
		{"in order", []modelRow{row("order", 0, null), row("order", 0, null)}, func(w *modelWorld) { w.appended(1); w.appended(2) }, ""},
		{"out of order", []modelRow{row("order", 0, null), row("order", 0, null)}, func(w *modelWorld) { w.appended(2) }, "I5"},
		{"out of order, the type goes on", []modelRow{row("mail", 0, null), row("mail", 0, null)}, func(w *modelWorld) { w.appended(2) }, "I5"},
		{"past a failed one, the type goes on", []modelRow{row("mail", 0, null), row("mail", 0, null)}, func(w *modelWorld) {
			w.gaveBack([]event.Ref{{ID: 1}})
			w.appended(2)
		}, ""},
		{"past a failed one, the type blocks", []modelRow{row("order", 3, infinity), row("order", 0, null)}, func(w *modelWorld) {
			w.gaveBack([]event.Ref{{ID: 1}})
			w.appended(2)
		}, "I5"},
		{"past a waived one", []modelRow{row("order", 3, infinity), row("order", 0, null)}, func(w *modelWorld) {
			w.skip(0, false)
			w.appended(2)
		}, ""},
		{"past a deleted one", []modelRow{row("order", 0, null), row("order", 0, null)}, func(w *modelWorld) {
			w.remove(0, func(*modelRow) bool { return true })
			w.appended(2)
		}, ""},
		{"a failed one itself", []modelRow{row("order", 3, infinity)}, func(w *modelWorld) { w.appended(1) }, "I5"},
		{"twice", []modelRow{row("order", 0, null)}, func(w *modelWorld) { w.appended(1); w.appended(1) }, "G3"},
		{"twice, the session between", []modelRow{row("order", 0, null)}, func(w *modelWorld) {
			w.appended(1)
			w.sessionEnded()
			w.appended(1)
		}, ""},
		{"SENT before its ack", []modelRow{row("order", 0, null)}, func(w *modelWorld) {
			w.stories[1].acked = false
			w.record(w.rows[1], modelWrite{})
		}, "I6"},
		{"an attempt that was none", []modelRow{row("order", 0, null)}, func(w *modelWorld) {
			w.stories[1].refused = 0
			w.record(w.rows[1], modelWrite{park: &event.Park{Action: event.ParkRetry}})
		}, "attempts"},
		{"an attempt that was lost", []modelRow{row("order", 2, null)}, func(w *modelWorld) { w.stories[1].records = 1; w.atEnd() }, "attempts"},
		{"before its time", []modelRow{row("order", 0, null)}, func(w *modelWorld) {
			w.stories[1].notBefore = time.Now().Add(time.Hour)
			w.appended(1)
		}, "delay"},
		{"held without a place", []modelRow{row("order", 0, null)}, func(w *modelWorld) {
			w.record(w.rows[1], modelWrite{park: &event.Park{Action: event.ParkHeld}})
		}, "CHECK"},
		{"a position in the middle", nil, func(w *modelWorld) { w.insert([]modelInsert{{typ: "order", agg: "a"}}, 0); w.offered(w.lsn - 1) }, "I3"},
		{"past an unresolved row", nil, func(w *modelWorld) { w.insert([]modelInsert{{typ: "order", agg: "a"}}, 0); w.offered(w.lsn) }, "I4"},
		{"past a delayed row", nil, func(w *modelWorld) {
			w.insert([]modelInsert{{typ: "order", agg: "a", delay: time.Second}}, 0)
			w.offered(w.lsn)
		}, ""},
		{"past a requeue", []modelRow{row("order", 3, infinity)}, func(w *modelWorld) { w.replay(0); w.offered(w.lsn) }, "I4"},
		{"the watermark falls", nil, func(w *modelWorld) {
			term := w.tenure()
			w.foreign = append(w.foreign, 5, 6)
			term.Offer(6)
			term.Offer(5)
		}, "I1"},
		{"confirmed before it is saved", nil, func(w *modelWorld) {
			term := w.tenure()
			w.foreign = append(w.foreign, 5)
			term.Offer(5)
			newModelSource(w, term).Confirm(5)
		}, "I2"},
		{"left READY", []modelRow{row("order", 0, null)}, func(w *modelWorld) { w.atEnd() }, "end"},
		{"left FAILED", []modelRow{row("order", 3, infinity)}, func(w *modelWorld) { w.atEnd() }, "end"},
		{"SENT and not in the log", []modelRow{row("order", 2, null)}, func(w *modelWorld) { w.stories[1].refused = 0; w.atEnd() }, "I7"},
		{"the slot is left behind", nil, func(w *modelWorld) {
			w.insert([]modelInsert{{typ: "order", agg: "a"}}, 0)
			w.remove(0, func(*modelRow) bool { return true })
			w.atEnd()
		}, "end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := modelTable(c.rows...)
			c.do(w)
			got := ""
			if len(w.broken) > 0 {
				got = w.broken[0].Rule
			}
			if got != c.want {
				t.Errorf("broken: %v, want %q", w.broken, c.want)
			}
		})
	}
}

// A second session waits until the first one has released the lease, or has not
// renewed it for long; the first one then changes nothing any more.
func TestModelLeadership(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, ctx context.Context) {
		w := newModelWorld(1)
		first, second := &modelLeadership{w: w}, &modelLeadership{w: w}
		t1, err := first.Acquire(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		first.kill()
		if _, err := second.Acquire(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited != modelTakeover {
			t.Errorf("took over after %v, want %v", waited, modelTakeover)
		}
		if err := t1.Permit(ctx); err == nil {
			t.Error("the old epoch may publish")
		}
		if err := t1.Run(ctx, nil); err == nil {
			t.Error("the old epoch renews")
		}
		if err := second.term.Release(ctx, 0); err != nil {
			t.Error(err)
		}
		begun = time.Now()
		third := &modelLeadership{w: w}
		if _, err := third.Acquire(ctx, nil); err != nil || time.Since(begun) > 0 {
			t.Errorf("a released lease was taken after %v, %v", time.Since(begun), err)
		}
	})
}
