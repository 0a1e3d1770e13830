package sink

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"pgregory.net/rapid"
)

// ids returns from, from+1, ... to.
func ids(from, to int64) []int64 {
	var list []int64
	for id := from; id <= to; id++ {
		list = append(list, id)
	}
	return list
}

// scripted answers the first requests with these and accepts the others.
func scripted(responses ...response) func(request) response {
	return func(r request) response {
		if r.n < len(responses) {
			return responses[r.n]
		}
		return response{}
	}
}

// What a broker's answer, or the lack of one, leads to: five events of one
// partition in one batch, then five more, and ten when those are settled.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script    []response
		wantLog   []int64
		refused   map[int64]string // code by id
		producers int64            // ids asked for
	}{
		"accepted": {
			wantLog: ids(1, 20), producers: 1,
		},
		"not leader twice": {
			script:  []response{{err: kafka.NotLeaderForPartition}, {err: kafka.NotLeaderForPartition}},
			wantLog: ids(1, 20), producers: 1,
		},
		"answer lost after the append": {
			script:  []response{{err: io.EOF, lost: true, append: true}},
			wantLog: ids(1, 20), producers: 1,
		},
		"time-out before the append": {
			script:  []response{{err: context.DeadlineExceeded, lost: true}},
			wantLog: ids(1, 20), producers: 1,
		},
		"replicas late": {
			script:  []response{{err: kafka.RequestTimedOut, append: true}, {err: kafka.NotEnoughReplicasAfterAppend}},
			wantLog: ids(1, 20), producers: 1,
		},
		"duplicate sequence": {
			script:  []response{{err: io.EOF, lost: true, append: true}, {err: kafka.DuplicateSequenceNumber}},
			wantLog: ids(1, 20), producers: 1,
		},
		"producer state lost": {
			script:  []response{{err: kafka.OutOfOrderSequenceNumber}, {err: kafka.UnknownProducerId}},
			wantLog: ids(1, 20), producers: 3,
		},
		"epoch refused": {
			script:  []response{{err: kafka.InvalidProducerEpoch}},
			wantLog: ids(1, 20), producers: 2,
		},
		"unknown code": {
			script:  []response{{err: kafka.Unknown}, {err: kafka.Error(4711)}},
			wantLog: ids(1, 20), producers: 1,
		},
		"torn batch": {
			script:  []response{{err: kafka.InvalidMessage}},
			wantLog: ids(1, 20), producers: 1,
		},
		"two records by index": {
			script:  []response{{err: kafka.InvalidRecord, index: []int{1, 3}}},
			wantLog: append([]int64{1, 3, 5, 6, 7, 8, 9, 10, 11, 12}, ids(13, 20)...), producers: 1,
			refused: map[int64]string{2: "RECORD_INVALID", 4: "RECORD_INVALID"},
		},
		"all records by index": {
			script:  []response{{err: kafka.InvalidTimestamp, index: []int{0, 1, 2, 3, 4}}},
			wantLog: ids(6, 20), producers: 1,
			refused: map[int64]string{
				1: "TIMESTAMP_INVALID", 2: "TIMESTAMP_INVALID", 3: "TIMESTAMP_INVALID", 4: "TIMESTAMP_INVALID", 5: "TIMESTAMP_INVALID",
			},
		},
		"an index that does not exist": {
			script:  []response{{err: kafka.InvalidRecord, index: []int{7}}, {}, {}},
			wantLog: ids(1, 20), producers: 1,
		},
		"policy, by halves": { // 1..5, then 1 2, then 3 4 5, then 3
			script:  []response{{err: kafka.PolicyViolation}, {}, {err: kafka.PolicyViolation}, {err: kafka.PolicyViolation}},
			wantLog: append([]int64{1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12}, ids(13, 20)...), producers: 1,
			refused: map[int64]string{3: "POLICY_VIOLATION"},
		},
		"topic name": {
			script:  []response{{err: kafka.InvalidTopic}},
			wantLog: ids(6, 20), producers: 1,
			refused: map[int64]string{
				1: "TOPIC_NAME_INVALID", 2: "TOPIC_NAME_INVALID", 3: "TOPIC_NAME_INVALID", 4: "TOPIC_NAME_INVALID", 5: "TOPIC_NAME_INVALID",
			},
		},
		"denied": {
			script:  []response{{err: kafka.TopicAuthorizationFailed}},
			wantLog: ids(6, 20), producers: 1,
			refused: map[int64]string{
				1: "TOPIC_DENIED", 2: "TOPIC_DENIED", 3: "TOPIC_DENIED", 4: "TOPIC_DENIED", 5: "TOPIC_DENIED",
			},
		},
		// The story of the sequence rule: the first attempt was stored, its
		// answer got lost, and the second one was refused. A batch of other
		// events under the same number would be acknowledged as that first one
		// and never stored.
		"in doubt, then refused": {
			script: []response{
				{err: io.EOF, lost: true, append: true}, {err: kafka.InvalidRecord, index: []int{0, 1, 2, 3, 4}},
			},
			wantLog: ids(1, 20), producers: 2,
			refused: map[int64]string{
				1: "RECORD_INVALID", 2: "RECORD_INVALID", 3: "RECORD_INVALID", 4: "RECORD_INVALID", 5: "RECORD_INVALID",
			},
		},
		"in doubt by an answer, then refused": {
			script: []response{
				{err: kafka.NotEnoughReplicasAfterAppend, append: true}, {err: kafka.InvalidRecord, index: []int{0, 1, 2, 3, 4}},
			},
			wantLog: ids(1, 20), producers: 2,
			refused: map[int64]string{
				1: "RECORD_INVALID", 2: "RECORD_INVALID", 3: "RECORD_INVALID", 4: "RECORD_INVALID", 5: "RECORD_INVALID",
			},
		},
		"not sent, then refused": {
			script: []response{
				{err: kafka.NotEnoughReplicas}, {err: kafka.InvalidRecord, index: []int{0, 1, 2, 3}},
			},
			wantLog: ids(5, 20), producers: 1,
			refused: map[int64]string{1: "RECORD_INVALID", 2: "RECORD_INVALID", 3: "RECORD_INVALID", 4: "RECORD_INVALID"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.script = scripted(tc.script...)
				out := newRecorder()
				p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.BatchRecords = 5 })
				events := numbered("t", 20, 2)
				p.Publish(events[:5])
				p.Flush()
				synctest.Wait()
				p.Publish(events[5:10])
				p.Flush()
				out.settled(t, 10)
				synctest.Wait() // what follows takes two batches, and the memory of the first two
				p.Publish(events[10:])
				p.Flush()
				out.settled(t, 20)

				if diff := cmp.Diff(tc.wantLog, sim.stored("t", 0)); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
				codes := map[int64]string{}
				for id, f := range out.refusals() {
					codes[id] = f.Code
				}
				if tc.refused == nil {
					tc.refused = map[int64]string{}
				}
				if diff := cmp.Diff(tc.refused, codes); diff != "" {
					t.Errorf("refused (-want +got):\n%s", diff)
				}
				for _, id := range out.ackedIDs() {
					if !slices.Contains(tc.wantLog, id) {
						t.Errorf("event %d is acked and not in the log", id)
					}
				}
				sim.set(func() {
					if sim.nextID != tc.producers {
						t.Errorf("%d producer ids, want %d", sim.nextID, tc.producers)
					}
				})
			})
		})
	}
}

// mishap is one thing that goes wrong with one request.
type mishap int

const (
	fine mishap = iota
	refusedByCode
	lostBefore
	lostAfter
	timedOutAfter
	stateForgotten
	tooLarge // whatever is in it
)

// Whatever goes wrong in whatever order: each event is settled once, what is
// acked is in the log, the first occurrences are in order, and bad records
// alone are refused.
func TestAnyMishaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "events")
		mishaps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) mishap {
			return mishap(rapid.IntRange(int(fine), int(tooLarge)).Draw(t, "mishap"))
		}), 0, 20).Draw(rt, "mishaps")
		poison := rapid.SliceOfDistinct(rapid.Int64Range(1, int64(n)), rapid.ID[int64]).Draw(rt, "poison")
		byIndex := rapid.Bool().Draw(rt, "poison is named by index")
		chunk := rapid.IntRange(1, 15).Draw(rt, "events per batch")
		fenced := rapid.Bool().Draw(rt, "fenced, renewed all the time")
		synctest.Test(t, func(t *testing.T) {
			for _, problem := range anyMishaps(t, n, chunk, mishaps, poison, byIndex, fenced) {
				t.Errorf("%s (events %d, chunk %d, mishaps %v, poison %v, by index %v, fenced %v)", problem, n, chunk, mishaps, poison, byIndex, fenced)
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func anyMishaps(t *testing.T, n, chunk int, mishaps []mishap, poison []int64, byIndex, fenced bool) (problems []string) {
	sim := newSimulation(t, 1)
	var alone []int64 // what may be refused without being bad
	sim.script = func(r request) response {
		if r.n < len(mishaps) {
			switch mishaps[r.n] {
			case refusedByCode:
				return response{err: kafka.NotEnoughReplicas}
			case lostBefore:
				return response{err: io.EOF, lost: true}
			case lostAfter:
				return response{err: io.EOF, lost: true, append: true}
			case timedOutAfter:
				return response{err: kafka.RequestTimedOut, append: true}
			case stateForgotten:
				return response{forget: true}
			case tooLarge:
				if len(r.ids) == 1 {
					alone = append(alone, r.ids[0])
				}
				return response{err: kafka.MessageSizeTooLarge}
			}
		}
		if !byIndex && slices.ContainsFunc(r.ids, func(id int64) bool { return slices.Contains(poison, id) }) {
			return response{err: kafka.PolicyViolation}
		}
		return response{}
	}
	if byIndex {
		for _, id := range poison {
			sim.poison[id] = true
		}
	}
	var p *Publisher
	out := newRecorder()
	if fenced {
		l := leadRenewing(t, sim, 3*time.Millisecond, nil)
		p, out = l.Publisher, l.out
	} else {
		p = startSimulated(t, sim, out, nil)
	}
	for events := range slices.Chunk(numbered("t", n, 3), chunk) {
		p.Publish(events)
		p.Flush()
		synctest.Wait()
	}
	out.settled(t, n)
	synctest.Wait()

	log := sim.stored("t", 0)
	var latest int64
	seen := map[int64]bool{}
	for _, id := range log {
		if !seen[id] && id < latest {
			problems = append(problems, fmt.Sprintf("%d comes first after %d: %v", id, latest, log))
		}
		seen[id] = true
		latest = max(latest, id)
	}
	acked := out.ackedIDs()
	for _, id := range acked {
		if !seen[id] {
			problems = append(problems, fmt.Sprintf("%d is acked and not in the log: %v", id, log))
		}
	}
	if !slices.IsSorted(acked) {
		problems = append(problems, fmt.Sprintf("acked out of order: %v", acked))
	}
	refused := out.refusals()
	for id := range refused {
		if !slices.Contains(poison, id) && !slices.Contains(alone, id) {
			problems = append(problems, fmt.Sprintf("good record %d is refused", id))
		}
	}
	if len(acked)+len(refused) != n {
		problems = append(problems, fmt.Sprintf("%d acked and %d refused of %d", len(acked), len(refused), n))
	}
	return problems
}

// An identity that the broker does not permit is given up once for all.
func TestIdentityStepsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		sim.noIDs = kafka.ClusterAuthorizationFailed
		var producers []int64
		sim.script = func(r request) response {
			sim.set(func() { producers = append(producers, r.producer) })
			return response{}
		}
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		p.Publish(numbered("t", 20, 20))
		p.Flush()
		out.settled(t, 20)
		if want := []int64{-1, -1}; !slices.Equal(producers, want) {
			t.Errorf("published under %v, want %v", producers, want)
		}
	})
}

// A producer id that cannot be had yet is asked for until it can.
func TestIdentityComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.noIDs = kafka.GroupLoadInProgress
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		p.Publish(numbered("t", 3, 1))
		p.Flush()
		pass(t, time.Minute)
		sim.set(func() { sim.noIDs = nil })
		out.settled(t, 3)
		if got := sim.stored("t", 0); !slices.Equal(got, ids(1, 3)) {
			t.Errorf("log %v", got)
		}
	})
}

// Nothing goes out without a permit of that moment.
func TestPermitBeforeEachRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		permits := make(chan struct{}, 10)
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) {
			d.Permit = func(ctx context.Context) error {
				if ctx.Err() != nil {
					return nil // asked again at the moment of writing
				}
				select {
				case <-permits:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		sim.set(func() { sim.script = scripted(response{err: kafka.NotEnoughReplicas}) })
		p.Publish(numbered("t", 1, 1))
		p.Flush()
		pass(t, time.Minute)
		for want := range 2 {
			if sim.sent() != want {
				t.Fatalf("%d requests with %d permits", sim.sent(), want)
			}
			permits <- struct{}{}
			pass(t, time.Minute)
		}
		out.settled(t, 1)
	})
}

// A permit that runs out while a connection is being made holds the bytes
// back, also when the connection stands.
func TestPermitRunsOut(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, *recorder, func(context.Context) error) (*Publisher, func() []int64){
		"simulated": func(t *testing.T, out *recorder, permit func(context.Context) error) (*Publisher, func() []int64) {
			sim := newSimulation(t, 1)
			p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Permit = permit })
			return p, func() []int64 { return sim.stored("t", 0) }
		},
		"fake broker": func(t *testing.T, out *recorder, permit func(context.Context) error) (*Publisher, func() []int64) {
			_, addr := newFake(t, kfake.SeedTopics(1, "t"))
			deps := testDeps(t, out)
			deps.Permit = permit
			return start(t, testConfig(addr), deps), func() []int64 { return logIDs(t, addr, "t") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := newRecorder()
			var asked atomic.Int64
			gone, back := make(chan struct{}), make(chan struct{})
			p, log := begin(t, out, func(ctx context.Context) error {
				if ctx.Err() != nil && asked.Add(1) == 1 {
					return ctx.Err() // at the moment of writing, the first time
				}
				if ctx.Err() == nil && asked.Load() == 1 {
					asked.Add(1)
					close(gone)
					select {
					case <-back:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			})
			p.Publish(numbered("t", 3, 1))
			p.Flush()
			await(t, gone, "the permit to be asked for again")
			if got := log(); len(got) > 0 {
				t.Errorf("published without a permit: %v", got)
			}
			close(back)
			out.settled(t, 3)
			if got := log(); !slices.Equal(got, ids(1, 3)) {
				t.Errorf("log %v, want each once", got)
			}
		})
	}
}
