package relay

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/modeltest"
)

// TestModel runs random programs against the plain model. A failing one is
// printed as the source of a case for TestModelCases, which traces it with -v.
func TestModel(t *testing.T) {
	t.Parallel()
	modeltest.Random(t, modelLanes, modelPrograms(), runModel)
}

// modelLanes is how many times -rapid.checks programs run.
const modelLanes = 8

// modelPrograms draws programs that consist of inserts and of some of the other
// actions.
func modelPrograms() *rapid.Generator[modelProgram] {
	some := modeltest.Some(insertRows+1, modelActions)
	return rapid.Custom(func(t *rapid.T) modelProgram {
		return modelProgram{
			Seed:  rapid.Uint64().Draw(t, "seed"),
			Steps: rapid.SliceOfN(modelSteps(some.Draw(t, "actions")), 1, 40).Draw(t, "steps"),
		}
	})
}

func modelSteps(actions []modelAction) *rapid.Generator[modelStep] {
	return modeltest.Steps(insertRows, actions, modeltest.Number())
}
