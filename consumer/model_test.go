package consumer

import (
	"strconv"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// TestModel runs random programs in simulated time, where the world around a
// group of consumers is plain and checks them. A failing one is printed as the
// source of a case for TestModelCases, which traces it with -v.
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
const modelLanes = 4

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

// inBubble runs a program in a bubble of its own.
func inBubble(t *testing.T, p modelProgram, log func(string, ...any)) (broken []modelViolation) {
	synctest.Test(t, func(*testing.T) { broken = runModel(p, log) })
	return broken
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
			Setup: modelSetups().Draw(t, "setup"),
			Steps: withoutFloods(rapid.SliceOfN(modelSteps(some.Draw(t, "actions")), 1, 30).Draw(t, "steps")),
		}
	})
}

// withoutFloods leaves out what would make consumers take it for another
// database that so many rows are missing.
func withoutFloods(steps []modelStep) (kept []modelStep) {
	missing := 0
	for _, s := range steps {
		if s.Do == appendStray || s.Do == deleteRow {
			if missing++; missing > modelStray {
				continue
			}
		}
		kept = append(kept, s)
	}
	return kept
}

func modelSetups() *rapid.Generator[modelSetup] {
	pick := func(t *rapid.T, name string, from ...int) int { return rapid.SampledFrom(from).Draw(t, name) }
	return rapid.Custom(func(t *rapid.T) modelSetup {
		return modelSetup{
			Receipts:    pick(t, "receipts", 0, 0, 0, 1) == 1,
			Processes:   pick(t, "processes", 1, 2, 3),
			Concurrency: pick(t, "concurrency", 1, 2, 4),
			Window:      pick(t, "window", 256, 6, 2),
			Batch:       pick(t, "batch", 100, 3, 1),
			Lease:       pick(t, "lease", 30, 15, 9),
			MaxAttempts: pick(t, "attempts", 0, 0, 3),
			Timeout:     pick(t, "timeout", 0, 0, 8),
			Drain:       pick(t, "drain", 20, 3),
			Policy:      modelPolicy(pick(t, "policy", 0, 0, 1, 2)),
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
			Do: do.Draw(t, "do"), A: number.Draw(t, "a"), B: number.Draw(t, "b"), C: rapid.IntRange(0, len(modelScripts)-1).Draw(t, "c"),
			Wait: wait.Draw(t, "wait"),
		}
	})
}
