package consumer

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/modeltest"
)

// TestModel runs random programs in simulated time, where the world around a
// group of consumers is plain and checks them. A failing one is printed as the
// source of a case for TestModelCases, which traces it with -v.
func TestModel(t *testing.T) {
	t.Parallel()
	modeltest.Random(t, modelLanes, modelPrograms(), runModel)
}

// modelLanes is how many times -rapid.checks programs run.
const modelLanes = 4

// modelPrograms draws programs that consist of inserts and of some of the other
// actions.
func modelPrograms() *rapid.Generator[modelProgram] {
	some := modeltest.Some(insertRows+1, modelActions)
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
	return modeltest.Steps(insertRows, actions, rapid.IntRange(0, len(modelScripts)-1))
}
