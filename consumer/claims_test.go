package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// claimed is a database with an outbox, and claims on it.
type claimed struct {
	*pgx.Conn // the superuser's
	pool      *pgxpool.Pool
	consumer.Claims
}

func newClaimed(t *testing.T, db *pgtest.DB, purpose string) *claimed {
	t.Helper()
	db.Migrate(t, "public")
	_, dsn := db.Consumer(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &claimed{Conn: db.Conn(t), pool: pool, Claims: consumer.Claims{DB: pool, Purpose: purpose}}
}

// eachWay runs a test with claims on rows and on receipts.
func eachWay(t *testing.T, test func(t *testing.T, c *claimed)) {
	t.Helper()
	for name, purpose := range map[string]string{"rows": "", "receipts": "mail"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) { test(t, newClaimed(t, db, purpose)) })
		})
	}
}

func (c *claimed) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// sent makes an event that was published.
func (c *claimed) sent(t *testing.T) consumer.Ref {
	t.Helper()
	ref := consumer.Ref{ID: outbox.NewID()}
	if err := c.QueryRow(t.Context(), `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, send_status, sent_at)
		VALUES ($1, 'order', 'o-1', 'created', 2, now()) RETURNING id`, ref.ID).Scan(&ref.OutboxID); err != nil {
		t.Fatal(err)
	}
	return ref
}

func (c *claimed) must(t *testing.T, ref consumer.Ref) *consumer.Claim {
	t.Helper()
	claim, err := c.Claim(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// expire lets the lease of an event end.
func (c *claimed) expire(t *testing.T, ref consumer.Ref) {
	t.Helper()
	for _, table := range []string{"outbox", "outbox_receipt"} {
		c.exec(t, "UPDATE "+table+" SET lease_until = now() - interval '1 s' WHERE event_id = $1 AND lease_until IS NOT NULL", ref.ID)
	}
}

func TestClaimAndItsEnds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	ends := []struct {
		name string
		end  func(*consumer.Claim) error
		then error // what the next claim says
	}{
		{"consumed", func(c *consumer.Claim) error { return c.Consumed(ctx) }, consumer.ErrConsumed},
		{"failed", func(c *consumer.Claim) error { return c.Failed(ctx, "APP_X", "bad") }, consumer.ErrConsumed},
		{"released", func(c *consumer.Claim) error { return c.Release(ctx, time.Hour) }, consumer.ErrClaimed},
		{"released at once", func(c *consumer.Claim) error { return c.Release(ctx, -time.Hour) }, nil},
		{"renewed", func(c *consumer.Claim) error { return c.Renew(ctx) }, consumer.ErrClaimed},
	}
	eachWay(t, func(t *testing.T, c *claimed) {
		for _, test := range ends {
			t.Run(test.name, func(t *testing.T) {
				ref := c.sent(t)
				claim := c.must(t, ref)
				if claim.Attempt() != 1 || claim.Ambiguous() || claim.Generation() != 1 || claim.ProviderRef() != "" {
					t.Errorf("attempt %d, ambiguous %v, generation %d", claim.Attempt(), claim.Ambiguous(), claim.Generation())
				}
				if err := test.end(claim); err != nil {
					t.Errorf("the end: %v", err)
				}
				if _, err := c.Claim(ctx, ref); !errors.Is(err, test.then) {
					t.Errorf("the next claim: %v, want %v", err, test.then)
				}
			})
		}
	})
}

func TestClaimedError(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *claimed) {
		ref := c.sent(t)
		claim := c.must(t, ref)
		_, err := c.Claim(t.Context(), ref)
		var held *consumer.ClaimedError
		if !errors.As(err, &held) || held.Delayed || held.Left > 30*time.Second || held.Left < 20*time.Second {
			t.Errorf("while it is held: %v", err)
		}
		if err := claim.Release(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		_, err = c.Claim(t.Context(), ref)
		if !errors.As(err, &held) || !held.Delayed || held.Left > time.Hour || held.Left < 59*time.Minute {
			t.Errorf("while it is delayed: %v", err)
		}
	})
}

func TestWhyARowCannotBeClaimed(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := newClaimed(t, db, "")
		for _, test := range []struct {
			set  string
			want error
		}{
			{"send_status = 0, sent_at = NULL", consumer.ErrNotSent},
			{"send_status = 3, sent_at = NULL, next_attempt_at = 'infinity'", consumer.ErrFailed},
			{"send_status = 3, next_attempt_at = 'infinity'", consumer.ErrConsumed},
			{"send_status = 4", consumer.ErrConsumed},
			{"event_id = gen_random_uuid()", consumer.ErrMissing},
		} {
			ref := c.sent(t)
			c.exec(t, "UPDATE outbox SET "+test.set+" WHERE id = $1", ref.OutboxID)
			if _, err := c.Claim(t.Context(), ref); !errors.Is(err, test.want) {
				t.Errorf("%s: %v, want %v", test.set, err, test.want)
			}
		}
		ref := c.sent(t)
		ref.OutboxID = 0
		c.must(t, ref)
	})
}

// TestAbandonedEvents are taken over, up to AbandonLimit; who had one before has
// lost it.
func TestAbandonedEvents(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *claimed) {
		c.AbandonLimit = 2
		ref := c.sent(t)
		first := c.must(t, ref)
		c.expire(t, ref)
		second := c.must(t, ref)
		if second.Attempt() != 2 || !second.Ambiguous() || second.Generation() != 2 {
			t.Errorf("attempt %d, ambiguous %v, generation %d", second.Attempt(), second.Ambiguous(), second.Generation())
		}
		for name, err := range map[string]error{
			"Renew":    first.Renew(t.Context()),
			"Consumed": first.Consumed(t.Context()),
			"Failed":   first.Failed(t.Context(), "APP_X", ""),
			"Release":  first.Release(t.Context(), 0),
		} {
			if !errors.Is(err, consumer.ErrClaimLost) {
				t.Errorf("%s of a lost claim: %v", name, err)
			}
		}
		c.expire(t, ref)
		if _, err := c.Claim(t.Context(), ref); !errors.Is(err, consumer.ErrFailed) {
			t.Errorf("abandoned a second time: %v", err)
		}
		if _, err := c.Claim(t.Context(), ref); !errors.Is(err, consumer.ErrConsumed) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestConsumedTx: the effect and the outcome commit together.
func TestConsumedTx(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *claimed) {
		c.exec(t, "CREATE TABLE effect (id uuid PRIMARY KEY); GRANT INSERT ON effect TO public")
		ref := c.sent(t)
		claim := c.must(t, ref)
		for _, boom := range []error{errors.New("boom"), nil} {
			err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "INSERT INTO effect VALUES ($1)", ref.ID); err != nil {
					return err
				}
				if err := claim.ConsumedTx(t.Context(), tx); err != nil {
					return err
				}
				return boom
			})
			if !errors.Is(err, boom) {
				t.Fatal(err)
			}
			var effects int
			if err := c.QueryRow(t.Context(), "SELECT count(*) FROM effect").Scan(&effects); err != nil {
				t.Fatal(err)
			}
			_, err = c.Claim(t.Context(), ref)
			if want := map[bool]error{false: consumer.ErrConsumed, true: consumer.ErrClaimed}[boom != nil]; !errors.Is(err, want) {
				t.Errorf("rolled back %v: %v, want %v", boom != nil, err, want)
			}
			if want := map[bool]int{false: 1, true: 0}[boom != nil]; effects != want {
				t.Errorf("rolled back %v: %d effects, want %d", boom != nil, effects, want)
			}
		}
		err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error { return claim.ConsumedTx(t.Context(), tx) })
		if !errors.Is(err, consumer.ErrClaimLost) {
			t.Errorf("once more: %v", err)
		}
	})
}

// TestClaimInATransaction: with an effect in the outbox's database the claim can
// be in its transaction too. A rival waits, and then sees the outcome.
func TestClaimInATransaction(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *claimed) {
		ref := c.sent(t)
		for _, commit := range []bool{false, true} {
			tx, err := c.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			inTx := c.Claims
			inTx.DB = tx
			claim, err := inTx.Claim(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := claim.Consumed(t.Context()); err != nil {
				t.Fatal(err)
			}
			rival := make(chan error, 1)
			go func() {
				other, err := c.Claims.Claim(t.Context(), ref)
				if err == nil {
					err = other.Release(t.Context(), 0)
				}
				rival <- err
			}()
			pgtest.Eventually(t, "the rival to wait", func() bool {
				var waits bool
				err := c.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock')`).Scan(&waits)
				return err == nil && waits
			}, func() string { return "it does not" })
			end, want := tx.Rollback, error(nil)
			if commit {
				end, want = tx.Commit, consumer.ErrConsumed
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-rival; !errors.Is(err, want) {
				t.Errorf("commit %v: the rival got %v, want %v", commit, err, want)
			}
		}
	})
}

func TestEffects(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := newClaimed(t, db, "mail")
		ref := c.sent(t)
		first := c.must(t, ref)
		for range 2 {
			if err := first.BeginEffect(t.Context(), []byte("digest")); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.SetProviderRef(t.Context(), "m-1"); err != nil {
			t.Fatal(err)
		}
		if err := first.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		second := c.must(t, ref)
		if !second.Ambiguous() || second.ProviderRef() != "m-1" {
			t.Errorf("ambiguous %v, reference %q", second.Ambiguous(), second.ProviderRef())
		}
		if err := second.BeginEffect(t.Context(), []byte("another")); !errors.Is(err, consumer.ErrDigestChanged) {
			t.Errorf("another digest: %v", err)
		}
		if err := second.ClearEffect(t.Context()); err != nil {
			t.Error(err)
		}
		if err := second.BeginEffect(t.Context(), []byte("another")); err != nil {
			t.Errorf("after a refusal: %v", err)
		}
		for name, err := range map[string]error{
			"BeginEffect":    first.BeginEffect(t.Context(), nil),
			"ClearEffect":    first.ClearEffect(t.Context()),
			"SetProviderRef": first.SetProviderRef(t.Context(), ""),
		} {
			if !errors.Is(err, consumer.ErrClaimLost) {
				t.Errorf("%s of a lost claim: %v", name, err)
			}
		}
	})
}

// TestEffectsOfARow: a row has no place for them.
func TestEffectsOfARow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := newClaimed(t, db, "")
		claim := c.must(t, c.sent(t))
		for name, err := range map[string]error{
			"BeginEffect":    claim.BeginEffect(t.Context(), nil),
			"ClearEffect":    claim.ClearEffect(t.Context()),
			"SetProviderRef": claim.SetProviderRef(t.Context(), ""),
		} {
			if err == nil || !strings.Contains(err.Error(), "use receipts") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestClaimsThatAreWrong say so before they reach the database.
func TestClaimsThatAreWrong(t *testing.T) {
	t.Parallel()
	unused := &pgxpool.Pool{}
	for want, c := range map[string]consumer.Claims{
		"no database":  {},
		"below zero":   {DB: unused, Lease: -1},
		"AbandonLimit": {DB: unused, AbandonLimit: -1},
		"a purpose is": {DB: unused, Purpose: "Mail"},
	} {
		if _, err := c.Claim(t.Context(), consumer.Ref{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestOtherNames: the schema and the tables may be called otherwise.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "order") // needs quotes
		conn := db.Conn(t)
		id := outbox.NewID()
		if _, err := conn.Exec(t.Context(), `ALTER TABLE "order".outbox RENAME TO "Events"`); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO "order"."Events" (event_id, aggregate_type, aggregate_id, event_type, send_status)
			VALUES ($1, 'order', 'o-1', 'created', 2)`, id); err != nil {
			t.Fatal(err)
		}
		for _, c := range []consumer.Claims{
			{DB: conn, Schema: "order", Table: "Events", Owner: "me", Lease: time.Hour},
			{DB: conn, Schema: "order", Purpose: "mail", Owner: "me", Lease: time.Hour},
		} {
			claim, err := c.Claim(t.Context(), consumer.Ref{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if err := claim.Consumed(t.Context()); err != nil {
				t.Error(err)
			}
		}
		var owners string
		if err := conn.QueryRow(t.Context(), `SELECT e.claimed_by || ' ' || r.claimed_by FROM "order"."Events" e
			JOIN "order".outbox_receipt r USING (event_id)`).Scan(&owners); err != nil || owners != "me me" {
			t.Errorf("owners %q, %v", owners, err)
		}
	})
}

func TestOnce(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := newClaimed(t, db, "")
		id := outbox.NewID()
		boom := errors.New("boom")
		for n, test := range []struct {
			purpose string
			ends    error
			first   bool
		}{
			{"mail", boom, true}, {"mail", nil, true}, {"mail", nil, false}, {"bill", nil, true},
		} {
			err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
				first, err := consumer.Once(t.Context(), tx, id, test.purpose)
				if first != test.first || err != nil {
					t.Errorf("call %d: %v, %v", n, first, err)
				}
				return test.ends
			})
			if !errors.Is(err, test.ends) {
				t.Error(err)
			}
		}
		for name, err := range map[string]error{
			"no id":      second(consumer.Once(t.Context(), nil, outbox.ID{}, "mail")),
			"no purpose": second(consumer.Once(t.Context(), nil, id, "")),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

func second[A any](_ A, err error) error { return err }

func TestPurgeReceipts(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "order")
		conn := db.Conn(t)
		if _, err := conn.Exec(t.Context(), `INSERT INTO "order".outbox_receipt (event_id, purpose, created_at)
			SELECT gen_random_uuid(), 'mail', now() - i * interval '10 days' FROM generate_series(1, 5) i`); err != nil {
			t.Fatal(err)
		}
		const day = 24 * time.Hour
		o := consumer.PurgeOptions{Schema: "order", OlderThan: 25 * day, Horizon: 26 * day}
		if n, err := consumer.PurgeReceipts(t.Context(), conn, o); n != 0 || err == nil {
			t.Errorf("below the horizon: %d, %v", n, err)
		}
		o.Horizon = 25 * day
		if n, err := consumer.PurgeReceipts(t.Context(), conn, o); n != 3 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
		if _, err := consumer.PurgeReceipts(t.Context(), nil, o); err == nil {
			t.Error("no error without a database")
		}
	})
}

// Claims are for those who get events in another way than from Kafka, such as
// by a web hook.
func ExampleClaims() {
	var pool *pgxpool.Pool // of the outbox's database
	claims := consumer.Claims{DB: pool, Lease: time.Minute}

	handle := func(ctx context.Context, id outbox.ID) error {
		claim, err := claims.Claim(ctx, consumer.Ref{ID: id})
		switch held := (*consumer.ClaimedError)(nil); {
		case errors.Is(err, consumer.ErrConsumed):
			return nil // a duplicate
		case errors.As(err, &held):
			return fmt.Errorf("come again in %v", held.Left)
		case err != nil:
			return err
		}
		if err := sendMail(ctx, id); err != nil {
			return claim.Release(ctx, time.Minute)
		}
		return claim.Consumed(ctx)
	}
	_ = handle
}

func sendMail(context.Context, outbox.ID) error { return nil }

// An effect in PostgreSQL and its receipt commit together, once.
func ExampleOnce() {
	var pool *pgxpool.Pool // of a database with outbox_receipt

	handle := func(ctx context.Context, id outbox.ID, amount int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			first, err := consumer.Once(ctx, tx, id, "booking")
			if err != nil || !first {
				return err
			}
			_, err = tx.Exec(ctx, "UPDATE account SET balance = balance + $1", amount)
			return err
		})
	}
	_ = handle
}

// Receipts live longer than any record can come again.
func ExamplePurgeReceipts() {
	var pool *pgxpool.Pool
	purge := func(ctx context.Context) (int64, error) {
		const day = 24 * time.Hour
		return consumer.PurgeReceipts(ctx, pool, consumer.PurgeOptions{OlderThan: 30 * day, Horizon: 14 * day})
	}
	_ = purge
}
