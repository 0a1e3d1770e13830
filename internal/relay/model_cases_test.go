package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/modeltest"
)

// TestModelCases runs programs that once went wrong, or that are hard to meet
// by chance, with other latencies each time. With -v each one tells what
// happens in it.
func TestModelCases(t *testing.T) {
	t.Parallel()
	head := modelStep{Do: insertRows, C: 1}                          // FAILED at once
	retried := modelStep{Do: insertRows, C: 2}                       // refused once
	behind := modelStep{Do: insertRows, B: 3, C: 9, Wait: 4_000_000} // four rows of the same aggregate
	for _, c := range []struct {
		name  string
		seed  uint64 // with which it went wrong
		steps []modelStep
	}{
		{"the answer for a batch in doubt comes while its rows are released", 2, []modelStep{
			{Do: insertRows}, {Do: insertRows, A: 11}, {Do: silencePart, A: 1, Wait: 60_000_000},
		}},
		{"the answer for a batch in doubt is SENT before the page of held rows comes that shows it as held", 0, []modelStep{
			{Do: silencePart, A: 3, Wait: 14}, {Do: insertRows, A: 9, B: 8, C: 10, Wait: 1901}, {Do: silencePart, A: 4, Wait: 3961},
			{Do: insertRows, A: 8, B: 7, C: 1, Wait: 28101}, {Do: insertRows, A: 7, B: 7, C: 3, Wait: 7},
			{Do: insertRows, A: 4, B: 1, C: 0, Wait: 60_000_000},
		}},
		{"an event that need not wait is in the log of a partition that was silent", 0, []modelStep{
			{Do: silencePart, A: 5}, {Do: insertRows, A: 8, B: 3}, {Do: insertRows, A: 6, Wait: 25_000_000},
			{Do: insertRows, A: 6, Wait: 10_000_000}, {Do: answerAll, Wait: 30_000_000},
		}},
		{"a replay after a crash comes with an earlier event that is still looked up", 974454, []modelStep{
			{Do: insertRows, B: 11, C: 5}, {Do: insertRows, A: 2, B: 11, C: 2, Wait: 1389596}, {Do: crash},
		}},
		{"a replay after a crash, where later events need not wait", 227592494, []modelStep{
			{Do: insertRows, A: 6, B: 6, C: 1, Wait: 217}, {Do: insertRows, A: 8, B: 2, C: 7}, {Do: crash, Wait: 4_610_326},
			{Do: insertRows, A: 1, B: 6, C: 3, Wait: 19}, {Do: crash},
		}},
		{"a row of a pass is SENT while the slot's copy of it is looked up", 860, []modelStep{
			{Do: insertRows, A: 6, B: 10}, {Do: moveSlot, Wait: 457}, {Do: insertRows, A: 9, C: 11, Wait: 487},
			{Do: insertRows, A: 5, B: 3, C: 4, Wait: 51}, {Do: silenceAll, Wait: 1}, {Do: insertRows, A: 7, B: 1, C: 2, Wait: 15},
			{Do: insertRows, A: 2, B: 8, Wait: 60_000_000},
		}},
		{"a requeue message fills the line while events are in hand", 2097, []modelStep{
			{Do: insertRows, A: 4, B: 7, C: 1, Wait: 1191}, {Do: insertRows, A: 2, B: 0, C: 1, Wait: 958974},
			{Do: insertRows, A: 6, B: 11, C: 0, Wait: 1}, {Do: insertRows, A: 1, B: 10, C: 10, Wait: 5},
			{Do: insertRows, A: 2, B: 5, C: 2, Wait: 228}, {Do: crash, Wait: 963}, {Do: insertRows, A: 6, B: 0, C: 2},
		}},
		{"a hold begun before the last page was asked for, written after it was read", 13969, []modelStep{
			{Do: insertRows, A: 0, B: 6, C: 2, Wait: 329}, {Do: insertRows, A: 3, B: 4, C: 1, Wait: 2197669},
			{Do: deleteParked, A: 7}, {Do: restart}, {Do: insertRows, A: 1, B: 6, C: 11, Wait: 182},
		}},
		{"a held row fails while an older answer shows it as held", 2281752, []modelStep{
			{Do: insertRows, A: 2, B: 4, C: 11, Wait: 552}, {Do: insertRows, A: 1, B: 10, C: 2, Wait: 2530760},
			{Do: insertRows, A: 3, B: 0, C: 11, Wait: 1061238}, {Do: insertRows, A: 1, B: 2, C: 2},
			{Do: insertRows, A: 10, B: 6, C: 3}, {Do: insertRows, A: 3, B: 1, C: 5, Wait: 19},
			{Do: insertRows, A: 3, B: 0, C: 11, Wait: 28}, {Do: insertRows, A: 2, B: 7, C: 11, Wait: 27749509},
		}},
		{"a later event is held, an earlier one's failure is not recorded, then a crash", 0, []modelStep{
			{Do: insertRows}, {Do: insertRows, A: 7, B: 11, C: 9}, {Do: lockRow, B: 11, Wait: 77},
			{Do: denyTopic, A: 9, Wait: 2}, {Do: insertRows, C: 11, Wait: 3183127}, {Do: crash},
		}},
		{"a page of held rows is older than what became of some", 140, []modelStep{
			retried, {Do: insertRows, B: 3, C: 2}, {Do: insertRows, B: 2, C: 2, Wait: 10_000_000},
		}},
		{"a retry is due while an earlier one's failure waits for a lock", 1, []modelStep{
			{Do: insertRows, B: 1, C: 7, Wait: 1}, {Do: lockRow, B: 6, Wait: 10_000_000},
		}},
		{"skip in psql", 0, []modelStep{head, behind, {Do: skipInPSQL, Wait: 70_000_000}}},
		{"skip by command", 0, []modelStep{head, behind, {Do: skipByCommand, Wait: 5_000_000}}},
		{"the head is deleted", 0, []modelStep{head, behind, {Do: deleteParked, Wait: 70_000_000}}},
		{"a held row is deleted in a release", 0, []modelStep{head, behind, {Do: skipByCommand, Wait: 50_000}, {Do: deleteParked, A: 1}}},
		{"a crash between SENT of the head and the release", 0, []modelStep{retried, {Do: insertRows, B: 3, C: 9, Wait: 2_200_000}, {Do: crash}}},
		{"a crash in the middle of a release", 0, []modelStep{head, behind, behind, {Do: skipByCommand, Wait: 60_000}, {Do: crash}}},
		{"two crashes in the middle of a release", 0, []modelStep{
			head, behind, behind, {Do: skipByCommand, Wait: 60_000}, {Do: crash, Wait: 3_200_000}, {Do: crash},
		}},
		{"another instance leads in the middle of a release", 0, []modelStep{head, behind, {Do: skipByCommand, Wait: 30_000}, {Do: depose}}},
		{"a locked row among held ones", 0, []modelStep{head, behind, {Do: lockParked, A: 2, B: 9}, {Do: skipByCommand, Wait: 20_000_000}}},
		{"a held row made due by hand", 0, []modelStep{head, behind, {Do: hastenHeld, A: 2, Wait: 3_000_000}, {Do: skipInPSQL}}},
		{"a held row made due by hand in a release", 0, []modelStep{head, behind, {Do: skipByCommand, Wait: 20_000}, {Do: hastenHeld, A: 1}}},
		{"parked rows delivered again", 0, []modelStep{head, {Do: insertRows, B: 3, C: 9, Wait: 100_000}, {Do: crash}, {Do: crash, Wait: 8_000_000}}},
		{"a replay in the middle of an outage of its topic", 0, []modelStep{
			head, behind, {Do: denyTopic}, {Do: mendRecords}, {Do: replay, Wait: 9_000_000}, {Do: allowTopics, Wait: 9_000_000},
		}},
		{"a silent partition with an aggregate that is blocked", 0, []modelStep{
			head, {Do: silencePart, A: 1, Wait: 1}, behind, {Do: insertRows, A: 7}, {Do: skipByCommand, Wait: 45_000_000},
			{Do: insertRows, A: 7}, {Do: answerAll, Wait: 200_000}, behind,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := c.seed; seed != c.seed+20; seed++ {
				modeltest.Case(t, seed, modelProgram{Seed: seed, Steps: c.steps}, runModel)
			}
		})
	}
}
