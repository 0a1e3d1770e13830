package consumer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/modeltest"
)

// modelAbandonLimit and modelRetry are settings of all consumers of the model.
const modelAbandonLimit = 4

var modelRetry = RetryPolicy{Base: time.Second, Max: 8 * time.Second}

func modelRetryDelay(attempt int) time.Duration { return modelRetry.delay(attempt) }

// modelPolicy is an ambiguity policy.
type modelPolicy uint8

const (
	policyRepeat modelPolicy = iota
	policyHold
	policyQuery
)

// modelSetup is how the consumers of a program are set up.
type modelSetup struct {
	Receipts                                     bool
	Processes, Concurrency, Window, Batch, Lease int // Lease in seconds
	MaxAttempts                                  int
	Timeout, Drain                               int // of handlers, in seconds
	Policy                                       modelPolicy
}

func (s modelSetup) lease() time.Duration { return time.Duration(s.Lease) * time.Second }

func (s modelSetup) options(p *modelProcess) []Option {
	policy := map[modelPolicy]Policy{policyRepeat: Repeat, policyHold: Hold, policyQuery: Query(func(_ context.Context, ev *Event) (Found, error) {
		return p.w.asked(ev)
	})}[s.Policy]
	opts := []Option{
		Lease(s.lease()), RetryDelay(modelRetry), MaxAttempts(s.MaxAttempts), AbandonLimit(modelAbandonLimit), Concurrency(s.Concurrency),
		Window(s.Window), ClaimBatch(s.Batch), HandlerTimeout(time.Duration(s.Timeout) * time.Second), Ambiguity(policy), Drain(time.Duration(s.Drain) * time.Second),
	}
	if s.Receipts {
		opts = append(opts, Receipts("mail"), Horizon(24*time.Hour))
	}
	return opts
}

// modelProgram is what happens to a group and around it.
type modelProgram struct {
	Seed  uint64 // of latencies and everything else that is left to chance
	Setup modelSetup
	Steps []modelStep
}

// modelStep is one thing that happens. What the numbers mean depends on what is
// done.
type modelStep = modeltest.Step[modelAction]

func (p modelProgram) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "modelProgram{Seed: %d, Setup: %#v, Steps: []modelStep{\n", p.Seed, p.Setup)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "\t%s\n", s)
	}
	b.WriteString("}}")
	return b.String()
}

// modelAction is a kind of step.
type modelAction uint8

const (
	insertRows      modelAction = iota // A: key, B: rows and how late they are SENT, C: what the handler of the last one does
	insertLate                         // A: key, B: ten seconds until SENT, C: odd: its row is seen late
	appendAgain                        // A: which event
	appendStray                        // A: key
	appendGarbage                      // A: partition and what is wrong
	appendFailed                       // A: key
	rebalance                          //
	killProcess                        // A: which one; B: seconds until another one is started
	stopProcess                        // the same in order
	addProcess                         //
	freezeProcess                      // A: which one, B: how many times three seconds
	refuseAll                          // B: how many times three seconds the database is down
	silenceAll                         // the same, without a word
	loseAnswers                        // the same: only answers are lost
	lockTable                          // B: how many times three seconds somebody has it locked
	lockRow                            // A: which row, B: how many times three seconds
	silenceKafka                       // B: how many times three seconds
	replayRow                          // A: which FAILED row
	replaySent                         // A: which SENT row
	waiveRow                           // A: which FAILED row
	deleteRow                          // A: which row
	retryRecord                        // A: which record of the quarantine
	moveOffset                         // A: partition, B: to how many eighths of the log, with nobody in the group
	appendElsewhere                    // A: which event
	retryElsewhere                     // A: which event
	modelActions
)

var modelActionNames = [modelActions]string{
	"insertRows", "insertLate", "appendAgain", "appendStray", "appendGarbage", "appendFailed", "rebalance", "killProcess", "stopProcess",
	"addProcess", "freezeProcess", "refuseAll", "silenceAll", "loseAnswers", "lockTable", "lockRow", "silenceKafka", "replayRow", "replaySent",
	"waiveRow", "deleteRow", "retryRecord", "moveOffset", "appendElsewhere", "retryElsewhere",
}

func (a modelAction) String() string { return modelActionNames[a] }
