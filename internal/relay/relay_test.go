package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// start runs the relay in the bubble; the returned function stops it and
// returns what Run returned.
func start(r *Relay) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func wantPublished(t *testing.T, w *world, want ...int64) {
	t.Helper()
	if diff := cmp.Diff(want, w.published(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestLineFromSlotToConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 2)
		w.commit(3)
		w.set(2, 2, event.Due{}) // SENT by an earlier session, whose confirm was lost
		w.remove(3)
		r := newRelay(t, w, nil, nil)
		stop := start(r)
		elapse(roundTrip)
		synctest.Wait()
		wantPublished(t, w, 1)

		end := w.commit(4)
		elapse(roundTrip)
		synctest.Wait()
		wantPublished(t, w, 1, 4)
		if _, confirmed := w.position(); confirmed != 0 {
			t.Errorf("%s was confirmed before it was saved", confirmed)
		}
		elapse(renewEvery + roundTrip)
		synctest.Wait()
		if saved, confirmed := w.position(); saved != end || confirmed != end {
			t.Errorf("saved %s, confirmed %s, want %s", saved, confirmed, end)
		}
		if s := r.Status(); s.State != Streaming || s.Watermark != end || !s.Leader {
			t.Errorf("status %+v", s)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if w.released != 1 {
			t.Errorf("the lease was released %d times", w.released)
		}
	})
}

// A stop right after the acks must save and confirm what was acknowledged, so
// that the next start publishes nothing again.
func TestStopDrainsAndTheNextStartRepeatsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		end := w.commit(1, 2, 3)
		stop := start(newRelay(t, w, nil, nil))
		synctest.Wait() // published, not acknowledged yet
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if saved, confirmed := w.position(); saved < end || confirmed < end {
			t.Errorf("saved %s, confirmed %s after a clean stop, want at least %s", saved, confirmed, end)
		}
		stop = start(newRelay(t, w, nil, nil))
		elapse(time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		wantPublished(t, w, 1, 2, 3)
	})
}

func TestStopWithASilentBrokerEndsAtTheDrainTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.silence()
		w.commit(1)
		r := newRelay(t, w, nil, nil)
		stop := start(r)
		elapse(time.Second)
		asked := time.Now()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(asked); got != 25*time.Second {
			t.Errorf("draining took %v, want 25s", got)
		}
		if _, confirmed := w.position(); confirmed != 0 {
			t.Errorf("%s was confirmed past an unacknowledged event", confirmed)
		}
	})
}

func TestLimitStopsReadingUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := newRelay(t, w, nil, func(c *Config) { c.InflightEvents = 4 })
		stop := start(r)
		elapse(time.Second) // the lookup window has closed
		w.silence()
		w.commit(1, 2, 3, 4, 5, 6, 7, 8, 9)
		elapse(time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A cut connection is mended in the process: the line drains first, so that
// nothing in flight is published twice.
func TestCutStreamDrainsAndStartsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := start(newRelay(t, w, nil, nil))
		elapse(time.Second)
		w.commit(1, 2)
		synctest.Wait() // in flight
		close(w.session(0).cut)
		w.commit(3)
		elapse(5 * time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if len(w.sources) != 2 {
			t.Errorf("%d sessions, want 2", len(w.sources))
		}
	})
}

// A row that somebody has locked, or that a trigger refuses, cannot be settled
// for as long as that lasts. When the connection was cut meanwhile, the session
// waited for it, and nothing at all was streamed until a person ended the lock.
func TestLockedRowDoesNotKeepACutStreamAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.locked = 2
		r := newRelay(t, w, nil, nil)
		stop := start(r)
		elapse(time.Second)
		w.commit(1, 2)
		elapse(time.Second)
		close(w.session(0).cut)
		w.commit(3)
		elapse(cutBudget + 5*time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 2, 3) // 2 is READY: nobody knows of its record any more
		if s := r.Status(); s.State != Streaming || s.HeldBack {
			t.Errorf("status %+v", s)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// While Kafka or PostgreSQL is away, a session whose stream has ended goes on
// waiting: a new one would get no further, and publish again what may be in the
// log, or is without SENT.
func TestCutStreamInALongOutage(t *testing.T) {
	t.Parallel()
	const outage = time.Hour
	for _, c := range []struct {
		name  string
		begin func(*world, *Inbox)
		end   func(*world, *Inbox)
	}{
		{"of Kafka", func(w *world, in *Inbox) {
			w.hold = make(chan struct{})
			in.Publisher().Trouble(&fault.Blocked{Reason: "kafka.connect"})
		}, func(w *world, in *Inbox) {
			close(w.hold)
			in.Publisher().Trouble(nil)
		}},
		{"of PostgreSQL", func(w *world, _ *Inbox) { w.down(true) }, func(w *world, _ *Inbox) { w.down(false) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				var opened atomic.Pointer[Inbox]
				stop := start(newRelay(t, w, func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
					opened.Store(in)
					return w.parts(ctx, tenure, in)
				}, nil))
				elapse(time.Second)
				in := opened.Load()
				c.begin(w, in)
				w.commit(1, 2)
				elapse(time.Second)
				close(w.session(0).cut)
				w.commit(3)
				elapse(outage)
				c.end(w, in)
				elapse(10 * time.Second)
				synctest.Wait()
				wantPublished(t, w, 1, 2, 3)
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// A stop in that time takes no longer than any other, nor is it cut short.
func TestStopAfterTheStreamWasCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.locked = 1
		stop := start(newRelay(t, w, nil, nil))
		elapse(time.Second)
		w.commit(1)
		elapse(time.Second)
		close(w.session(0).cut)
		elapse(cutBudget / 2)
		asked := time.Now()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(asked); got != 25*time.Second {
			t.Errorf("draining took %v, want 25s", got)
		}
	})
}

// A fault that shows only once the stream runs must not flap every few seconds.
func TestWhatBlocksAStreamIsMetAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		open := func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
			time.AfterFunc(time.Second, func() { in.Fail(&fault.Blocked{Reason: "pub.young"}) })
			return w.parts(ctx, tenure, in)
		}
		stop := start(newRelay(t, w, open, nil))
		elapse(10 * time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if n := len(w.sources); n < 10 || n > 16 {
			t.Errorf("%d sessions in ten minutes", n)
		}
	})
}

// unreadable is a table in which no requeued row can be decoded.
type unreadable struct{ memRows }

func (unreadable) Read(ctx context.Context, _ []event.Ref, _ int64) ([]event.Found, error) {
	select {
	case <-time.After(10 * roundTrip):
		return nil, &fault.Blocked{Reason: "x.y"}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// withoutTrigger is a scheduler whose requeues do not come back.
type withoutTrigger struct {
	memScheduler
	seen <-chan struct{}
}

func (s withoutTrigger) Run(ctx context.Context, _ func() bool) error {
	select {
	case <-s.seen:
		elapse(10 * roundTrip) // longer than what takes a record to the log
		return &fault.Blocked{Reason: "x.y"}
	case <-ctx.Done():
		return nil
	}
}

// robbed is a publisher whose identity somebody else takes.
type robbed struct {
	*memPublisher
	seen <-chan struct{}
}

func (p robbed) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- p.memPublisher.Run(ctx) }()
	select {
	case <-p.seen:
		return &fault.Blocked{Reason: "x.y"}
	case err := <-ended:
		return err
	}
}

// What is acknowledged by then gets its SENT.
func TestPublisherThatIsBlockedRepeatsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		seen := make(chan struct{})
		r, stop := running(t, w, func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
			p, err := w.parts(ctx, tenure, in)
			if len(w.sources) == 1 {
				p.Publisher = robbed{p.Publisher.(*memPublisher), seen}
			}
			return p, err
		})
		defer stop()
		w.down(true)
		end := w.commit(1)
		elapse(time.Second) // acknowledged, and not SENT
		close(seen)
		elapse(time.Second)
		if s := r.Status(); s.State != Blocked {
			t.Errorf("status %+v", s)
		}
		w.down(false)
		elapse(time.Minute)
		synctest.Wait()
		wantPublished(t, w, 1)
		if saved, _ := w.position(); saved < end {
			t.Errorf("saved %s, want at least %s", saved, end)
		}
	})
}

// What only a person can mend ends the session in order. It is met anew at each
// try, once a minute: each of them broke off what was in flight, and published it
// again, for as long as nobody came.
func TestWhatBlocksRepeatsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		meet func(*world, chan struct{})
	}{
		{"a row of the stream that cannot be decoded", func(w *world, _ chan struct{}) { w.spoil() }},
		{"a requeued row that cannot be decoded", func(w *world, _ chan struct{}) { w.requeue(9) }},
		{"requeues that do not come back", func(_ *world, seen chan struct{}) { close(seen) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				seen := make(chan struct{})
				r, stop := running(t, w, func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
					p, err := w.parts(ctx, tenure, in)
					p.Rows = unreadable{memRows{w}}
					p.Scheduler = withoutTrigger{memScheduler{w}, seen}
					return p, err
				})
				defer stop()
				w.hold = make(chan struct{})
				end := w.commit(1)
				elapse(2 * roundTrip) // in the log, and not acknowledged
				c.meet(w, seen)
				elapse(time.Second)
				close(w.hold)
				elapse(10 * time.Minute)
				synctest.Wait()
				wantPublished(t, w, 1)
				if saved, _ := w.position(); saved < end {
					t.Errorf("saved %s, want at least %s", saved, end)
				}
				if s := r.Status(); s.State != Blocked || s.Reason != "x.y" && s.Reason != "table.columns" {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

func TestBlockedIsSaidAndTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1)
		var mended atomic.Bool
		open := func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
			if !mended.Load() {
				return nil, &fault.Blocked{Reason: "pub.exists", What: "it is not there", Remedy: "make it"}
			}
			return w.parts(ctx, tenure, in)
		}
		r := newRelay(t, w, open, nil)
		stop := start(r)
		synctest.Wait()
		if s := r.Status(); s.State != Blocked || s.Reason != "pub.exists" || s.Remedy != "make it" {
			t.Errorf("status %+v", s)
		}
		mended.Store(true)
		elapse(6 * time.Second)
		synctest.Wait()
		if s := r.Status(); s.State != Streaming || s.Reason != "" {
			t.Errorf("status %+v", s)
		}
		wantPublished(t, w, 1)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTroubleOfAnEdge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		report func(*Inbox, *fault.Blocked)
		state  State
	}{
		{"no broker blocks", func(in *Inbox, b *fault.Blocked) { in.Publisher().Trouble(b) }, Blocked},
		{"a row that cannot be written is named", func(in *Inbox, b *fault.Blocked) { in.Recorder().Trouble(b) }, Degraded},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				var opened atomic.Pointer[Inbox]
				r := newRelay(t, w, func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
					opened.Store(in)
					return w.parts(ctx, tenure, in)
				}, nil)
				stop := start(r)
				synctest.Wait()
				c.report(opened.Load(), &fault.Blocked{Reason: "x.y"})
				synctest.Wait()
				if s := r.Status(); s.State != c.state || s.Reason != "x.y" {
					t.Errorf("status %+v", s)
				}
				c.report(opened.Load(), nil)
				synctest.Wait()
				if s := r.Status(); s.State != Streaming || s.Reason != "" {
					t.Errorf("status %+v after it was cleared", s)
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Rows that are no event now must not be published, and must not hold the slot.
func TestRowsThatAreNoEventNow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		row  waltest.Row
	}{
		{"delayed", waltest.Row{ID: 2, Due: time.Unix(4_000_000_000, 0)}},
		{"parked without an end", waltest.Row{ID: 2, Due: waltest.Infinity}},
		{"restored as SENT", waltest.Row{ID: 2, Status: 2}},
		{"restored as CONSUMED", waltest.Row{ID: 2, Status: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				stop := start(newRelay(t, w, nil, nil))
				elapse(time.Second)
				w.commit(1)
				end := w.insert(c.row)
				elapse(time.Second)
				synctest.Wait()
				wantPublished(t, w, 1)
				if _, confirmed := w.position(); confirmed < end {
					t.Errorf("confirmed %s, want at least %s", confirmed, end)
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Anybody may emit messages: none of them may publish anything, end the
// lookup window early or stop the slot.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		emit func(*world)
	}{
		{"another probe", func(w *world) { w.emit(probePrefix, "00") }},
		{"a probe outside of a transaction", func(w *world) { w.emitLoose(probePrefix, "00") }},
		{"empty", func(w *world) { w.emit("", "") }},
		{"a longer prefix", func(w *world) { w.emit(requeuePrefix+"2", "1") }},
		{"a foreign one", func(w *world) { w.emit("other", "1") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				c.emit(w)
				w.commit(1)
				w.set(1, 2, event.Due{}) // only the open window knows
				stop := start(newRelay(t, w, nil, nil))
				elapse(time.Second)
				c.emit(w)
				end := w.commit(2)
				elapse(time.Second)
				synctest.Wait()
				wantPublished(t, w, 2)
				if _, confirmed := w.position(); confirmed < end {
					t.Errorf("confirmed %s, want at least %s", confirmed, end)
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// I2 under load: whatever is confirmed has been saved before.
func TestSavedBeforeConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := start(newRelay(t, w, nil, nil))
		for id := range int64(2000) {
			w.commit(id + 1)
			elapse(time.Millisecond)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if len(w.early) > 0 {
			t.Errorf("confirmed before it was saved: %v", w.early)
		}
		if _, confirmed := w.position(); confirmed < w.lsn {
			t.Errorf("confirmed %s of %s", confirmed, w.lsn)
		}
	})
}
