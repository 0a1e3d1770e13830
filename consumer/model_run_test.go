package consumer

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// modelStray is how many records without a row a program has at most: with
// more, a consumer rightly takes it for another database.
const modelStray = 12

// runModel runs a program to its end, in a bubble, and returns what must not
// have been.
func runModel(p modelProgram, log func(string, ...any)) []modelViolation {
	w := newModelWorld(p)
	w.log = log
	for range p.Setup.Processes {
		w.addProcess()
	}
	sweeping := time.NewTicker(10 * time.Second)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-sweeping.C:
				w.sweep()
			case <-over:
				return
			}
		}
	}()
	for _, s := range p.Steps {
		w.trace("step %s", s)
		w.do(s)
		elapse(time.Duration(s.Wait) * time.Microsecond)
		if len(w.violations()) > 0 {
			break
		}
	}
	if len(w.violations()) == 0 {
		w.settle()
	}
	close(over)
	w.stopAll()
	elapse(3 * time.Minute) // for what is on its way, and handlers that do not hear
	return w.violations()
}

// do does a step.
func (w *modelWorld) do(s modelStep) {
	triple := time.Duration(s.B) * 3 * time.Second
	switch s.Do {
	case insertRows:
		w.insert(s.A, 1+s.B%4, modelScripts[s.C%len(modelScripts)], 0, 0)
	case insertLate:
		w.insert(s.A, 1, nil, time.Duration(s.B)*10*time.Second, time.Duration(s.B*(s.C%2))*2*time.Second)
	case appendAgain:
		w.duplicate(s.A)
	case appendStray:
		w.stray(s.A)
	case appendGarbage:
		w.garbage(s.A)
	case appendFailed:
		w.unpublished(s.A)
	case lockRow:
		w.lock(s.A, triple)
	case replayRow:
		w.replay(s.A)
	case replaySent:
		w.replaySent(s.A)
	case waiveRow:
		w.skip(s.A)
	case deleteRow:
		w.remove(s.A)
	case retryRecord:
		w.askRetry(s.A)
	case moveOffset:
		w.moveOffset(s.A, s.B)
	case appendElsewhere:
		w.elsewhere(s.A)
	case retryElsewhere:
		w.retryElsewhere(s.A)
	case rebalance, killProcess, stopProcess, addProcess, freezeProcess:
		w.disturb(s)
	default:
		w.disable(s.Do, time.Now().Add(triple))
	}
}

// disturb does something to the processes.
func (w *modelWorld) disturb(s modelStep) {
	switch s.Do {
	case rebalance:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.prepare()
		w.complete()
	case addProcess:
		w.addProcess()
	case freezeProcess:
		w.mu.Lock()
		running := w.running
		w.mu.Unlock()
		if len(running) > 0 {
			running[s.A%len(running)].freeze(time.Duration(s.B) * 3 * time.Second)
		}
	default:
		p := w.takeProcess(s.A)
		if p == nil {
			return
		}
		if s.Do == killProcess {
			p.kill()
		} else {
			p.end()
		}
		time.AfterFunc(time.Duration(s.B)*time.Second, w.addProcess)
	}
}

// end stops a process in order, and checks that it is soon over.
func (p *modelProcess) end() {
	p.w.trace("%s is to stop", p.owner)
	p.stop()
	go func() {
		select {
		case <-p.gone:
		case <-time.After(modelStop):
			p.w.mu.Lock()
			defer p.w.mu.Unlock()
			if !p.over && time.Since(p.frozen) > modelStop {
				p.w.violated("stop", "%s does not stop", p.owner)
			}
		}
	}()
}

// modelStop is how long a stop may take: the drain, the grace, and the last
// commits.
const modelStop = 40 * time.Second

// disable lets something not work until then.
func (w *modelWorld) disable(what modelAction, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch what {
	case refuseAll:
		w.trouble.refused = until
	case silenceAll:
		w.trouble.silent = until
	case loseAnswers:
		w.trouble.lossy = until
	case lockTable:
		w.trouble.table = until
	case silenceKafka:
		w.trouble.kafka = until
	}
}

// moveOffset ends all processes, moves an offset, and starts others.
func (w *modelWorld) moveOffset(part, eighths int) {
	n := 0
	for p := w.takeProcess(0); p != nil; p = w.takeProcess(0) {
		p.kill()
		n++
	}
	elapse(modelSession + time.Second)
	w.reset(part, min(eighths, 8))
	for range n {
		w.addProcess()
	}
}

// settle takes all outages and failures away, and waits until nothing is left
// to do.
func (w *modelWorld) settle() {
	w.mend()
	w.addProcess()
	for deadline := time.Now().Add(time.Hour); !w.quiet() && time.Now().Before(deadline) && len(w.violations()) == 0; {
		elapse(3 * time.Second)
		w.requeueStranded()
	}
	if len(w.violations()) == 0 {
		w.atEnd()
	}
	if len(w.violations()) == 0 {
		elapse(time.Minute) // for answers that come late
		w.nothingLeft()
	}
}

func (w *modelWorld) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble, w.mended = modelTrouble{}, true
	for _, row := range w.table.rows {
		row.locked = false
	}
	w.trace("all is mended")
}

// requeueStranded is what a person does about rows whose records were passed
// over by an offset that was moved, once all records are done.
func (w *modelWorld) requeueStranded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.group.reset {
		return
	}
	for part := range w.logs {
		if w.group.committed[part] != w.logs[part].end {
			return
		}
	}
	for _, row := range w.open() {
		switch s := w.stories[row.event]; {
		case w.setup.Receipts:
			w.append(s)
		case row.status == outbox.Sent:
			w.requeue(s, row)
		}
	}
}

// nothingLeft checks that processes with nothing to do hold nothing.
func (w *modelWorld) nothingLeft() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.running {
		p.c.tenures.mu.Lock()
		if n, busy := len(p.c.tenures.all), len(p.c.tenures.busy); n+busy > 0 {
			w.violated("end", "%s still holds %d claims, %d handlers", p.owner, n, busy)
		}
		p.c.tenures.mu.Unlock()
		for _, h := range p.c.Health().Partitions {
			if h.Reason != "" || h.Lag() > 0 {
				w.violated("end", "%s stands at %+v", p.owner, h)
			}
		}
	}
}

// stopAll ends all processes, and waits for what is left of others.
func (w *modelWorld) stopAll() {
	w.mu.Lock()
	w.closed = true
	running := w.running
	w.mu.Unlock()
	for _, p := range running {
		p.end()
	}
	for _, p := range w.all {
		<-p.gone
		if p.err != nil {
			w.note("stop", "%s ended with: %v", p.owner, p.err)
		}
	}
}

func (w *modelWorld) note(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violated(rule, format, args...)
}
