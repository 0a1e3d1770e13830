package ledger

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// oracle keeps everything that ever happened and recomputes the watermark
// from the start each time.
type oracle struct {
	steps []oracleStep
}

type oracleStep struct {
	event    bool
	resolved bool
	began    int64
	end      pglogrepl.LSN // of a seal or a keepalive between transactions
}

func (o *oracle) watermark() pglogrepl.LSN {
	var w pglogrepl.LSN
	for _, s := range o.steps {
		if s.event && !s.resolved {
			return w
		}
		if !s.event {
			w = s.end
		}
	}
	return w
}

// oldest is when the transaction of the oldest unresolved event was committed.
func (o *oracle) oldest() int64 {
	for _, s := range o.steps {
		if s.event && !s.resolved {
			return s.began
		}
	}
	return 0
}

func (o *oracle) pending() (n int) {
	for _, s := range o.steps {
		if s.event && !s.resolved {
			n++
		}
	}
	return n
}

func TestAgainstOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// A tiny ring, so that it is compacted and doubled all the time.
		l, o := &Ledger{cells: make([]cell, 2)}, &oracle{}
		var lsn pglogrepl.LSN
		var open []int // steps of unresolved events
		var seqs []event.Seq
		seqOf := map[int]event.Seq{}
		inTx := false
		var began int64
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(*rapid.T) {
				if !inTx {
					began++
				}
				l.Begin(began)
				inTx = true
			},
			"track": func(t *rapid.T) {
				if !inTx {
					return
				}
				for range rapid.SampledFrom([]int{1, 1, 2, 3, 64, 150}).Draw(t, "events") {
					seq := l.Track()
					seqOf[len(o.steps)] = seq
					seqs = append(seqs, seq)
					open = append(open, len(o.steps))
					o.steps = append(o.steps, oracleStep{event: true, began: began})
				}
			},
			"seal": func(t *rapid.T) {
				lsn += pglogrepl.LSN(rapid.IntRange(1, 1000).Draw(t, "bytes"))
				l.Seal(lsn)
				o.steps = append(o.steps, oracleStep{end: lsn})
				inTx = false
			},
			"keepalive": func(t *rapid.T) {
				lsn += pglogrepl.LSN(rapid.IntRange(0, 1000).Draw(t, "bytes"))
				l.AdvanceIdle(lsn)
				if !inTx {
					o.steps = append(o.steps, oracleStep{end: lsn})
				}
			},
			"resolve": func(t *rapid.T) {
				for range rapid.IntRange(0, min(200, len(open))).Draw(t, "events") {
					i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
					step := open[i]
					open = append(open[:i], open[i+1:]...)
					o.steps[step].resolved = true
					if err := l.Resolve(seqOf[step]); err != nil {
						t.Fatal(err)
					}
				}
			},
			"resolve twice": func(t *rapid.T) {
				if len(seqs) == 0 {
					return
				}
				seq := rapid.SampledFrom(seqs).Draw(t, "seq")
				for _, step := range open {
					if seqOf[step] == seq {
						return
					}
				}
				if l.Resolve(seq) == nil {
					t.Fatalf("event %d was resolved twice", seq)
				}
			},
			"": func(t *rapid.T) {
				if got, want := l.Watermark(), o.watermark(); got != want {
					t.Fatalf("watermark %s, want %s", got, want)
				}
				if got, want := l.Pending(), o.pending(); got != want {
					t.Fatalf("pending %d, want %d", got, want)
				}
				if got, want := l.Oldest(), o.oldest(); got != want {
					t.Fatalf("oldest of %d, want %d", got, want)
				}
				for _, step := range open {
					if got, want := l.Committed(seqOf[step]), o.steps[step].began; got != want {
						t.Fatalf("event %d committed at %d, want %d", seqOf[step], got, want)
					}
				}
			},
		})
	})
}

func TestUnknownEvents(t *testing.T) {
	t.Parallel()
	l := New()
	if l.Resolve(0) == nil {
		t.Error("an event that was never tracked was resolved")
	}
	seq := l.Track()
	l.Seal(10)
	if l.Resolve(seq+1) == nil {
		t.Error("an event of the future was resolved")
	}
	if got := l.Watermark(); got != 0 {
		t.Errorf("watermark %s after refused resolutions, want 0/0", got)
	}
}

// A row locked for an hour while others flow: the ledger must not grow with
// what has been resolved behind it.
func TestOneStuckEventKeepsTheLedgerSmall(t *testing.T) {
	t.Parallel()
	l := New()
	stuck := l.Track()
	l.Seal(1)
	for i := range 1_000_000 {
		seq := l.Track()
		l.Seal(pglogrepl.LSN(i + 2))
		if err := l.Resolve(seq); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.cells) > 128 {
		t.Errorf("%d cells for one unresolved event", len(l.cells))
	}
	if got := l.Watermark(); got != 0 {
		t.Errorf("watermark %s passed an unresolved event", got)
	}
	if err := l.Resolve(stuck); err != nil {
		t.Fatal(err)
	}
	if got := l.Watermark(); got != 1_000_001 {
		t.Errorf("watermark %s, want 0/F4241", got)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	l := New()
	var lsn pglogrepl.LSN
	round := func() {
		first := l.Track()
		for range 99 {
			l.Track()
		}
		lsn++
		l.Seal(lsn)
		for i := range event.Seq(100) {
			if err := l.Resolve(first + i); err != nil {
				t.Fatal(err)
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations in a round of 100 events", n)
	}
}

func BenchmarkTrackSealResolve(b *testing.B) {
	l := New()
	var lsn pglogrepl.LSN
	const inFlight = 50_000
	for range inFlight {
		l.Track()
		lsn++
		l.Seal(lsn)
	}
	oldest := event.Seq(0)
	for b.Loop() {
		l.Track()
		lsn++
		l.Seal(lsn)
		// Twelve partitions acknowledge runs that interleave.
		if err := l.Resolve(oldest); err != nil {
			b.Fatal(err)
		}
		oldest++
	}
}
