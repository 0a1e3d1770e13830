package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// sender is what the workers share. Safe for concurrent use.
type sender struct {
	cfg        *Config
	broker     broker
	queues     *queues
	identities *identities
	troubles   *troubles
	outcomes   Outcomes
	permit     func(context.Context) error
	metrics    *Metrics
	log        *slog.Logger
	pulse      *pulse.Board
	heard      func() bool     // a broker has sent something lately
	requests   chan struct{}   // a slot per produce request in flight
	retries    chan struct{}   // and one more for batches that have failed: half of the slots are for others
	noWait     context.Context // has ended: whoever is asked with it must not wait
}

var errNotPermitted = errors.New("the permit to publish ran out while a connection was made")

func newSender(cfg *Config, deps Deps, b broker, q *queues, t *troubles, heard func() bool) *sender {
	noWait, end := context.WithCancel(context.Background())
	end()
	return &sender{
		cfg: cfg, broker: b, queues: q, troubles: t,
		identities: newIdentities(cfg, deps, b),
		outcomes:   deps.Outcomes, permit: deps.Permit, metrics: deps.Metrics, log: deps.Log, pulse: deps.Pulse, heard: heard,
		requests: make(chan struct{}, cfg.MaxRequests), retries: make(chan struct{}, max(1, cfg.MaxRequests/2)), noWait: noWait,
	}
}

// ready reports whether a request may be written at this moment (I9). Between
// the permit and that moment a connection may have had to be made.
func (s *sender) ready() error {
	if s.permit(s.noWait) != nil {
		return errNotPermitted
	}
	return nil
}

// worker publishes the batches of one partition, one after the other.
type worker struct {
	*sender
	part *partition
	log  *slog.Logger

	// producer is the identity with the sequence number of the next new
	// record. Invariant: the broker has acknowledged, under this id and epoch,
	// exactly the numbers below it.
	producer grant
	// renew: the identity must not be used for another batch.
	renew bool
	// troubled: a trouble of this partition has been reported and not cleared.
	troubled bool

	backoff *backoff.ExponentialBackOff
	todo    []*record.Batch // parts of a refused batch, the first one last
	acked   prometheus.Counter
	beat    *pulse.Beat
}

func newWorker(s *sender, part *partition) *worker {
	return &worker{
		sender: s, part: part,
		log:      s.log.With("topic", part.topic.name, "partition", part.number),
		producer: nobody,
		renew:    true,
		backoff:  newBackoff(s.cfg.BackoffMin, s.cfg.BackoffMax),
		acked:    s.metrics.topicCounter(part.topic.name),
	}
}

// run works until ctx ends or leadership is gone. After each batch it takes
// what has gathered meanwhile, which is what makes batches under load.
func (w *worker) run(ctx context.Context) error {
	w.beat = w.pulse.Start("partition worker")
	defer w.beat.End()
	for {
		w.beat.Rest()
		select {
		case <-w.part.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		w.beat.Work()
		if w.cfg.Linger > 0 {
			if err := sleep(ctx, w.cfg.Linger); err != nil {
				return err
			}
		}
		for b := w.queues.take(w.part); b != nil; b = w.queues.take(w.part) {
			if err := w.settle(ctx, b); err != nil {
				return err
			}
		}
	}
}

// settle publishes b, or whatever of it can be published, in order.
func (w *worker) settle(ctx context.Context, b *record.Batch) error {
	w.todo = append(w.todo[:0], b)
	for len(w.todo) > 0 {
		last := len(w.todo) - 1
		d := delivery{batch: w.todo[last]}
		w.todo = w.todo[:last]
		v, err := w.deliver(ctx, &d)
		if err != nil {
			return err
		}
		w.finish(&d, v)
	}
	return nil
}

// delivery is the state of one batch on its way into the log.
type delivery struct {
	batch     *record.Batch
	since     time.Time      // since when the broker owes an answer for it
	sealed    *record.Sealed // nil: not sealed under the present identity
	offenders []int          // records that the last answer named
	tries     int            // requests sent
	failures  int            // attempts that the broker did not decide about
	// inDoubt: an attempt under the present identity may have put the batch
	// into the log without the broker saying so.
	inDoubt bool
	// held: the client may still be reading the batch's bytes, so that they
	// must not be written to again.
	held bool
	// probe: its events have been reported as held, and its answer is waited
	// for to see that the partition is back.
	probe bool
}

// deliver sends a batch until the broker has decided about it. The error is
// ctx's or Permit's: the batch is then undecided.
func (w *worker) deliver(ctx context.Context, d *delivery) (verdict, error) {
	w.backoff.Reset()
	d.since = time.Now()
	for {
		v, err := w.attempt(ctx, d)
		if err != nil {
			return v, err
		}
		if v.class != classBroker {
			w.recovered(d)
			return v, nil
		}
		w.silence(d)
		w.beat.Rest()
		if err := sleep(ctx, w.backoff.NextBackOff()); err != nil {
			return v, err
		}
	}
}

// attempt sends a batch once, unless it is clear that it must not be sent.
func (w *worker) attempt(ctx context.Context, d *delivery) (verdict, error) {
	w.beat.Work()
	if f, refused := w.queues.refusalOf(w.part.topic); refused {
		return verdict{class: classTopic, code: f.Code}, nil
	}
	if d.sealed == nil {
		v, err := w.seal(ctx, d)
		if endsSession(err) {
			return v, err
		}
		if err != nil {
			return w.failed(ctx, d, v, err)
		}
	}
	if d.tries == 0 && w.tooLarge(d.sealed.Size()) {
		return classify(kafka.MessageSizeTooLarge), nil
	}
	release, err := w.admit(ctx, d.failures > 0)
	if err != nil {
		return verdict{}, err
	}
	start := time.Now()
	offenders, answered, err := w.broker.produce(context.WithoutCancel(ctx), w.part, d.sealed, w.ready)
	release()
	w.metrics.attempted(time.Since(start), answered)
	d.tries++
	d.held = d.held || !answered
	d.offenders = offenders
	v := w.judge(err)
	if v.class == classDone {
		return v, nil
	}
	d.inDoubt = d.inDoubt || v.appended
	return w.failed(ctx, d, v, err)
}

// admit waits for a request slot and then for the permit to publish. Without
// an error the slot is taken, until release. Batches that have failed get half
// of the slots at most: a broker that says nothing keeps each for long.
func (w *worker) admit(ctx context.Context, again bool) (release func(), err error) {
	w.beat.Rest() // the others and the lease, who are waited for, have beats of their own
	defer w.beat.Work()
	slots := []chan struct{}{w.requests}
	if again {
		slots = []chan struct{}{w.retries, w.requests}
	}
	taken := 0
	release = func() {
		for _, slot := range slots[:taken] {
			<-slot
		}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			taken++
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
	if err := w.permit(ctx); err != nil {
		release()
		return nil, fmt.Errorf("asking for the permit to publish: %w", err)
	}
	return release, nil
}

// tooLarge reports whether the topic is known not to accept so many bytes.
// When that was not read just now, the broker is asked by sending the batch.
func (w *worker) tooLarge(size int) bool {
	maxBytes, fresh := w.queues.sizeLimit(w.part.topic)
	return fresh && maxBytes > 0 && size > maxBytes
}

// judge says what the end of a request means. A newer epoch is somebody else's
// if the identity is a fenced one: in this partition nobody else is of ours.
func (w *worker) judge(err error) verdict {
	if w.producer.fenced && isSuperseded(err) {
		return verdict{class: classFence}
	}
	return classify(err)
}

// seal finishes the batch under the present identity, after getting a new one
// if that is called for. A batch that has been sent keeps its identity until
// the broker has decided about it, or does not accept it.
func (w *worker) seal(ctx context.Context, d *delivery) (verdict, error) {
	if w.renew || d.tries == 0 && w.identities.moved(&w.producer) {
		next, err := w.identities.next(ctx, &w.producer, w.beat)
		w.beat.Work()
		if err != nil {
			v := classify(err)
			v.class = classBroker // whatever it is, no record is to blame
			return v, err
		}
		w.producer, w.renew = next, false
		d.inDoubt = false // as far as this identity is concerned
	}
	sealed, err := d.batch.Seal(w.cfg.Compression, w.producer.Producer)
	if err != nil {
		return verdict{class: classBroker, blocked: checkConnect}, err
	}
	d.sealed = sealed
	return verdict{}, nil
}

// failed takes note of an attempt that did not succeed.
func (w *worker) failed(ctx context.Context, d *delivery, v verdict, err error) (verdict, error) {
	if ctx.Err() != nil {
		return v, ctx.Err() // the connections were closed under the request
	}
	w.metrics.errors.WithLabelValues(v.class.String()).Inc()
	if v.class == classFence {
		w.beat.Rest() // the lease, which is asked, has a beat of its own
		return v, fmt.Errorf("publishing to %s: %w", w.part, w.identities.superseded(ctx, err))
	}
	if v.class != classBroker {
		return v, nil // an answer
	}
	if d.failures++; d.failures == 1 {
		w.queues.failing(w.part)
		w.log.Warn("publishing failed: trying again until the broker answers", "err", safe(err))
	}
	if v.renew {
		w.renew, d.sealed = true, nil
		w.log.Warn("the broker does not accept the producer's sequence: taking a new producer id or epoch", "err", safe(err))
	}
	if v.reseal {
		d.sealed = nil
	}
	if v.refresh {
		w.broker.refresh()
		w.queues.nudge()
	}
	if v.blocked != "" && d.failures >= v.blockedAfter && !d.probe {
		w.troubled = true
		w.troubles.set(w.subject(), batchTrouble(v, w.part.topic.name, err))
	}
	return v, nil
}

func (w *worker) subject() string { return "partition " + w.part.String() }

// recovered takes note of an answer after failures.
func (w *worker) recovered(d *delivery) {
	w.untrouble()
	if d.failures > 0 {
		w.log.Info("the broker has answered", "requests", d.tries)
	}
}

func (w *worker) untrouble() {
	if w.troubled {
		w.troubled = false
		w.troubles.clear(w.subject())
	}
}

// finish deals with a batch about which the broker has decided.
func (w *worker) finish(d *delivery, v verdict) {
	if v.class == classDone {
		w.advance(d.batch.Len())
	} else if d.inDoubt {
		// The refused batch has not used its sequence numbers, so the next one
		// takes them. But had an earlier attempt put it into the log unnoticed,
		// the broker would take the next one for that, acknowledge it and not
		// store it. Only a new producer id or epoch is safe then.
		w.renew = true
		w.log.Info("a batch was refused that may be in the log already: taking a new producer id or epoch")
	}
	switch {
	case d.probe:
		w.finishProbe(d, v)
	case v.class == classDone:
		w.count(d.batch.Len())
		w.outcomes.Acked(slices.Clone(d.batch.Refs()))
	default:
		w.refuse(d, v)
	}
	if d.held {
		w.queues.decided(w.part, nil)
	} else {
		w.queues.decided(w.part, d.batch)
	}
}

// count counts records that are in the log.
func (w *worker) count(records int) {
	w.acked.Add(float64(records))
	w.metrics.acked.Add(float64(records))
}

// advance moves the sequence number on; it wraps to 0 after 2^31-1.
func (w *worker) advance(n int) {
	if w.producer.ID >= 0 {
		w.producer.Sequence = int32((int64(w.producer.Sequence) + int64(n)) & 0x7fffffff)
	}
}

// sleep waits for d, or for ctx to end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
