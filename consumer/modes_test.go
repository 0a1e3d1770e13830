package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// inTx makes the bed's consumer one with a transactional handler.
func (b *bed) inTx(h TxHandler, opts ...Option) *bed {
	b.t.Helper()
	opts = append([]Option{
		Receipts("stock"), Horizon(24 * time.Hour), Logger(b.c.log), RetryDelay(RetryPolicy{Base: 50 * time.Millisecond, Max: time.Second}),
	}, opts...)
	c, err := NewTx(b.c.cfg, h, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.c = c
	b.exec(`CREATE TABLE effect (id uuid)`)
	return b
}

// receipt is what the consumer's own table says of an event.
func (b *bed) receipt(id outbox.ID, purpose string) (r row) {
	b.t.Helper()
	err := b.pool.QueryRow(b.t.Context(), `SELECT status, claim_generation, attempts, coalesce(error_code, '')
		FROM outbox_receipt WHERE event_id = $1 AND purpose = $2`, id, purpose).Scan(&r.Status, &r.Generation, &r.Attempts, &r.Code)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		b.t.Fatal(err)
	}
	return r
}

func (b *bed) effects() (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM effect`).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func insertEffect(ctx context.Context, tx pgx.Tx, ev *Event) error {
	_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, ev.ID)
	return err
}

// TestEffectAndReceiptCommitTogether: whatever the handler does after its
// effect, the effect is there once if it succeeds and not at all if not. The
// outbox row is not touched, not even looked at.
func TestEffectAndReceiptCommitTogether(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			var got calls
			b := newBed(t, version, func(context.Context, *Event) error { return nil })
			ids := b.rows(outbox.Ready, "fails twice", "bad", "panics once", "aborted once", "good")
			times := map[outbox.ID]int{}
			b.inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
				got.add(ev)
				times[ev.ID]++
				if err := insertEffect(ctx, tx, ev); err != nil {
					return err
				}
				switch n := times[ev.ID]; {
				case ev.ID == ids[0] && n < 3:
					return errors.New("not now")
				case ev.ID == ids[1]:
					return DataError("APP_BAD", errors.New("bad"))
				case ev.ID == ids[2] && n == 1:
					panic("oops")
				case ev.ID == ids[3] && n == 1:
					tx.Exec(ctx, "SELECT 1/0") // the transaction is aborted, and the handler does not see it
				}
				return nil
			})
			for _, i := range []int{0, 1, 2, 3, 4, 4, 0} {
				b.log.add(b.record(ids[i], "k"))
			}
			b.start()
			b.await(7)
			for i, want := range []row{
				{outbox.Consumed, 0, 2, ""}, {outbox.Failed, 0, 1, "APP_BAD"}, {outbox.Consumed, 0, 1, ""}, {outbox.Consumed, 0, 1, ""},
				{outbox.Consumed, 0, 0, ""},
			} {
				r := b.receipt(ids[i], "stock")
				r.Code, r.Generation = map[bool]string{true: r.Code}[want.Code != ""], 0
				if diff := cmp.Diff(want, r); diff != "" {
					t.Errorf("receipt %d (-want +got):\n%s", i, diff)
				}
				b.want(ids[i], row{Status: outbox.Ready})
			}
			if n := b.effects(); n != 4 {
				t.Errorf("%d effects, want one of each event that succeeded", n)
			}
			if n := len(got.all()); n != 9 {
				t.Errorf("%d calls, want 9: 3, 1, 2, 2 and 1", n)
			}
		})
	}
}

func TestTransactionalHandlerWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, 10), make(chan struct{}, 10)
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }).inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
		if err := insertEffect(ctx, tx, ev); err != nil {
			return err
		}
		entered <- struct{}{}
		<-leave
		return nil
	})
	id := b.put("a")[0]
	b.start()
	<-entered
	b.connections(false)
	defer b.connections(true)
	leave <- struct{}{}
	b.awaitReason(WaitingDatabase)
	if p := b.p.position.Load(); p > 0 {
		t.Errorf("position %d while nothing is committed", p)
	}
	b.connections(true)
	leave <- struct{}{}
	b.await(1)
	if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || b.effects() != 1 {
		t.Errorf("receipt %+v, %d effects", r, b.effects())
	}
}

// TestExternalEffectKeepsItsMemoryInTheReceipt: two purposes of one event, each
// with its own.
func TestExternalEffectKeepsItsMemoryInTheReceipt(t *testing.T) {
	t.Parallel()
	fails := errors.New("no answer")
	n := 0
	b := newBed(t, 18, func(ctx context.Context, ev *Event) error {
		if err := ev.Claim.BeginEffect(ctx, []byte("digest")); err != nil {
			return err
		}
		if n++; n == 1 {
			return Ambiguous(fails)
		}
		if !ev.Ambiguous || ev.Attempt != 2 {
			return DataError("APP_NOT_TOLD", fails)
		}
		return nil
	}, Receipts("mail"), Horizon(24*time.Hour))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	r := b.receipt(id, "mail")
	if r.Status != outbox.Consumed || r.Attempts != 1 {
		t.Errorf("receipt %+v", r)
	}
	b.want(id, row{Status: outbox.Sent})
	if other := b.receipt(id, "stock"); other != (row{}) {
		t.Errorf("another purpose has a receipt: %+v", other)
	}
}

func TestOtherRequestIsHeld(t *testing.T) {
	t.Parallel()
	n := byte(0)
	b := newBed(t, 18, func(ctx context.Context, ev *Event) error {
		n++
		if err := ev.Claim.BeginEffect(ctx, []byte{n}); err != nil {
			return err
		}
		return Ambiguous(errors.New("no answer"))
	}, Receipts("mail"), Horizon(24*time.Hour))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.receipt(id, "mail"); r.Status != outbox.Failed || r.Code != "CONSUMER_AMBIGUOUS" || n != 2 {
		t.Errorf("receipt %+v after %d calls", r, n)
	}
}

// TestRefusedForGoodIsNotInDoubt: the handler began its effect and was told that
// there is none.
func TestRefusedForGoodIsNotInDoubt(t *testing.T) {
	t.Parallel()
	n := 0
	b := newBed(t, 18, func(ctx context.Context, ev *Event) error {
		if n++; ev.Ambiguous {
			return DataError("APP_TOLD", errors.New("in doubt"))
		}
		if err := ev.Claim.BeginEffect(ctx, []byte{1}); err != nil {
			return err
		}
		if n == 1 {
			if err := ev.Claim.ClearEffect(ctx); err != nil {
				return err
			}
			return errors.New("refused")
		}
		return nil
	}, Receipts("mail"), Horizon(24*time.Hour))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.receipt(id, "mail"); r.Status != outbox.Consumed {
		t.Errorf("receipt %+v", r)
	}
}

func TestFilterAndHorizon(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	}, Receipts("mail"), Horizon(24*time.Hour), Filter(func(hs []Header) bool {
		for _, h := range hs {
			if h.Name == "ce_type" {
				return string(h.Value) == "ours"
			}
		}
		return false
	}))
	ids := []outbox.ID{outbox.NewID(), outbox.NewID(), outbox.NewID(), outbox.NewID()}
	for i, typ := range []string{"ours", "theirs", "ours", "theirs"} {
		b.log.add(group.Record{Key: []byte("k"), Headers: headers("ce_id", ids[i].String(), "ce_type", typ)})
	}
	b.log.list[2].Time = time.Now().Add(-25 * time.Hour)
	b.log.list[3].Time = time.Now().Add(-25 * time.Hour) // is nobody's, however old
	b.start()
	b.await(4)
	if diff := cmp.Diff(ids[:1], got.all()); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	if r := b.receipt(ids[1], "mail"); r != (row{}) {
		t.Errorf("an event that was left out has a receipt: %+v", r)
	}
	if diff := cmp.Diff(map[string]int{"BEYOND_HORIZON": 1}, b.quarantined()); diff != "" {
		t.Errorf("quarantine (-want +got):\n%s", diff)
	}
}

func TestSettingsThatCannotWork(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil })
	good := b.c.cfg
	handle := func(context.Context, *Event) error { return nil }
	for name, make := range map[string]func() (*Consumer, error){
		"no brokers":    func() (*Consumer, error) { c := good; c.Brokers = nil; return New(c, handle) },
		"no port":       func() (*Consumer, error) { c := good; c.Brokers = []string{"x"}; return New(c, handle) },
		"no group":      func() (*Consumer, error) { c := good; c.Group = ""; return New(c, handle) },
		"no topics":     func() (*Consumer, error) { c := good; c.Topics = nil; return New(c, handle) },
		"no database":   func() (*Consumer, error) { c := good; c.DB = nil; return New(c, handle) },
		"no handler":    func() (*Consumer, error) { return New(good, nil) },
		"no tx handler": func() (*Consumer, error) { return NewTx(good, nil) },
		"tx, no purpose": func() (*Consumer, error) {
			return NewTx(good, func(context.Context, pgx.Tx, *Event) error { return nil })
		},
		"short lease":    func() (*Consumer, error) { return New(good, handle, Lease(time.Second)) },
		"no concurrency": func() (*Consumer, error) { return New(good, handle, Concurrency(0)) },
		"no window":      func() (*Consumer, error) { return New(good, handle, Window(-1)) },
		"delays":         func() (*Consumer, error) { return New(good, handle, RetryDelay(RetryPolicy{Base: 2, Max: 1})) },
		"jitter": func() (*Consumer, error) {
			return New(good, handle, RetryDelay(RetryPolicy{Base: 1, Max: 1, Jitter: 1}))
		},
		"attempts":          func() (*Consumer, error) { return New(good, handle, MaxAttempts(-1)) },
		"filter, rows":      func() (*Consumer, error) { return New(good, handle, Filter(func([]Header) bool { return true })) },
		"purpose":           func() (*Consumer, error) { return New(good, handle, Receipts("A b"), Horizon(time.Hour)) },
		"receipts, forever": func() (*Consumer, error) { return New(good, handle, Receipts("mail")) },
		"query of nothing":  func() (*Consumer, error) { return New(good, handle, Ambiguity(Query(nil))) },
		"observer":          func() (*Consumer, error) { return New(good, handle, Metrics(nil)) },
	} {
		if c, err := make(); err == nil || c != nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(good, handle); err != nil {
		t.Errorf("good settings: %v", err)
	}
	away := good // the outbox's database cannot be reached
	away.DB = nil
	if _, err := New(away, handle, Receipts("mail"), Horizon(time.Hour), ReceiptDB(good.DB)); err != nil {
		t.Errorf("receipts in a database of their own: %v", err)
	}
}
