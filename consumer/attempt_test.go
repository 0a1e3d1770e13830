package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// attemptOf runs a handler for an event with these claim and options.
func attemptOf(t *testing.T, h Handler, claim store.Claim, opts ...Option) (outcome, string) {
	t.Helper()
	var log strings.Builder
	o := defaults()
	for _, opt := range append(opts, Logger(slog.New(slog.NewTextHandler(&log, nil)))) {
		opt(&o)
	}
	o.retry.Jitter = 0
	c := &Consumer{opt: o, log: o.logger, handler: h, tenures: newTenures(o.lease)}
	claim.EventID = outbox.NewID()
	it := &item{
		rec: group.Record{}, claim: newClaim(claim, nil),
		ev: &Event{ID: claim.EventID, Attempt: claim.Attempts + 1, Ambiguous: claim.Ambiguous()},
	}
	return claiming{c}.attempt(t.Context(), it), log.String()
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	abandoned := store.Claim{Attempts: 1, ErrorCode: store.CodeAbandoned}
	ask := func(f Found, err error) Option {
		return Ambiguity(Query(func(context.Context, *Event) (Found, error) { return f, err }))
	}
	second := time.Second
	for name, tc := range map[string]struct {
		returns error
		panics  any
		claim   store.Claim
		opts    []Option
		end     end
		code    string
		delay   time.Duration
		notRun  bool
	}{
		"success":             {end: succeed},
		"any error":           {returns: boom, end: release, code: "CONSUMER_SYSTEM", delay: second},
		"system error":        {returns: SystemError(boom), end: release, code: "CONSUMER_SYSTEM", delay: second},
		"third attempt":       {returns: boom, claim: store.Claim{Attempts: 2}, end: release, code: "CONSUMER_SYSTEM", delay: 4 * second},
		"last attempt":        {returns: boom, claim: store.Claim{Attempts: 2}, opts: []Option{MaxAttempts(3)}, end: fail, code: "CONSUMER_SYSTEM"},
		"not the last one":    {returns: boom, claim: store.Claim{Attempts: 1}, opts: []Option{MaxAttempts(3)}, end: release, code: "CONSUMER_SYSTEM", delay: 2 * second},
		"data error":          {returns: DataError("APP_PAYLOAD", boom), end: fail, code: "APP_PAYLOAD"},
		"wrapped data error":  {returns: fmt.Errorf("reading: %w", DataError("APP_PAYLOAD", boom)), end: fail, code: "APP_PAYLOAD"},
		"code of no app":      {returns: DataError("OOPS", boom), end: fail, code: "CONSUMER_DATA"},
		"code in lower case":  {returns: DataError("APP_oops", boom), end: fail, code: "CONSUMER_DATA"},
		"data error with nil": {returns: DataError("APP_X", nil), end: fail, code: "APP_X"},
		"delay":               {returns: Delay(time.Minute, boom), end: release, code: "CONSUMER_SYSTEM", delay: time.Minute},
		"delay in the past":   {returns: Delay(-time.Minute, boom), end: release, code: "CONSUMER_SYSTEM"},
		"in doubt":            {returns: InDoubt(boom), end: fail, code: "CONSUMER_AMBIGUOUS"},
		"other digest":        {returns: ErrDigestChanged, end: fail, code: "CONSUMER_AMBIGUOUS"},
		"panic":               {panics: "secret", end: release, code: "CONSUMER_PANIC", delay: second},
		"runtime panic":       {panics: errors.New("secret"), end: release, code: "CONSUMER_PANIC", delay: second},

		"ambiguous, repeat":       {returns: Ambiguous(boom), end: release, code: "CONSUMER_AMBIGUOUS", delay: second},
		"ambiguous, hold":         {returns: Ambiguous(boom), opts: []Option{Ambiguity(Hold)}, end: fail, code: "CONSUMER_AMBIGUOUS"},
		"ambiguous, present":      {returns: Ambiguous(boom), opts: []Option{ask(Present, nil)}, end: succeed},
		"ambiguous, absent":       {returns: Ambiguous(boom), opts: []Option{ask(Absent, nil)}, end: release, code: "CONSUMER_AMBIGUOUS", delay: second},
		"ambiguous, unknown":      {returns: Ambiguous(boom), opts: []Option{ask(Unknown, nil)}, end: release, code: "CONSUMER_AMBIGUOUS", delay: second},
		"ambiguous, asking fails": {returns: Ambiguous(boom), opts: []Option{ask(Present, boom)}, end: release, code: "CONSUMER_AMBIGUOUS", delay: second},

		"begins in doubt, repeat":       {claim: abandoned, end: succeed},
		"begins in doubt, key too old":  {claim: store.Claim{ErrorCode: store.CodeAmbiguous, Age: 25 * time.Hour}, end: fail, code: "CONSUMER_AMBIGUOUS", notRun: true},
		"begins in doubt, own TTL":      {claim: store.Claim{ErrorCode: store.CodeAmbiguous, Age: 25 * time.Hour}, opts: []Option{KeyTTL(26 * time.Hour)}, end: succeed},
		"old, but not in doubt":         {claim: store.Claim{Age: 25 * time.Hour}, end: succeed},
		"begins in doubt, hold":         {claim: abandoned, opts: []Option{Ambiguity(Hold)}, end: fail, code: "CONSUMER_AMBIGUOUS", notRun: true},
		"begins in doubt, present":      {claim: abandoned, opts: []Option{ask(Present, nil)}, end: succeed, notRun: true},
		"begins in doubt, absent":       {claim: abandoned, opts: []Option{ask(Absent, nil)}, end: succeed},
		"begins in doubt, unknown":      {claim: abandoned, opts: []Option{ask(Unknown, nil)}, end: release, code: "CONSUMER_AMBIGUOUS", delay: 2 * second, notRun: true},
		"begins in doubt, asking fails": {claim: abandoned, opts: []Option{ask(Absent, boom)}, end: release, code: "CONSUMER_AMBIGUOUS", delay: 2 * second, notRun: true},
		"effect begun before":           {claim: store.Claim{EffectBegun: true}, opts: []Option{Ambiguity(Hold)}, end: fail, code: "CONSUMER_AMBIGUOUS", notRun: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := false
			o, log := attemptOf(t, func(context.Context, *Event) error {
				if ran = true; tc.panics != nil {
					panic(tc.panics)
				}
				return tc.returns
			}, tc.claim, tc.opts...)
			if o.end != tc.end || o.code != tc.code || o.delay != tc.delay {
				t.Errorf("end %d, code %q, delay %v; want %d, %q, %v", o.end, o.code, o.delay, tc.end, tc.code, tc.delay)
			}
			if ran == tc.notRun {
				t.Errorf("the handler ran: %v", ran)
			}
			if strings.Contains(o.message, "boom") {
				t.Errorf("the row's sentence repeats the handler's error: %q", o.message)
			}
			if strings.Contains(log, "secret") {
				t.Errorf("the log holds the text of a panic:\n%s", log)
			}
			if o.end != succeed && o.message == "" {
				t.Error("no sentence for the row")
			}
		})
	}
}

// TestHandlerThatIsCutOff: what it did is not known, unless it says that it did
// not start, or what is wrong with the event.
func TestHandlerThatIsCutOff(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cause, returns error
		end            end
		code           string
	}{
		"stop, an error":           {errStopping, errors.New("cut off"), release, store.CodeAmbiguous},
		"stop, system error":       {errStopping, SystemError(errors.New("cut off")), release, store.CodeAmbiguous},
		"stop, not started":        {errStopping, ErrNotStarted, handBack, ""},
		"stop, success":            {errStopping, nil, succeed, ""},
		"stop, data error":         {errStopping, DataError("APP_X", errors.New("bad")), fail, "APP_X"},
		"lease over, an error":     {ErrClaimLost, errors.New("cut off"), release, store.CodeAmbiguous},
		"lease over, not started":  {ErrClaimLost, ErrNotStarted, handBack, ""},
		"something else, an error": {errors.New("x"), errors.New("y"), release, store.CodeSystem},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancelCause(t.Context())
			c := &Consumer{opt: defaults(), log: slog.New(slog.DiscardHandler)}
			c.handler = func(context.Context, *Event) error {
				stop(tc.cause)
				return tc.returns
			}
			o := claiming{c}.attempt(ctx, &item{ev: &Event{Attempt: 1}, claim: newClaim(store.Claim{}, nil)})
			if o.end != tc.end || o.code != tc.code {
				t.Errorf("end %d, code %q; want %d, %q", o.end, o.code, tc.end, tc.code)
			}
		})
	}
}

func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	o, _ := attemptOf(t, func(ctx context.Context, _ *Event) error {
		<-ctx.Done()
		return ctx.Err()
	}, store.Claim{}, HandlerTimeout(time.Millisecond))
	if o.end != release || o.code != store.CodeAmbiguous { // it was cut off in its middle
		t.Errorf("end %d, code %q", o.end, o.code)
	}
}

// TestQueryThatHangs: it is bounded like the attempt that it is part of, whether
// that begins with it or ends in it.
func TestQueryThatHangs(t *testing.T) {
	t.Parallel()
	hang := Ambiguity(Query(func(ctx context.Context, _ *Event) (Found, error) {
		<-ctx.Done()
		return Unknown, ctx.Err()
	}))
	for name, claim := range map[string]store.Claim{"begins in doubt": {ErrorCode: store.CodeAbandoned}, "ends in doubt": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, _ := attemptOf(t, func(context.Context, *Event) error { return Ambiguous(errors.New("no answer")) }, claim,
					hang, HandlerTimeout(time.Second))
				if o.end != release || o.code != store.CodeAmbiguous {
					t.Errorf("end %d, code %q", o.end, o.code)
				}
			})
		})
	}
}

// TestQueryThatIsCutOff is no failure, so that it does not use up the last
// attempt.
func TestQueryThatIsCutOff(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"stop": errStopping, "lease over": ErrClaimLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancelCause(t.Context())
			c := &Consumer{opt: defaults(), log: slog.New(slog.DiscardHandler)}
			c.opt.maxAttempts = 2
			c.opt.ambiguity = Query(func(ctx context.Context, _ *Event) (Found, error) {
				stop(cause)
				return Unknown, ctx.Err()
			})
			it := &item{ev: &Event{Attempt: 2, Ambiguous: true}, claim: newClaim(store.Claim{}, nil)}
			if o := (claiming{c}).attempt(ctx, it); o.end != release || o.code != store.CodeAmbiguous {
				t.Errorf("end %d, code %q", o.end, o.code)
			}
		})
	}
}
