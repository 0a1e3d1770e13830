package relay

import (
	"testing"
	"testing/synctest"
)

// inBubble runs a program in a bubble of its own.
func inBubble(t *testing.T, p modelProgram, log func(string, ...any)) (broken []modelViolation) {
	synctest.Test(t, func(*testing.T) { broken = runModel(p, log) })
	return broken
}

// TestModelCases runs programs that once went wrong. With -v each one tells
// what happens in it.
func TestModelCases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		program modelProgram
	}{
		{"the answer for a batch in doubt comes while its rows are released", modelProgram{Seed: 2, Steps: []modelStep{
			{Do: insertRows, A: 0, B: 0, C: 0, Wait: 0},
			{Do: insertRows, A: 11, B: 0, C: 0, Wait: 0},
			{Do: silencePart, A: 1, B: 0, C: 0, Wait: 60000000},
		}}},
		{"a requeue message fills the line while events are in hand", modelProgram{Seed: 2097, Steps: []modelStep{
			{Do: insertRows, A: 4, B: 7, C: 1, Wait: 1191},
			{Do: insertRows, A: 2, B: 0, C: 1, Wait: 958974},
			{Do: insertRows, A: 6, B: 11, C: 0, Wait: 1},
			{Do: insertRows, A: 1, B: 10, C: 10, Wait: 5},
			{Do: insertRows, A: 2, B: 5, C: 2, Wait: 228},
			{Do: crash, A: 3, B: 4, C: 6, Wait: 963},
			{Do: insertRows, A: 6, B: 0, C: 2, Wait: 0},
		}}},
		{"a hold begun before the last page was asked for, written after it was read", modelProgram{Seed: 13969, Steps: []modelStep{
			{Do: insertRows, A: 0, B: 6, C: 2, Wait: 329},
			{Do: insertRows, A: 3, B: 4, C: 1, Wait: 2197669},
			{Do: deleteParked, A: 7, B: 1, C: 4, Wait: 0},
			{Do: restart, A: 4, B: 0, C: 3, Wait: 0},
			{Do: insertRows, A: 1, B: 6, C: 11, Wait: 182},
		}}},
		{"a held row fails while an older answer shows it as held", modelProgram{Seed: 2281752, Steps: []modelStep{
			{Do: insertRows, A: 2, B: 4, C: 11, Wait: 552},
			{Do: insertRows, A: 1, B: 10, C: 2, Wait: 2530760},
			{Do: insertRows, A: 3, B: 0, C: 11, Wait: 1061238},
			{Do: insertRows, A: 1, B: 2, C: 2, Wait: 0},
			{Do: insertRows, A: 10, B: 6, C: 3, Wait: 0},
			{Do: insertRows, A: 3, B: 1, C: 5, Wait: 19},
			{Do: insertRows, A: 3, B: 0, C: 11, Wait: 28},
			{Do: insertRows, A: 2, B: 7, C: 11, Wait: 27749509},
		}}},
		{"a later event is held, an earlier one's failure is not recorded, then a crash", modelProgram{Seed: 0, Steps: []modelStep{
			{Do: insertRows, A: 0, B: 0, C: 0, Wait: 0},
			{Do: insertRows, A: 7, B: 11, C: 7, Wait: 0},
			{Do: lockRow, A: 0, B: 11, C: 1, Wait: 77},
			{Do: denyTopic, A: 9, B: 3, C: 0, Wait: 2},
			{Do: insertRows, A: 0, B: 0, C: 11, Wait: 3183127},
			{Do: crash, A: 1, B: 8, C: 1, Wait: 0},
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var log func(string, ...any)
			if testing.Verbose() {
				log = t.Logf
			}
			for _, v := range inBubble(t, c.program, log) {
				t.Errorf("%s: %s", v.Rule, v.Detail)
			}
		})
	}
}
