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
		p := modelPrograms().Draw(rt, "program")
		for range tries {
			if broken := inBubble(t, p, nil); len(broken) > 0 {
				tries = 20
				rt.Logf("%v\n%v", p, broken)
				rt.Fatalf("%s", broken[0].Rule)
			}
		}
	})
}

// modelPrograms draws programs that consist of inserts and of some of the other
// actions: with all of them, each would have too few of what goes together.
func modelPrograms() *rapid.Generator[modelProgram] {
	others := make([]modelAction, 0, modelActions)
	for a := insertRows + 1; a < modelActions; a++ {
		others = append(others, a)
	}
	some := rapid.SliceOfNDistinct(rapid.SampledFrom(others), 1, 8, rapid.ID[modelAction])
	return rapid.Custom(func(t *rapid.T) modelProgram {
		return modelProgram{
			Seed:  rapid.Uint64().Draw(t, "seed"),
			Steps: rapid.SliceOfN(modelSteps(some.Draw(t, "actions")), 1, 40).Draw(t, "steps"),
		}
	})
}

func modelSteps(actions []modelAction) *rapid.Generator[modelStep] {
	do := rapid.OneOf(rapid.Just(insertRows), rapid.SampledFrom(actions))
	wait := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 5_000), rapid.IntRange(0, 200_000), rapid.IntRange(0, 4_000_000),
		rapid.IntRange(0, 4_000_000), rapid.IntRange(0, 60_000_000))
	number := rapid.IntRange(0, 11)
	return rapid.Custom(func(t *rapid.T) modelStep {
		return modelStep{
			Do: do.Draw(t, "do"), A: number.Draw(t, "a"), B: number.Draw(t, "b"), C: number.Draw(t, "c"),
			Wait: wait.Draw(t, "wait"),
		}
	})
}
