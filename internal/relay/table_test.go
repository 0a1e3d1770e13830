package relay

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// running starts a relay on w and waits until its lookup window has closed.
func running(t *testing.T, w *world, open Open) (r *Relay, stop func()) {
	t.Helper()
	r = newRelay(t, w, open, nil)
	end := start(r)
	elapse(time.Second)
	return r, func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

func TestRequeuedRowsComeBackThroughTheSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := running(t, w, nil)
		defer stop()
		for id := range int64(5) {
			w.set(id+1, 3, event.DueInfinity())
		}
		end := w.requeue(1, 2, 3, 4, 5)
		elapse(time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4, 5)
		if _, confirmed := w.position(); confirmed < end {
			t.Errorf("confirmed %s, want at least %s", confirmed, end)
		}
		if diff := cmp.Diff([]string{"returned 1", "returned 2"}, w.scheduled[:2]); diff != "" {
			t.Error(diff)
		}
		for _, want := range []string{"settled 1", "settled 5"} {
			if !slices.Contains(w.scheduled, want) {
				t.Errorf("the scheduler was not told %q: %v", want, w.scheduled)
			}
		}
	})
}

// The slot must not pass a requeue before the row is resolved: a crash would
// leave the row due and nobody would deliver it.
func TestRequeueHoldsTheSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := running(t, w, nil)
		w.silence()
		w.set(1, 3, event.DueInfinity())
		end := w.requeue(1)
		elapse(5 * time.Second)
		synctest.Wait()
		if _, confirmed := w.position(); confirmed >= end {
			t.Errorf("confirmed %s, past the requeue at %s", confirmed, end)
		}
		stop()
	})
}

// A stop does not wait for rows that are only being read: they stay with the
// slot.
func TestStopWhileRowsAreRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.answerAfter(time.Hour)
		_, stop := running(t, w, nil)
		w.set(1, 3, event.DueInfinity())
		w.requeue(1)
		elapse(time.Second)
		asked := time.Now()
		stop()
		if took := time.Since(asked); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		wantPublished(t, w)
	})
}

// Of a message only the id counts; the row decides.
func TestRequeuesThatPublishNothing(t *testing.T) {
	t.Parallel()
	due := event.DueAtMicros(1)
	for _, c := range []struct {
		name string
		row  *memRow
	}{
		{"of a row that is SENT", &memRow{status: 2}},
		{"of a row that is READY and not parked", &memRow{status: ready}},
		{"of a row that is held", &memRow{status: ready, due: event.DueInfinity()}},
		{"of a FAILED row", &memRow{status: 3, due: due}},
		{"of a row that is not there", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				_, stop := running(t, w, nil)
				defer stop()
				if c.row != nil {
					w.set(7, c.row.status, c.row.due)
				}
				w.emit(requeuePrefix, "7")
				end := w.commit(8)
				elapse(time.Second)
				synctest.Wait()
				wantPublished(t, w, 8)
				if _, confirmed := w.position(); confirmed < end {
					t.Errorf("confirmed %s, want at least %s", confirmed, end)
				}
			})
		})
	}
}

// Two messages for one due time, as of an UPDATE that was run twice in one
// transaction, are one requeue.
func TestRequeuedTwiceIsPublishedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := running(t, w, nil)
		defer stop()
		w.set(1, 3, event.DueInfinity())
		w.requeue(1, 1, 1, 1)
		elapse(time.Second)
		synctest.Wait()
		wantPublished(t, w, 1)
	})
}

// The answer to a read is older than what was settled while it was under way:
// a row that looks as if it were still due may be SENT by now.
func TestReadIsOlderThanWhatWasSettledMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hold = make(chan struct{})
		_, stop := running(t, w, nil)
		defer stop()
		w.set(1, 3, event.DueInfinity())
		w.requeue(1)
		elapse(100 * time.Millisecond) // published, not acknowledged
		w.answerAfter(time.Second)
		w.emit(requeuePrefix, "1")
		elapse(100 * time.Millisecond) // being read
		close(w.hold)
		elapse(time.Minute)
		synctest.Wait()
		wantPublished(t, w, 1)
	})
}

func TestParseID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		id   int64
		ok   bool
	}{
		{"1", 1, true},
		{"9223372036854775807", 9223372036854775807, true},
		{"9223372036854775808", 0, false},
		{"9999999999999999999", 0, false},
		{"18446744073709551617", 0, false},
		{"", 0, false}, {"0", 0, false}, {"01", 0, false}, {"-1", 0, false}, {"+1", 0, false},
		{" 1", 0, false}, {"1\n", 0, false}, {"1e3", 0, false}, {"0x1", 0, false}, {"\x00", 0, false},
	} {
		id, ok := parseID([]byte(c.text))
		if ok != c.ok || ok && id != c.id {
			t.Errorf("%q: %d, %t; want %d, %t", c.text, id, ok, c.id, c.ok)
		}
	}
}

// withPass lets the first session, and as many as say so, start with a pass.
func withPass(w *world, passes ...func() Pass) Open {
	return func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
		p, err := w.parts(ctx, tenure, in)
		if len(passes) > 0 {
			next := passes[0]
			passes = passes[1:]
			p.OpenPass = func(ctx context.Context) (Pass, error) {
				if made := next(); made != nil {
					return made, nil
				}
				return w.openPass(ctx)
			}
		}
		return p, err
	}
}

func ordinary() Pass { return nil }

// Rows that were READY before the slot existed come first, by id, and what the
// slot shows of them again is looked up, not repeated.
func TestPassComesBeforeTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for _, id := range []int64{5, 3, 1} {
			w.set(id, ready, event.Due{})
		}
		w.set(2, 2, event.Due{})
		w.set(4, ready, event.DueInfinity())
		end := w.commit(6)
		r, stop := running(t, w, withPass(w, ordinary))
		defer stop()
		synctest.Wait()
		wantPublished(t, w, 1, 3, 5, 6)
		if _, confirmed := w.position(); confirmed < end {
			t.Errorf("confirmed %s, want at least %s", confirmed, end)
		}
		if s := r.Status(); s.State != Streaming {
			t.Errorf("state %s after the pass", s.State)
		}
	})
}

// A row of the pass that somebody has locked must not hold up the stream; nor
// is it published again when the stream shows it.
func TestLockedRowInThePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.locked = 2
		w.commit(1, 2, 3)
		w.commit(4)
		r, stop := running(t, w, withPass(w, ordinary))
		elapse(passGrace + time.Second)
		synctest.Wait()
		w.commit(5)
		elapse(time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4, 5)
		if s := r.Status(); s.State != Streaming || s.Watermark != 0 {
			t.Errorf("status %+v", s)
		}
		stop()
	})
}

func TestNothingIsSavedBeforeThePassIsResolved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.silence()
		w.set(1, ready, event.Due{})
		w.commit(2)
		r, stop := running(t, w, withPass(w, ordinary))
		elapse(time.Minute)
		synctest.Wait()
		if s := r.Status(); s.Watermark != 0 {
			t.Errorf("status %+v", s)
		}
		stop()
	})
}

// A snapshot that is lost in the middle is not resumed: what is in flight is
// waited for, then the pass begins again, without what is SENT by then.
func TestBrokenPassIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for id := range int64(4) {
			w.set(id+1, ready, event.Due{})
		}
		broken := func() Pass { return &memPass{ids: []int64{1, 2}, broken: true} }
		_, stop := running(t, w, withPass(w, broken, ordinary))
		defer stop()
		elapse(10 * time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4)
	})
}

// A row that the slot never showed is found; one that is in flight is not
// taken for missed, however long that lasts.
func TestReconcile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := running(t, w, nil)
		for id := range int64(7) { // inserted while the publication was away, more than one round lists
			w.set(id+1, ready, event.Due{})
		}
		elapse(time.Minute + time.Second)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4, 5, 6, 7)

		w.silence()
		w.commit(8)
		elapse(10 * time.Minute)
		synctest.Wait()
		wantPublished(t, w, 1, 2, 3, 4, 5, 6, 7, 8)
		stop()
	})
}

// What makes the server unfit ends the session in order: in-flight events are
// waited for, so that nothing is repeated.
func TestCheckThatFailsLetsGoOfTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var unfit error
		sessions := 0
		open := func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
			w.mu.Lock()
			sessions++
			w.mu.Unlock()
			p, err := w.parts(ctx, tenure, in)
			p.Check = func(context.Context) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				return unfit
			}
			return p, err
		}
		r, stop := running(t, w, open)
		defer stop()
		w.mu.Lock()
		unfit = &fault.Blocked{Reason: "pg.sync_standby", Remedy: "name the standbys"}
		w.mu.Unlock()
		elapse(29*time.Second - time.Millisecond)
		w.commit(1) // in flight at the check
		elapse(time.Second)
		synctest.Wait()
		if s := r.Status(); s.State != Blocked || s.Reason != "pg.sync_standby" || s.Leader {
			t.Errorf("status %+v", s)
		}
		w.mu.Lock()
		unfit = nil
		w.mu.Unlock()
		elapse(10 * time.Second)
		synctest.Wait()
		wantPublished(t, w, 1)
		if s := r.Status(); s.State != Streaming {
			t.Errorf("status %+v", s)
		}
	})
}
