package sink

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// doubting is a cluster that loses one answer to a produce request.
type doubting struct {
	*cluster
	once sync.Once
	// meet is what happens between the append and the next attempt.
	meet func()
	arm  func(*record.Sealed) bool // nil: never
}

func (d *doubting) produce(ctx context.Context, to *partition, batch *record.Sealed, ready func() error) (offenders []int, answered bool, err error) {
	offenders, answered, err = d.cluster.produce(ctx, to, batch, ready)
	if d.arm != nil && err == nil && d.arm(batch) {
		d.once.Do(func() {
			d.meet()
			offenders, answered, err = nil, false, io.EOF
		})
	}
	return offenders, answered, err
}

// leadReal runs a publisher with a fenced identity on a real broker, which is
// handed to change before anything is sent.
func leadReal(t *testing.T, addr, transactionalID string, every time.Duration, change func(*Publisher, *doubting)) *leader {
	t.Helper()
	l := &leader{out: newRecorder(), done: make(chan error, 1)}
	cfg := testConfig(addr)
	cfg.Identity, cfg.TransactionalID = Fenced, transactionalID
	b := &doubting{cluster: newCluster(&cfg)}
	p, err := assemble(cfg, testDeps(t, l.out), b, b.cluster, b.close)
	if err != nil {
		t.Fatal(err)
	}
	l.Publisher = p
	p.sender.identities.renewEvery = every
	if change != nil {
		change(p, b)
	}
	l.start(t)
	return l
}

// A leader that another one has replaced is refused by a real broker where the
// new one has written, and nothing of it is stored there any more. Where it has
// not written yet, what the old one sends comes before, and does no harm.
func TestRealBrokerFencesOldLeader(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	id, written, untouched := kafkatest.Name(t), kafkatest.Name(t), kafkatest.Name(t)
	kafkatest.Create(t, addr, written, 1, nil)
	kafkatest.Create(t, addr, untouched, 1, nil)
	old := leadReal(t, addr, id, renewEvery, nil)
	old.send(to(written, 1), to(untouched, 101))
	old.out.settled(t, 2)
	next := leadReal(t, addr, id, renewEvery, nil)
	next.send(to(written, 2))
	next.out.settled(t, 1)
	old.send(to(untouched, 102))
	old.out.settled(t, 3)

	old.send(to(written, 3))
	err := old.ended(t)
	if b := fault.AsBlocked(err); b == nil || b.Reason != "kafka.txid_shared" || !errors.Is(err, kafka.InvalidProducerEpoch) {
		t.Errorf("Run = %v, want kafka.txid_shared by code 47", err)
	}
	next.send(to(written, 4), to(untouched, 103))
	next.out.settled(t, 3)
	wantLog(t, addr, written, []int64{1, 2, 4})
	wantLog(t, addr, untouched, ids(101, 103))
}

// A superseded leader that renews is told so by a real coordinator.
func TestRealBrokerFencesRenewal(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	id, topic := kafkatest.Name(t), kafkatest.Name(t)
	kafkatest.Create(t, addr, topic, 1, nil)
	next := make(chan struct{})
	var superseded atomic.Bool
	old := leadReal(t, addr, id, time.Millisecond, func(p *Publisher, _ *doubting) {
		p.sender.identities.permit = func(ctx context.Context) error {
			if !superseded.Load() {
				return nil
			}
			select {
			case <-next:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	old.send(to(topic, 1))
	old.out.settled(t, 1)
	superseded.Store(true)
	l := leadReal(t, addr, id, renewEvery, nil)
	l.send(to(topic, 2))
	l.out.settled(t, 1)
	close(next)
	if err := old.ended(t); !errors.Is(err, kafka.ProducerFenced) {
		t.Errorf("Run = %v, want it to end with code 90", err)
	}
}

// Renewals under load lose nothing and double nothing: the broker accepts each
// epoch from sequence 0 on.
func TestRealBrokerRenewalUnderLoad(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Name(t)
	kafkatest.Create(t, addr, topic, 4, nil)
	l := leadReal(t, addr, kafkatest.Name(t), 5*time.Millisecond, nil)
	events := numbered(topic, 20_000, 100)
	for chunk := range slices.Chunk(events, 500) {
		for some := range slices.Chunk(chunk, 50) {
			l.send(some...)
		}
		l.out.settled(t, int(chunk[0].ID)) // a chunk or two in flight
	}
	l.out.settled(t, len(events))
	wantLog(t, addr, topic, ids(1, int64(len(events))))
	epochs, producers := map[int16]bool{}, map[int64]bool{}
	for _, r := range kafkatest.ReadAll(t, addr, topic) {
		epochs[r.ProducerEpoch], producers[r.ProducerID] = true, true
	}
	if len(epochs) < 5 || len(producers) != 1 {
		t.Errorf("published under %d epochs of %d producer ids, want several of one", len(epochs), len(producers))
	}
}

// A batch whose answer was lost, while the identity is renewed, or while the
// topic comes to refuse it: the one is recognised under the epoch that it had;
// after the other, the sequence numbers it may have used are not used again.
func TestRealBrokerInDoubt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meet    func(t *testing.T, p *Publisher, addr, topic string)
		refused []int64
		epochs  map[int64]int16
	}{
		"renewed": {
			meet: func(t *testing.T, p *Publisher, _, _ string) {
				i := p.sender.identities
				if _, err := i.next(t.Context(), i.latest.Load(), nil); err != nil {
					t.Error(err)
				}
			},
			epochs: map[int64]int16{1: 0, 2: 0, 3: 1, 4: 1},
		},
		"refused": {
			meet: func(t *testing.T, _ *Publisher, addr, topic string) {
				alter(t, addr, topic, "max.message.bytes", "10000")
				awaitLimit(t, addr, topic, 20_000)
			},
			refused: []int64{2},
			epochs:  map[int64]int16{1: 0, 2: 0, 3: 1, 4: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := kafkatest.Broker(t)
			topic := kafkatest.Name(t)
			kafkatest.Create(t, addr, topic, 1, nil)
			l := leadReal(t, addr, kafkatest.Name(t), renewEvery, func(p *Publisher, b *doubting) {
				b.arm = func(s *record.Sealed) bool { return s.Size() > 15_000 }
				b.meet = func() { tc.meet(t, p, addr, topic) }
			})
			l.send(to(topic, 1))
			l.out.settled(t, 1)
			large := to(topic, 2)
			large.Payload = []byte(strings.Repeat("x", 20_000))
			l.send(large)
			l.out.settled(t, 2)
			l.send(to(topic, 3))
			l.out.settled(t, 3)
			l.send(to(topic, 4))
			l.out.settled(t, 4)
			if got := l.out.refusedIDs(); !slices.Equal(got, tc.refused) {
				t.Errorf("refused %v, want %v", got, tc.refused)
			}
			wantLog(t, addr, topic, ids(1, 4))
			for _, r := range kafkatest.ReadAll(t, addr, topic) {
				if id := recordID(t, r.Headers); id < firstProbe && r.ProducerEpoch != tc.epochs[id] {
					t.Errorf("event %d was published under epoch %d, want %d", id, r.ProducerEpoch, tc.epochs[id])
				}
			}
		})
	}
}
