package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

var defaults = Config{
	Slot:          "s",
	Instance:      "here",
	TTL:           10 * time.Second,
	RenewInterval: 500 * time.Millisecond,
	PublishWithin: 1500 * time.Millisecond,
	TakeoverAfter: 3 * time.Second,
}

var errCut = errors.New("connection cut")

// fakeServer answers renewals and releases as a test tells it to. The zero
// value answers them at once, and the lease is held.
type fakeServer struct {
	mu     sync.Mutex
	hang   bool          // renewals are not answered
	cut    bool          // no statement and no connect succeeds
	lost   bool          // the lease belongs to somebody else
	other  bool          // another system answers connects
	slow   time.Duration // time to answer
	opened int
	closed int
	saves  []pglogrepl.LSN // by renewals and releases, 0 included
}

func (f *fakeServer) set(change func(*fakeServer)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeServer) open(context.Context) (link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.cut:
		return nil, errCut
	case f.other:
		return nil, fault.ErrFenced
	}
	f.opened++
	return &fakeLink{f}, nil
}

type fakeLink struct{ server *fakeServer }

func (l *fakeLink) renew(ctx context.Context, _ int64, _ uint32, lsn pglogrepl.LSN) (bool, error) {
	return l.statement(ctx, lsn)
}

func (l *fakeLink) release(ctx context.Context, _ int64, _ uint32, lsn pglogrepl.LSN) (bool, error) {
	return l.statement(ctx, lsn)
}

func (l *fakeLink) statement(ctx context.Context, lsn pglogrepl.LSN) (bool, error) {
	f := l.server
	f.mu.Lock()
	hang, slow := f.hang, f.slow
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return false, ctx.Err()
	}
	if err := sleep(ctx, slow); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return false, errCut
	}
	if f.lost {
		return false, nil
	}
	f.saves = append(f.saves, lsn)
	return true, nil
}

func (l *fakeLink) close() {
	l.server.set(func(f *fakeServer) { f.closed++ })
}

// newTenure is a tenure that has just been won, on a fake server.
func newTenure(t testing.TB) (*Tenure, *fakeServer) {
	t.Helper()
	f := &fakeServer{}
	l, err := f.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics(prometheus.NewRegistry())
	m.leader.Set(1)
	tenure := &Tenure{
		session:   event.Session{SystemID: 1, Timeline: 1, Epoch: 1},
		cfg:       defaults,
		log:       slog.New(slog.DiscardHandler),
		metrics:   m,
		reconnect: f.open,
		link:      l,
		start:     time.Now(),
		news:      make(chan struct{}),
	}
	tenure.note(tenure.start)
	return tenure, f
}

// TestSuspendedMachine: while a machine sleeps, or its hypervisor stops it, the
// monotonic clock may stand still. Awake again, it published under a renewal of an
// hour ago. A clock that is set back proves nothing.
func TestSuspendedMachine(t *testing.T) {
	t.Parallel()
	asleep := func(tenure *Tenure, d time.Duration) { tenure.wall.Add(int64(-d)) }
	synctest.Test(t, func(t *testing.T) {
		tenure, _ := newTenure(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, c := range []struct {
			asleep time.Duration
			want   bool
		}{{0, true}, {defaults.PublishWithin - 1, true}, {defaults.PublishWithin, false}, {time.Hour, false}, {-time.Hour, true}} {
			asleep(tenure, c.asleep)
			if got := tenure.Permit(ended) == nil; got != c.want {
				t.Errorf("after a sleep of %v: permitted %t, want %t", c.asleep, got, c.want)
			}
			tenure.publishFrom(time.Now())
		}
	})
}

// run starts Run and returns how to stop it, which tells its error. Time in
// the bubble passes until it has ended.
func run(t *testing.T, tenure *Tenure, saved func(pglogrepl.LSN)) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tenure.Run(ctx, saved) }()
	return func() error {
		cancel()
		return <-done
	}
}

func ignore(pglogrepl.LSN) {}

// permitted asks without waiting.
func permitted(t *testing.T, tenure *Tenure) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := tenure.Permit(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("Permit: %v", err)
	}
	return err == nil
}

func TestPermitEndsWithTheRule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, _ := newTenure(t) // nobody renews
		<-time.After(defaults.PublishWithin - time.Nanosecond)
		if !permitted(t, tenure) {
			t.Error("publishing is refused while the renewal is younger than PublishWithin")
		}
		<-time.After(time.Nanosecond)
		if permitted(t, tenure) {
			t.Error("publishing is permitted at the age of PublishWithin")
		}
	})
}

func TestPermitCountsFromTheSendingOfTheRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, f := newTenure(t)
		f.slow = 900 * time.Millisecond
		stop := run(t, tenure, ignore)
		<-time.After(1400 * time.Millisecond) // sent at 500 ms, answered at 1400 ms
		synctest.Wait()
		f.set(func(f *fakeServer) { f.hang = true })
		<-time.After(600*time.Millisecond - time.Nanosecond)
		if !permitted(t, tenure) {
			t.Error("refused 1.5 s - 1 ns after the renewal was sent")
		}
		<-time.After(time.Nanosecond)
		if permitted(t, tenure) {
			t.Error("permitted 1.5 s after the renewal was sent")
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestPermitWaitsForARenewal(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*fakeServer, bool){
		"renewals hang":       func(f *fakeServer, on bool) { f.hang = on },
		"connections are cut": func(f *fakeServer, on bool) { f.cut = on },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tenure, f := newTenure(t)
				stop := run(t, tenure, ignore)
				<-time.After(600 * time.Millisecond) // renewed at 500 ms
				f.set(func(f *fakeServer) { fail(f, true) })
				<-time.After(1400 * time.Millisecond) // 2 s
				if permitted(t, tenure) {
					t.Fatal("permitted without a renewal")
				}
				<-time.After(30 * time.Second) // longer than the TTL
				f.set(func(f *fakeServer) { fail(f, false) })
				if err := tenure.Permit(t.Context()); err != nil {
					t.Fatalf("Permit after the failure ended: %v", err)
				}
				if got := testutil.ToFloat64(tenure.metrics.pauses); got != 1 {
					t.Errorf("publish pauses = %v, want 1", got)
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if f.opened < 2 || f.closed != f.opened-1 {
					t.Errorf("%d links opened and %d closed, want all but the last one closed", f.opened, f.closed)
				}
			})
		})
	}
}

// A hanging renewal is given up early enough for another one to keep the
// leader publishing.
func TestHangingRenewalIsReplacedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, f := newTenure(t)
		f.hang = true // the first renewal, sent at 500 ms, is given up at 1500 ms
		stop := run(t, tenure, ignore)
		<-time.After(time.Second)
		f.set(func(f *fakeServer) { f.hang = false })
		<-time.After(600 * time.Millisecond)
		if !permitted(t, tenure) {
			t.Error("one renewal that hung still keeps the leader from publishing after 1.6 s")
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestLosingTheLeaseEndsTheTenure(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lose    func(*fakeServer)
		lease   float64
		session float64
	}{
		"another owner or epoch": {lose: func(f *fakeServer) { f.lost = true }, lease: 1},
		"another server after a reconnect": {lose: func(f *fakeServer) {
			f.hang, f.other = true, true
		}, session: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tenure, f := newTenure(t)
				tc.lose(f)
				if err := tenure.Run(t.Context(), ignore); !errors.Is(err, fault.ErrFenced) {
					t.Fatalf("Run: %v, want ErrFenced", err)
				}
				if err := tenure.Permit(t.Context()); !errors.Is(err, fault.ErrFenced) {
					t.Errorf("Permit: %v, want ErrFenced", err)
				}
				if err := tenure.Release(t.Context(), 7); !errors.Is(err, fault.ErrFenced) {
					t.Errorf("Release: %v, want ErrFenced", err)
				}
				if len(f.saves) > 0 {
					t.Errorf("saved %v after leadership was lost", f.saves)
				}
				got := []float64{testutil.ToFloat64(tenure.metrics.leader),
					testutil.ToFloat64(tenure.metrics.fencedLease), testutil.ToFloat64(tenure.metrics.fencedSession)}
				if diff := cmp.Diff([]float64{0, tc.lease, tc.session}, got); diff != "" {
					t.Errorf("leader, fenced by lease, fenced by session (-want +got):\n%s", diff)
				}
				if f.closed != f.opened {
					t.Errorf("%d links opened, %d closed", f.opened, f.closed)
				}
			})
		})
	}
}

func TestWaitersLearnOfTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *Tenure, *fakeServer){
		"fenced": func(t *testing.T, tenure *Tenure, f *fakeServer) {
			f.set(func(f *fakeServer) { f.lost = true })
			if err := tenure.Run(t.Context(), ignore); !errors.Is(err, fault.ErrFenced) {
				t.Errorf("Run: %v, want ErrFenced", err)
			}
		},
		"released": func(t *testing.T, tenure *Tenure, _ *fakeServer) {
			if err := tenure.Release(t.Context(), 0); err != nil {
				t.Errorf("Release: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tenure, f := newTenure(t)
				<-time.After(2 * defaults.PublishWithin)
				waiters := make(chan error, 2)
				for range 2 {
					go func() { waiters <- tenure.Permit(t.Context()) }()
				}
				synctest.Wait()
				end(t, tenure, f)
				for range 2 {
					if err := <-waiters; !errors.Is(err, fault.ErrFenced) {
						t.Errorf("a waiting Permit: %v, want ErrFenced", err)
					}
				}
			})
		})
	}
}

func TestPositionsAreSavedBeforeTheyAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, f := newTenure(t)
		var reported []pglogrepl.LSN
		stop := run(t, tenure, func(lsn pglogrepl.LSN) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.saves[len(f.saves)-1] != lsn {
				t.Errorf("%v reported, %v saved", lsn, f.saves)
			}
			reported = append(reported, lsn)
		})
		<-time.After(100 * time.Millisecond)
		tenure.Offer(30)
		tenure.Offer(10) // ignored
		<-time.After(time.Second)
		synctest.Wait() // two renewals
		f.set(func(f *fakeServer) { f.cut = true })
		tenure.Offer(50)
		<-time.After(10 * time.Second)
		f.set(func(f *fakeServer) { f.cut = false })
		<-time.After(5 * time.Second)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if diff := cmp.Diff([]pglogrepl.LSN{30, 50}, reported); diff != "" {
			t.Errorf("reported positions (-want +got):\n%s", diff)
		}
	})
}

// A renewal that a stop cuts off would cost the release its connection.
func TestStopLetsARenewalEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, f := newTenure(t)
		f.slow = 300 * time.Millisecond
		stop := run(t, tenure, ignore)
		<-time.After(600 * time.Millisecond) // under way since 500 ms
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := tenure.Release(t.Context(), 40); err != nil {
			t.Errorf("Release: %v", err)
		}
		if diff := cmp.Diff([]pglogrepl.LSN{0, 40}, f.saves); diff != "" {
			t.Errorf("saved by renewal and release (-want +got):\n%s", diff)
		}
		if f.opened != 1 || f.closed != 1 {
			t.Errorf("%d links opened, %d closed, want the first one to do", f.opened, f.closed)
		}
	})
}

func TestReleaseTriesANewConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure, f := newTenure(t)
		tenure.link = &brokenLink{fakeLink{f}}
		if err := tenure.Release(t.Context(), 40); err != nil {
			t.Errorf("Release: %v", err)
		}
		if diff := cmp.Diff([]pglogrepl.LSN{40}, f.saves); diff != "" {
			t.Errorf("saved (-want +got):\n%s", diff)
		}
		if err := tenure.Permit(t.Context()); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Permit after the release: %v, want ErrFenced", err)
		}
	})
}

type brokenLink struct{ fakeLink }

func (*brokenLink) release(context.Context, int64, uint32, pglogrepl.LSN) (bool, error) {
	return false, errCut
}

func TestPermitDoesNotAllocate(t *testing.T) {
	tenure, _ := newTenure(t)
	tenure.cfg.PublishWithin = time.Hour
	ctx := t.Context()
	if got := testing.AllocsPerRun(1000, func() {
		if err := tenure.Permit(ctx); err != nil {
			t.Fatal(err)
		}
		tenure.Offer(1)
	}); got != 0 {
		t.Errorf("Permit and Offer allocate %v times, want 0", got)
	}
}

func BenchmarkPermit(b *testing.B) {
	tenure, _ := newTenure(b)
	tenure.cfg.PublishWithin = time.Hour
	for b.Loop() {
		if err := tenure.Permit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
