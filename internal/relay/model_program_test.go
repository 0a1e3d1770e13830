package relay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/modeltest"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// The aggregate types of the model; each is a topic, too.
var modelTypes = []string{"order", "stock", "mail"}

// modelBlocks tells which types hold what comes after a failed event.
func modelBlocks(typ string) bool { return typ != "mail" }

// modelPolicy gives up on a record after the fourth attempt, on a topic never.
type modelPolicy struct{}

func (modelPolicy) Of(typ []byte) (kind uint8, block bool) {
	if modelBlocks(string(typ)) {
		return 0, true
	}
	return 1, false
}

func (modelPolicy) Next(_ uint8, attempts int32, f event.Failure) (delay time.Duration, failed bool) {
	if f.Permanent || f.Class == event.ClassRecord && attempts+1 >= 4 {
		return 0, true
	}
	return time.Second << min(attempts, 2), false
}

// modelProgram is what happens to a relay and around it.
type modelProgram struct {
	Seed  uint64 // of latencies, pages and everything else that is left to chance
	Steps []modelStep
}

// modelStep is one thing that happens. What the numbers mean depends on what is
// done.
type modelStep = modeltest.Step[modelAction]

func (p modelProgram) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "modelProgram{Seed: %d, Steps: []modelStep{\n", p.Seed)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "\t%s\n", s)
	}
	b.WriteString("}}")
	return b.String()
}

// modelAction is a kind of step.
type modelAction uint8

const (
	insertRows    modelAction = iota // A: first aggregate, B: rows and how they are spread, C: what is wrong with one of them
	insertDelayed                    // A: aggregate, B: seconds
	replay                           // A: which FAILED row
	replayWaived                     // A: which waived row
	replaySent                       // A: which SENT row
	skipByCommand                    // A: which FAILED row
	skipInPSQL                       // A: which FAILED row
	deleteRow                        // A: which row
	deleteParked                     // A: which parked row
	hastenHeld                       // A: which held row
	hastenAny                        // A: which READY row
	lockRow                          // A: which row, B: how many seconds
	lockParked                       // A: which parked row, B: how many seconds
	denyTopic                        // A: topic
	allowTopics                      //
	silencePart                      // A: partition
	answerAll                        // all partitions answer again
	silenceAll                       // the cluster is down
	mendRecords                      // nothing is wrong with any record any more
	crash                            // the process is killed and started again
	restart                          // the process is stopped in order and started again
	depose                           // another instance takes the epoch for a moment
	cutStream                        // the replication connection breaks
	stallLease                       // A: for how many half seconds renewals get no answer
	moveSlot                         // the slot is moved to the end of the WAL while the relay is down
	modelActions
)

var modelActionNames = [modelActions]string{
	"insertRows", "insertDelayed", "replay", "replayWaived", "replaySent", "skipByCommand", "skipInPSQL", "deleteRow", "deleteParked",
	"hastenHeld", "hastenAny", "lockRow", "lockParked", "denyTopic", "allowTopics", "silencePart", "answerAll", "silenceAll", "mendRecords",
	"crash", "restart", "depose", "cutStream", "stallLease", "moveSlot",
}

func (a modelAction) String() string { return modelActionNames[a] }

// modelRun is a program under way: one process, which may be followed by
// others.
type modelRun struct {
	w       *modelWorld
	leaders *modelLeadership
	relay   *Relay
	stop    func() error
}

// runModel runs a program to its end, in a bubble, and returns what must not
// have been.
func runModel(p modelProgram, log func(string, ...any)) []modelViolation {
	r := &modelRun{w: newModelWorld(p.Seed)}
	r.w.log = log
	r.start()
	for _, s := range p.Steps {
		r.w.trace("step %s", s)
		r.do(s)
		elapse(time.Duration(s.Wait) * time.Microsecond)
		if len(r.w.violations()) > 0 {
			break
		}
	}
	if len(r.w.violations()) == 0 {
		r.settle()
	}
	if err := r.stop(); err != nil {
		r.w.note("end", "the relay ended with: %v", err)
	}
	if len(r.w.violations()) == 0 {
		r.w.atEnd()
	}
	return r.w.violations()
}

func (w *modelWorld) violations() []modelViolation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

func (w *modelWorld) note(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violated(rule, format, args...)
}

// start starts a process.
func (r *modelRun) start() {
	r.leaders = &modelLeadership{w: r.w}
	cfg := Config{
		RequeuePrefix: requeuePrefix, ProbePrefix: probePrefix, InflightEvents: 12, InflightBytes: 400, DrainTimeout: 25 * time.Second,
		ReconcileEvery: time.Minute, Tick: time.Second, SweepEvery: time.Minute, HeldRetry: 15 * time.Second,
		CheckEvery: 30 * time.Second, ProbeEvery: 30 * time.Second,
	}
	r.relay = New(cfg, r.leaders, r.open, modelPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.stop = start(r.relay)
}

func (r *modelRun) open(_ context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
	term, w := tenure.(*modelTenure), r.w
	source, rows := newModelSource(w, term), newModelRows(w, term)
	w.mu.Lock()
	w.sources = []*modelSource{source}
	w.mu.Unlock()
	return &Parts{
		Source: source, Publisher: newModelPublisher(w, term, in.Publisher(), 20*time.Second), Recorder: newModelRecorder(w, term, in.Recorder()), Rows: rows,
		Scheduler: newModelScheduler(w, term),
		Decoder:   decoder.New(decoder.Config{Table: waltest.DefaultTable}),
		OpenPass:  rows.openPass(),
		Check:     func(context.Context) error { return nil },
		XMax:      w.xmax(),
		Close:     func() {},
	}, nil
}

func (w *modelWorld) xmax() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.xid
}

// kill ends the process at once; between being is done to the world before
// the next one starts.
func (r *modelRun) kill(between func()) {
	r.leaders.kill()
	if err := r.stop(); err != nil {
		r.w.note("end", "the relay ended with: %v", err)
	}
	between()
	r.start()
}

// do does a step.
func (r *modelRun) do(s modelStep) {
	w := r.w
	seconds := time.Duration(s.B) * time.Second
	switch s.Do {
	case insertRows:
		hidden := time.Duration(0)
		if s.C >= 10 {
			hidden = time.Duration(s.B) * 30 * time.Millisecond
		}
		w.insert(modelRowsOf(s), hidden)
	case insertDelayed:
		typ, agg := modelAggregate(s.A)
		w.insert([]modelInsert{{typ: typ, agg: agg, delay: seconds + time.Millisecond}}, 0)
	case replay:
		w.replay(s.A)
	case replayWaived:
		w.replayWaived(s.A)
	case replaySent:
		w.replaySent(s.A)
	case skipByCommand, skipInPSQL:
		w.skip(s.A, s.Do == skipByCommand)
	case deleteRow:
		w.remove(s.A, func(*modelRow) bool { return true })
	case deleteParked:
		w.remove(s.A, (*modelRow).placed)
	case hastenHeld:
		w.hasten(s.A, (*modelRow).held)
	case hastenAny:
		w.hasten(s.A, func(row *modelRow) bool { return row.status == modelReady })
	case lockRow:
		w.lock(s.A, func(*modelRow) bool { return true }, seconds)
	case lockParked:
		w.lock(s.A, (*modelRow).placed, seconds)
	case crash:
		r.kill(func() {})
	case moveSlot:
		r.kill(w.moveSlot)
	case restart:
		if err := r.stop(); err != nil {
			w.note("end", "the relay ended with: %v", err)
		}
		r.start()
	case depose:
		r.leaders.depose()
	case cutStream:
		w.cut()
	case stallLease:
		r.leaders.stall(time.Duration(s.A) * 500 * time.Millisecond)
	default:
		w.disturb(s)
	}
}

// disturb does something to the cluster.
func (w *modelWorld) disturb(s modelStep) {
	w.mu.Lock()
	defer w.mu.Unlock()
	parts := modelAllPartitions()
	switch s.Do {
	case denyTopic:
		w.kafka.denied[modelTypes[s.A%len(modelTypes)]] = true
	case allowTopics:
		clear(w.kafka.denied)
	case silencePart:
		w.kafka.silent[parts[s.A%len(parts)]] = true
	case answerAll:
		clear(w.kafka.silent)
	case silenceAll:
		for _, p := range parts {
			w.kafka.silent[p] = true
		}
	case mendRecords:
		clear(w.kafka.faults)
	}
}

// cut breaks the replication connection.
func (w *modelWorld) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		close(s.cut)
	}
	w.sources = nil
}

// modelAggregate is one of six aggregates: two of each type, but that the
// first one is drawn as often as all others.
func modelAggregate(n int) (typ, agg string) {
	n = max(0, n-6)
	return modelTypes[n%len(modelTypes)], string(rune('a' + n/len(modelTypes)))
}

// modelRowsOf are the rows of a transaction: one to four, of one aggregate or
// of neighbouring ones. One or two of them may be faulty.
func modelRowsOf(s modelStep) []modelInsert {
	faults := []modelFault{{}, {permanent: true, times: -1}, {times: 1}, {times: 2}, {times: -1}, {permanent: true, times: 1}}
	rows := make([]modelInsert, 1+s.B%4)
	for i := range rows {
		rows[i].typ, rows[i].agg = modelAggregate(s.A + i*(s.B/4))
		rows[i].priority = int16(i % 2)
	}
	switch last := len(rows) - 1; {
	case s.C < len(faults):
		rows[s.B%len(rows)].fault = faults[s.C]
	case s.C == len(faults): // the broker may find the later one first
		rows[0].fault, rows[last].fault = faults[2], faults[5]
	case s.C == len(faults)+1:
		rows[0].fault, rows[last].fault = faults[1], faults[2]
	}
	return rows
}

// settled tells that all rows are at their end.
func (w *modelWorld) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.standing()) == 0
}

// settle takes all outages and failures away, deals with what is FAILED, and
// waits until nothing waits any more.
func (r *modelRun) settle() {
	w := r.w
	random := w.random("end")
	w.mend()
	w.unlockAll()
	for deadline := time.Now().Add(15 * time.Minute); !w.settled() && time.Now().Before(deadline); {
		for range 3 {
			if random.chance(70) {
				w.replay(random.upTo(100))
			} else {
				w.skip(random.upTo(100), random.chance(50))
			}
		}
		elapse(5 * time.Second)
	}
	elapse(2*time.Minute + 10*time.Second) // two sweeps
	if n := testutil.ToFloat64(r.relay.m.blocked); n != 0 && w.settled() {
		w.note("end", "%v aggregates count as blocked, but nothing is parked", n)
	}
}
