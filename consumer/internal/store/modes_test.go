package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// TestDriverModes: an application behind a pooler of connections may not let
// the driver prepare statements.
func TestDriverModes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
			pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		} {
			t.Run(mode.String(), func(t *testing.T) {
				runAll(t, f.owned(f.poolInMode(t, mode), "me"), f)
			})
		}
	})
}

func (f *fixture) poolInMode(t *testing.T, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	conf := f.pool.Config()
	conf.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// runAll runs every statement.
func runAll(t *testing.T, c claims, f *fixture) {
	t.Helper()
	refs := f.events(t, 3)
	list, err := c.Claim(t.Context(), refs)
	if err != nil || len(list) != 3 {
		t.Fatalf("claimed %v, %v", list, err)
	}
	held := []store.Held{list[0].Held(), list[1].Held(), list[2].Held()}
	if alive, _, err := c.Renew(t.Context(), held); len(alive) != 3 || err != nil {
		t.Errorf("renewed: %v, %v", alive, err)
	}
	if err := c.HandBack(t.Context(), held[:1]); err != nil {
		t.Errorf("handed back: %v", err)
	}
	again, ok, err := c.ClaimOne(t.Context(), held[0].Ref)
	if !ok || err != nil {
		t.Errorf("claimed again: %v, %v", ok, err)
	}
	if ok, err := c.Fail(t.Context(), store.Failure{Held: again.Held(), Code: "APP_X", Message: "é"}); !ok || err != nil {
		t.Errorf("failed: %v, %v", ok, err)
	}
	if ok, err := c.Release(t.Context(), store.Release{Held: held[1], Delay: time.Hour, Code: "APP_X", Message: "é"}); !ok || err != nil {
		t.Errorf("released: %v, %v", ok, err)
	}
	f.expire(t, held[2].Ref)
	over, _, ok, err := c.TakeOver(t.Context(), held[2].Ref)
	if !ok || err != nil {
		t.Errorf("taken over: %v, %v", ok, err)
	}
	if kept, err := c.Done(t.Context(), []store.Held{over.Held()}); len(kept) != 1 || err != nil {
		t.Errorf("done: %v, %v", kept, err)
	}
	states, err := c.States(t.Context(), []store.Ref{held[0].Ref, held[1].Ref, held[2].Ref})
	want := []store.Kind{store.Finished, store.Delayed, store.Finished}
	for i := range states {
		if states[i].Kind != want[i] {
			t.Errorf("state %d: %v, want %v", i, states[i], want[i])
		}
	}
	if err != nil || len(states) != 3 {
		t.Errorf("states: %v, %v", states, err)
	}
}

// TestErrorsSayWhat: and hold nothing of the event's data.
func TestErrorsSayWhat(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		ref := f.event(t)
		f.pool.Close()
		held := store.Held{Ref: ref, Generation: 1}
		for want, err := range map[string]error{
			"claiming 1 events":             second(f.Claim(t.Context(), []store.Ref{ref})),
			"claiming event":                third(f.ClaimOne(t.Context(), ref)),
			"reading the state of 1 events": second(f.States(t.Context(), []store.Ref{ref})),
			"renewing 1 claims":             third(f.Renew(t.Context(), []store.Held{held})),
			"completing 1 claims":           second(f.Done(t.Context(), []store.Held{held})),
			"handing back 1 claims":         f.HandBack(t.Context(), []store.Held{held}),
			"recording the failure of":      second(f.Fail(t.Context(), store.Failure{Held: held})),
			"releasing event":               second(f.Release(t.Context(), store.Release{Held: held})),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %q, want %q first", fmt.Sprint(err), want)
			}
		}
		if _, _, _, err := f.TakeOver(t.Context(), ref); err == nil || !strings.HasPrefix(err.Error(), "taking over event") {
			t.Errorf("taking over: %v", err)
		}
	})
}

func second[A any](_ A, err error) error { return err }

func third[A, B any](_ A, _ B, err error) error { return err }
