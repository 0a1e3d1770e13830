package relay

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// TestModel runs random programs against the plain model. A failing one is
// printed as the source of a case for TestModelCases, which traces it with -v.
func TestModel(t *testing.T) {
	t.Parallel()
	for lane := range modelLanes {
		t.Run(strconv.Itoa(lane), func(t *testing.T) {
			t.Parallel()
			checkModel(t)
		})
	}
}

// modelLanes is how many times -rapid.checks programs run.
const modelLanes = 8

func checkModel(t *testing.T) {
	// The order in which goroutines run is not in the seed. So once a program
	// has failed, its shorter forms get more than one chance to fail, too.
	tries := 1
	rapid.Check(t, func(rt *rapid.T) {
		p := modelProgram{
			Seed:  rapid.Uint64().Draw(rt, "seed"),
			Steps: rapid.SliceOfN(modelSteps(), 1, 40).Draw(rt, "steps"),
		}
		for range tries {
			if broken := inBubble(t, p, nil); len(broken) > 0 {
				tries = 20
				rt.Logf("%v\n%v", p, broken)
				rt.Fatalf("%s", broken[0].Rule)
			}
		}
	})
}

// modelWeights says how often each action is drawn.
var modelWeights = [modelActions]int{
	insertRows: 30, insertDelayed: 2, replay: 6, replayWaived: 1, replaySent: 1, skipByCommand: 3, skipInPSQL: 3, deleteRow: 1, deleteParked: 2,
	hastenHeld: 3, hastenAny: 1, lockRow: 1, lockParked: 2, denyTopic: 2, allowTopics: 2, silencePart: 2, answerAll: 2, silenceAll: 1,
	mendRecords: 2, crash: 3, restart: 1, depose: 1, cutStream: 1, stallLease: 1, moveSlot: 1,
}

func modelSteps() *rapid.Generator[modelStep] {
	var actions []modelAction
	for a, weight := range modelWeights {
		for range weight {
			actions = append(actions, modelAction(a))
		}
	}
	micros := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 5_000), rapid.IntRange(0, 200_000), rapid.IntRange(0, 4_000_000),
		rapid.IntRange(0, 4_000_000), rapid.IntRange(0, 60_000_000))
	return rapid.Custom(func(t *rapid.T) modelStep {
		return modelStep{
			Do: rapid.SampledFrom(actions).Draw(t, "do"),
			A:  rapid.IntRange(0, 11).Draw(t, "a"), B: rapid.IntRange(0, 11).Draw(t, "b"), C: rapid.IntRange(0, 11).Draw(t, "c"),
			Wait: micros.Draw(t, "wait"),
		}
	})
}
