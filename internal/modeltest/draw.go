package modeltest

import (
	"fmt"

	"pgregory.net/rapid"
)

// Some draws a few of the actions from first to before end: with all of them, a
// program would have too few of what goes together.
func Some[Action ~uint8](first, end Action) *rapid.Generator[[]Action] {
	var all []Action
	for a := first; a < end; a++ {
		all = append(all, a)
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 8, rapid.ID[Action])
}

// Number draws what steps make of A and B.
func Number() *rapid.Generator[int] { return rapid.IntRange(0, 11) }

// Steps draws steps, half of which do often; c draws their C.
func Steps[Action interface {
	~uint8
	fmt.Stringer
}](often Action, others []Action, c *rapid.Generator[int]) *rapid.Generator[Step[Action]] {
	do := rapid.OneOf(rapid.Just(often), rapid.SampledFrom(others))
	wait := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 5_000), rapid.IntRange(0, 200_000), rapid.IntRange(0, 4_000_000),
		rapid.IntRange(0, 4_000_000), rapid.IntRange(0, 60_000_000))
	return rapid.Custom(func(t *rapid.T) Step[Action] {
		return Step[Action]{
			Do: do.Draw(t, "do"), A: Number().Draw(t, "a"), B: Number().Draw(t, "b"), C: c.Draw(t, "c"),
			Wait: wait.Draw(t, "wait"),
		}
	})
}
