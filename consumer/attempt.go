package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// errStopping is the cause with which handlers end when a stop has drained for
// too long.
var errStopping = errors.New("the consumer stops")

// errTimeout is the cause with which they end at [HandlerTimeout].
var errTimeout = errors.New("the attempt takes too long")

// panicked is a handler's panic as an error.
type panicked struct{ text string }

func (p *panicked) Error() string { return "the application's code panicked: " + p.text }

// handle makes an attempt in a goroutine of its own, which calls over at its end.
// The application's code may end that goroutine, as testing.T.FailNow does.
func (c *Consumer) handle(it *item, over func()) {
	ctx, end := c.tenures.run(c.handling, it.ev.ID, it.live)
	go func() {
		start, returned := time.Now(), false
		defer func() {
			if !returned {
				it.out = c.left(it, context.Cause(ctx))
			}
			it.took = time.Since(start)
			end()
			over()
		}()
		it.out = c.engine.attempt(ctx, it)
		returned = true
	}()
}

// left is for an attempt whose goroutine was ended, given why its context ended:
// it has panicked.
func (c *Consumer) left(it *item, cause error) outcome {
	err := &panicked{"it ended its goroutine"}
	c.log.Error(err.Error(), "event_id", it.ev.ID, "stack", string(debug.Stack()))
	if t, ok := c.engine.(transacting); ok {
		return t.undone(it, err, cause)
	}
	return c.judge(c.handling, it, err, cause)
}

// call runs a handler and turns its panic into an error.
func (c *Consumer) call(ctx context.Context, h Handler, ev *Event) (err error) {
	defer c.caught(ev, &err)
	start := time.Now()
	defer func() { c.opt.observer.Processed(ev.Topic, time.Since(start)) }()
	return h(ctx, ev)
}

// limited bounds an attempt by [HandlerTimeout].
func (c *Consumer) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.opt.handlerTimeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.opt.handlerTimeout, errTimeout)
}

// caught makes a panic of the application's code an error. It is deferred.
func (c *Consumer) caught(ev *Event, err *error) {
	v := recover()
	if v == nil {
		return
	}
	p := &panicked{fmt.Sprintf("%T", v)} // its text may hold what must not be logged
	if v, ok := v.(runtime.Error); ok {
		p.text = v.Error()
	}
	c.log.Error(p.Error(), "event_id", ev.ID, "stack", string(debug.Stack()))
	*err = p
}

// ask asks the receiver of an effect whether it happened.
func (c *Consumer) ask(ctx context.Context, it *item) (found Found, err error) {
	defer c.caught(it.ev, &err)
	ctx, cancel := c.limited(ctx)
	defer cancel()
	return c.opt.ambiguity.ask(ctx, it.ev)
}

// attempt handles an event under its claim.
func (c claiming) attempt(ctx context.Context, it *item) outcome {
	ev := it.ev
	if ev.Ambiguous {
		if o, decided := c.clear(ctx, it); decided {
			return o
		}
	}
	within, cancel := c.limited(ctx)
	defer cancel()
	switch err := c.call(within, c.handler, ev); {
	case err != nil:
		return c.judge(ctx, it, err, context.Cause(within))
	case it.claim.ended():
		return outcome{end: proved, counted: Consumed}
	default:
		return outcome{end: succeed, counted: Consumed}
	}
}

// clear asks the policy about an effect that an earlier attempt may have had.
func (c *Consumer) clear(ctx context.Context, it *item) (outcome, bool) {
	switch p := c.opt.ambiguity; p.kind {
	case holdKind:
		return inDoubt, true
	case queryKind:
		switch found, err := c.ask(ctx, it); {
		case err == nil && found == Present:
			return outcome{end: succeed, counted: Consumed}, true
		case err == nil && found == Absent:
			return outcome{}, false
		case toldToEnd(context.Cause(ctx)):
			return c.cutOff(it, err), true
		default:
			return c.again(it, store.CodeAmbiguous, "whether an earlier attempt had its effect is not known yet", err), true
		}
	default:
		if it.claim.Age > c.opt.keyTTL {
			return inDoubt, true
		}
		return outcome{}, false
	}
}

var inDoubt = outcome{
	end: fail, code: store.CodeAmbiguous, counted: FailedData,
	message: "an attempt may have had its effect, and a repetition could double it",
}

// judge says what a handler's error means, given why its context ended: nil if it
// has not.
func (c *Consumer) judge(ctx context.Context, it *item, err, cause error) outcome {
	var (
		own *outcomeError
		p   *panicked
	)
	definite := errors.As(err, &own) && (own.verdict != system && own.verdict != ambiguous)
	switch {
	case definite:
	case toldToEnd(cause):
		return c.cutOff(it, err)
	case errors.Is(cause, errTimeout) && !errors.Is(err, ErrNotStarted):
		return c.doubt(ctx, it, err)
	}
	switch {
	case errors.As(err, &p):
		return c.again(it, store.CodePanic, "the handler panicked; the consumer's log says where", nil)
	case errors.Is(err, ErrDigestChanged):
		return c.told(it, err, inDoubt)
	case own == nil:
		return c.again(it, store.CodeSystem, systemMessage, err)
	}
	switch own.verdict {
	case data:
		return c.told(it, err, outcome{end: fail, code: dataCode(own.code), counted: FailedData,
			message: "the handler refused the event's data; the consumer's log says why"})
	case doubtful:
		return c.told(it, err, inDoubt)
	case delayed:
		return c.told(it, err, outcome{end: release, code: store.CodeSystem, counted: Deferred, delay: own.delay,
			message: "the handler asked for a later attempt"})
	case ambiguous:
		return c.doubt(ctx, it, err)
	default:
		return c.again(it, store.CodeSystem, systemMessage, err)
	}
}

// toldToEnd reports whether a handler's context ended by a stop or before its lease.
func toldToEnd(cause error) bool {
	return errors.Is(cause, errStopping) || errors.Is(cause, ErrClaimLost)
}

// cutOff is for a handler whose context ended, by a stop or before its lease:
// how far it came is not known.
func (c *Consumer) cutOff(it *item, err error) outcome {
	if errors.Is(err, ErrNotStarted) {
		return outcome{end: handBack}
	}
	return c.told(it, err, outcome{end: release, code: store.CodeAmbiguous, counted: FailedSystem,
		message: "the attempt was cut off", delay: c.opt.retry.Base})
}

const systemMessage = "the handler could not do its work; the consumer's log says why"

// doubt is for an attempt that ended without knowing whether it had its effect.
func (c *Consumer) doubt(ctx context.Context, it *item, err error) outcome {
	const message = "the effect of an attempt is in doubt"
	switch p := c.opt.ambiguity; p.kind {
	case holdKind:
		return c.told(it, err, inDoubt)
	case queryKind:
		if found, asked := c.ask(ctx, it); asked == nil && found == Present {
			return outcome{end: succeed, counted: Consumed}
		}
	}
	return c.again(it, store.CodeAmbiguous, message, err)
}

// again is a release with the policy's delay, or FAILED once the attempts are
// used up.
func (c *Consumer) again(it *item, code, message string, err error) outcome {
	n := it.ev.Attempt
	if c.opt.maxAttempts > 0 && n >= c.opt.maxAttempts {
		return c.told(it, err, outcome{end: fail, code: code, counted: FailedSystem,
			message: fmt.Sprintf("%s; it was attempt %d, the last one", message, n)})
	}
	return c.told(it, err, outcome{end: release, code: code, message: message, delay: c.opt.retry.delay(n), counted: FailedSystem})
}

// told logs why an attempt did not succeed.
func (c *Consumer) told(it *item, err error, o outcome) outcome {
	level, verb := slog.LevelWarn, "the event will be tried again"
	if o.end == fail {
		level, verb = slog.LevelError, "the event is FAILED"
	}
	c.log.Log(context.Background(), level, verb, "event_id", it.ev.ID, "topic", it.rec.Topic, "partition", it.rec.Number,
		"offset", it.rec.Offset, "attempt", it.ev.Attempt, "code", o.code, "delay", o.delay, "err", err)
	return o
}

var appCode = regexp.MustCompile(`^APP_[A-Z0-9_]{1,56}$`)

func dataCode(code string) string {
	if appCode.MatchString(code) {
		return code
	}
	return store.CodeData
}
