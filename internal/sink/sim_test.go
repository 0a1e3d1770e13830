package sink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// simulation is a Kafka cluster in memory that keeps the broker's rules for
// idempotent producers, for tests inside a synctest bubble. What goes wrong
// is decided by script, request by request.
type simulation struct {
	t *testing.T

	mu         sync.Mutex
	partitions int                    // of every topic
	missing    map[string]bool        // topics that do not exist
	hidden     map[string]error       // topics about which the metadata tell just this
	limits     map[string]int         // max.message.bytes, as read and as enforced
	unreadable bool                   // the limits cannot be read
	denied     bool                   // for scripts
	deaf       bool                   // nothing is heard of any broker
	down       error                  // what any request for metadata meets
	script     func(request) response // nil: everything is accepted
	poison     map[int64]bool         // ids of records that are refused by index with 87
	noIDs      error                  // what a request for a producer id meets
	noFenced   error                  // what one with a transactional id meets
	deafInits  int                    // requests for a producer id whose answers get lost
	inits      int                    // requests for a producer id
	onInit     func(record.Producer)  // sees whose they are
	fenced     map[string]*fencedID   // by transactional id
	logs       map[string][]int64     // ids by topic/partition
	first      map[int64]int          // when an id was first stored, as a count over all partitions
	states     map[string]map[int64]*producerState
	nextID     int64
	requests   int
	refreshes  int
	owed       []owedAnswer
	values     map[int64]string // by id, of whatever was sent
}

// owedAnswer is a request without an answer, of which a client may still be
// reading the bytes: they must stay as they are.
type owedAnswer struct {
	sealed *record.Sealed
	bytes  []byte
}

// fencedID is what the coordinator knows of a transactional id.
type fencedID struct {
	id      int64
	epoch   int16
	renewed bool // by the owner of the epoch before, who may ask again
}

// producerState is what a partition knows of a producer.
type producerState struct {
	epoch   int16
	next    int32
	batches map[int32]int // base sequence -> records, of those it would recognise
}

// request is one produce request as a script sees it.
type request struct {
	n         int // counts from 0
	topic     string
	partition int32
	ids       []int64
	producer  int64
	epoch     int16
	sequence  int32
	size      int
}

// response is what a script wants.
type response struct {
	err    error // the answer, or what keeps it away
	append bool  // with an err: the batch is stored all the same
	lost   bool  // err is no answer
	delay  time.Duration
	index  []int // record errors
	forget bool  // the partition's producer state is lost before the request
}

func newSimulation(t *testing.T, partitions int) *simulation {
	s := &simulation{
		t: t, partitions: partitions, missing: map[string]bool{}, hidden: map[string]error{}, limits: map[string]int{}, poison: map[int64]bool{},
		logs: map[string][]int64{}, first: map[int64]int{}, values: map[int64]string{}, states: map[string]map[int64]*producerState{},
		fenced: map[string]*fencedID{},
	}
	t.Cleanup(s.checkOwed)
	return s
}

func (s *simulation) checkOwed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.owed {
		if now, err := io.ReadAll(o.sealed.Reader()); err != nil || !bytes.Equal(now, o.bytes) {
			s.t.Errorf("the bytes of a request without an answer were changed (%v)", err)
		}
	}
}

func (s *simulation) produce(ctx context.Context, to *partition, sealed *record.Sealed, ready func() error) ([]int, bool, error) {
	if err := ready(); err != nil {
		return nil, false, err
	}
	topic, partition := to.topic.name, to.number
	req := s.parse(sealed)
	req.topic, req.partition = topic, partition
	s.mu.Lock()
	req.n = s.requests
	s.requests++
	script := s.script
	s.mu.Unlock()
	var res response
	if script != nil {
		res = script(req)
	}
	_ = sleep(ctx, res.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	place := fmt.Sprintf("%s/%d", topic, partition)
	if res.forget {
		delete(s.states, place)
	}
	if res.err != nil {
		if res.append {
			_, _, _ = s.accept(place, topic, req)
		}
		if res.lost {
			raw, _ := io.ReadAll(sealed.Reader())
			s.owed = append(s.owed, owedAnswer{sealed, raw})
		}
		return res.index, !res.lost, res.err
	}
	return s.accept(place, topic, req)
}

// accept does what a healthy broker does.
func (s *simulation) accept(place, topic string, req request) ([]int, bool, error) {
	if s.missing[topic] {
		return nil, true, kafka.UnknownTopicOrPartition
	}
	if limit := s.limits[topic]; limit > 0 && req.size > limit {
		return nil, true, kafka.MessageSizeTooLarge
	}
	var index []int
	for i, id := range req.ids {
		if s.poison[id] {
			index = append(index, i)
		}
	}
	if index != nil {
		return index, true, kafka.InvalidRecord
	}
	if req.producer < 0 {
		s.store(place, req.ids)
		return nil, true, nil
	}
	if s.states[place] == nil {
		s.states[place] = map[int64]*producerState{}
	}
	state := s.states[place][req.producer]
	if state == nil {
		state = &producerState{epoch: req.epoch, next: req.sequence, batches: map[int32]int{}} // any start is accepted
		s.states[place][req.producer] = state
	}
	if req.epoch < state.epoch {
		return nil, true, kafka.InvalidProducerEpoch
	}
	if req.epoch > state.epoch {
		if req.sequence != 0 {
			return nil, true, kafka.OutOfOrderSequenceNumber
		}
		*state = producerState{epoch: req.epoch, batches: map[int32]int{}}
	}
	if state.batches[req.sequence] == len(req.ids) {
		return nil, true, nil // taken for a batch it has, whatever is in it
	}
	if req.sequence != state.next {
		return nil, true, kafka.OutOfOrderSequenceNumber
	}
	state.batches[req.sequence] = len(req.ids)
	state.next += int32(len(req.ids))
	s.store(place, req.ids)
	return nil, true, nil
}

func (s *simulation) store(place string, ids []int64) {
	for _, id := range ids {
		if _, known := s.first[id]; !known {
			s.first[id] = len(s.first)
		}
	}
	s.logs[place] = append(s.logs[place], ids...)
}

// parse reads a batch with another client's code.
func (s *simulation) parse(sealed *record.Sealed) request {
	raw, err := io.ReadAll(sealed.Reader())
	if err != nil {
		s.t.Errorf("reading a batch: %v", err)
	}
	var b kmsg.RecordBatch
	if err := b.ReadFrom(raw[4:]); err != nil {
		s.t.Errorf("parsing a batch: %v", err)
	}
	records, err := kfake.BatchRecords(b)
	if err != nil {
		s.t.Errorf("parsing the records of a batch: %v", err)
	}
	req := request{producer: b.ProducerID, epoch: b.ProducerEpoch, sequence: b.FirstSequence, size: len(raw) - 4}
	if b.Attributes&0x10 != 0 {
		s.t.Error("a batch claims to be part of a transaction")
	}
	if len(records) == 0 {
		s.t.Error("a batch without a record was sent")
	}
	for _, r := range records {
		var headers []kgo.RecordHeader
		for _, h := range r.Headers {
			headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
		id := recordID(s.t, headers)
		req.ids = append(req.ids, id)
		s.set(func() { s.values[id] = string(r.Key) + "=" + string(r.Value) })
	}
	return req
}

func (s *simulation) initProducer(_ context.Context, transactionalID string, own record.Producer) (record.Producer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inits++
	if s.onInit != nil {
		s.onInit(own)
	}
	switch {
	case transactionalID != "" && s.noFenced != nil:
		return record.NoProducer, s.noFenced
	case s.noIDs != nil:
		return record.NoProducer, s.noIDs
	}
	p, err := s.grant(transactionalID, own)
	if err == nil && s.deafInits > 0 {
		s.deafInits--
		return record.NoProducer, io.EOF
	}
	return p, err
}

// grant does what a healthy coordinator does.
func (s *simulation) grant(transactionalID string, own record.Producer) (record.Producer, error) {
	f := s.fenced[transactionalID]
	switch {
	case f == nil || transactionalID == "":
		s.nextID++
		f = &fencedID{id: s.nextID}
		s.fenced[transactionalID] = f
	case own.ID < 0:
		f.epoch++
		f.renewed = false
	case own.ID == f.id && own.Epoch == f.epoch:
		f.epoch++
		f.renewed = true
	case own.ID == f.id && own.Epoch == f.epoch-1 && f.renewed:
	default:
		return record.NoProducer, kafka.ProducerFenced
	}
	return record.Producer{ID: f.id, Epoch: f.epoch}, nil
}

func (s *simulation) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshes++
}

func (s *simulation) topics(_ context.Context, names []string) (map[string]topicState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	states := map[string]topicState{}
	for _, name := range names {
		states[name] = topicState{partitions: s.partitions}
		if s.missing[name] {
			states[name] = topicState{err: kafka.UnknownTopicOrPartition}
		}
		if err := s.hidden[name]; err != nil {
			states[name] = topicState{err: err}
		}
	}
	return states, nil
}

func (s *simulation) maxBytes(_ context.Context, names []string) (map[string]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := map[string]int{}
	for _, name := range names {
		if n := s.limits[name]; n > 0 && !s.unreadable {
			limits[name] = n
		}
	}
	return limits, nil
}

func (s *simulation) lastHeard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf {
		return time.Time{}
	}
	return time.Now()
}

// set changes the simulation under its lock.
func (s *simulation) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// sent is the number of produce requests so far.
func (s *simulation) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// pass lets d pass on the bubble's clock.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	if err := sleep(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// stored returns the ids in a partition's log.
func (s *simulation) stored(topic string, partition int) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.logs[fmt.Sprintf("%s/%d", topic, partition)])
}

// startSimulated runs a publisher on s until the bubble's test ends.
func startSimulated(t *testing.T, s *simulation, out Outcomes, change func(*Config, *Deps)) *Publisher {
	t.Helper()
	cfg, deps := testConfig("simulated"), testDeps(t, out)
	if change != nil {
		change(&cfg, &deps)
	}
	p, err := assemble(cfg, deps, s, s, func() {})
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	return p
}
