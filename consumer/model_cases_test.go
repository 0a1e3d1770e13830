package consumer

import "testing"

// TestModelCases runs programs that once went wrong, or that are hard to meet by
// chance, with other latencies each time. With -v each one tells what happens in
// it.
func TestModelCases(t *testing.T) {
	t.Parallel()
	plain := modelSetup{Processes: 1, Concurrency: 1, Window: 256, Batch: 100, Lease: 30}
	for _, c := range []struct {
		name  string
		seed  uint64 // with which it went wrong
		setup modelSetup
		steps []modelStep
	}{
		{"a claim without an answer is asked for after a rebalance, while its outcome is recorded", 53, modelSetup{
			Receipts: true, Processes: 1, Concurrency: 2, Window: 6, Batch: 1, Lease: 15, Policy: policyQuery,
		}, []modelStep{
			{Do: silenceKafka, B: 1, Wait: 60_000_000}, {Do: silenceKafka, B: 4, Wait: 197}, {Do: insertLate, A: 2},
			{Do: loseAnswers, B: 10, Wait: 2014}, {Do: appendStray, A: 11}, {Do: insertRows, A: 10, Wait: 215},
			{Do: insertRows, A: 1, B: 3}, {Do: insertLate, A: 10},
		}},
		{"one event", 2, plain, []modelStep{{Do: insertRows}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := c.seed; seed != c.seed+20; seed++ {
				checkCase(t, modelProgram{Seed: seed, Setup: c.setup, Steps: c.steps})
			}
		})
	}
}

func checkCase(t *testing.T, p modelProgram) {
	t.Helper()
	var log func(string, ...any)
	if testing.Verbose() {
		log = t.Logf
	}
	for _, v := range inBubble(t, p, log) {
		t.Errorf("seed %d: %s: %s", p.Seed, v.Rule, v.Detail)
	}
}
