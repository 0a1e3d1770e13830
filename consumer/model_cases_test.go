package consumer

import (
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/modeltest"
)

// TestModelCases runs programs that once went wrong, or that are hard to meet by
// chance, with other latencies each time. With -v each one tells what happens in
// it.
func TestModelCases(t *testing.T) {
	t.Parallel()
	plain := modelSetup{Processes: 1, Concurrency: 1, Window: 256, Batch: 100, Lease: 30, Drain: 20}
	short := plain
	short.Lease = 9
	for _, c := range []struct {
		name  string
		seed  uint64 // with which it went wrong
		setup modelSetup
		steps []modelStep
	}{
		{"a claim without an answer is asked for after a rebalance, while its outcome is recorded", 53, modelSetup{
			Receipts: true, Processes: 1, Concurrency: 2, Window: 6, Batch: 1, Lease: 15, Drain: 20, Policy: policyQuery,
		}, []modelStep{
			{Do: silenceKafka, B: 1, Wait: 60_000_000}, {Do: silenceKafka, B: 4, Wait: 197}, {Do: insertLate, A: 2},
			{Do: loseAnswers, B: 10, Wait: 2014}, {Do: appendStray, A: 11}, {Do: insertRows, A: 10, Wait: 215},
			{Do: insertRows, A: 1, B: 3}, {Do: insertLate, A: 10},
		}},
		{"the answer that a row is missing is older than the row, and comes when it has been waited for", 34700, modelSetup{
			Processes: 1, Concurrency: 2, Window: 256, Batch: 3, Lease: 30, Drain: 20,
		}, []modelStep{
			{Do: insertRows, A: 9, C: 25}, {Do: insertRows, A: 1, B: 3, C: 3}, {Do: insertLate, A: 6, B: 11, C: 25, Wait: 487},
		}},
		{"a handler does not hear that its lease is over, and its process gets the partition again", 0, short, []modelStep{
			{Do: insertRows, C: scripted(ignores), Wait: 2_000_000}, {Do: rebalance}, {Do: refuseAll, B: 4, Wait: 20_000_000},
		}},
		{"a row is locked for longer than its lease while its handler runs, and another process waits for it", 0, short.with(2), []modelStep{
			{Do: insertRows, C: scripted(dawdles), Wait: 4_000_000}, {Do: rebalance}, {Do: lockRow, B: 5, Wait: 20_000_000},
		}},
		{"a locked row, and the process stops", 0, short, []modelStep{
			{Do: insertRows, B: 3, C: scripted(breaks), Wait: 100_000}, {Do: lockRow, B: 9}, {Do: stopProcess, B: 1, Wait: 40_000_000},
		}},
		{"an event kills its process each time", 0, short.with(2), []modelStep{{Do: insertRows, A: 1, B: 1, C: scripted(dies, dies, dies, dies, dies), Wait: 60_000_000}}},
		{"SENT comes very late, after a crash", 0, plain, []modelStep{{Do: insertLate, B: 9, C: 1}, {Do: insertRows, B: 3, Wait: 20_000_000}, {Do: killProcess, B: 2}}},
		{"a failed event is replayed while its record comes again", 0, short.with(2), []modelStep{
			{Do: insertRows, C: scripted(refuses), Wait: 3_000_000}, {Do: appendAgain}, {Do: replayRow}, {Do: appendAgain, Wait: 1_000_000}, {Do: rebalance},
		}},
		{"an offset is moved past an event that is handled", 0, short, []modelStep{
			{Do: insertRows, C: scripted(dawdles), Wait: 2_000_000}, {Do: moveOffset, B: 8, Wait: 60_000_000},
		}},
		{"a process is frozen for longer than lease and session", 0, short.with(2), []modelStep{
			{Do: insertRows, B: 3, C: scripted(dawdles), Wait: 1_000_000}, {Do: insertRows, A: 7, B: 3, Wait: 100_000}, {Do: freezeProcess, B: 8, Wait: 40_000_000},
		}},
		{"the database is silent while outcomes are recorded", 0, short, []modelStep{
			{Do: insertRows, B: 3, Wait: 30_000}, {Do: silenceAll, B: 7, Wait: 10_000_000}, {Do: rebalance, Wait: 20_000_000},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := c.seed; seed != c.seed+20; seed++ {
				modeltest.Case(t, seed, modelProgram{Seed: seed, Setup: c.setup, Steps: c.steps}, runModel)
			}
		})
	}
}

// with returns a setup for more processes.
func (s modelSetup) with(processes int) modelSetup {
	s.Processes = processes
	return s
}

// scripted returns the number of a script, for a step.
func scripted(deeds ...modelDeed) int {
	return slices.IndexFunc(modelScripts, func(s []modelDeed) bool { return slices.Equal(s, deeds) })
}
