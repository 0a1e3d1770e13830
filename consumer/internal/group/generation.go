package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/segmentio/kafka-go"
)

// ErrRevoked says that a generation of the group has ended: its partitions may
// be somebody else's.
var ErrRevoked = errors.New("the generation of the consumer group has ended")

// Generation is what a member has between two rebalances.
type Generation struct {
	// ID counts the group's generations.
	ID int32
	// Assignments are the partitions of this member, by topic and number.
	Assignments []Assignment

	kgen *kafka.Generation
	over atomic.Bool // work has returned
}

func newGeneration(kgen *kafka.Generation) *Generation {
	g := &Generation{ID: kgen.ID, kgen: kgen}
	for topic, list := range kgen.Assignments {
		for _, a := range list {
			g.Assignments = append(g.Assignments, Assignment{Partition{topic, a.ID}, a.Offset})
		}
	}
	slices.SortFunc(g.Assignments, func(a, b Assignment) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Number, b.Number))
	})
	return g
}

// Commit commits for each partition the offset that is to be read next. An
// [ErrRevoked] is final; after any other error it may be tried again, and may
// have taken effect. Nothing is sent if ctx has ended; once sent it takes up to
// the request timeout of 5 s, whatever ctx does.
//
// The broker does not check whose the partitions are: they must be this
// generation's. Offsets may go back.
func (g *Generation) Commit(ctx context.Context, offsets map[Partition]int64) error {
	if len(offsets) == 0 {
		return nil
	}
	if g.over.Load() {
		return fmt.Errorf("committing offsets: %w", ErrRevoked)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("committing offsets: %w", context.Cause(ctx))
	}
	topics := map[string]map[int]int64{}
	for p, offset := range offsets {
		if topics[p.Topic] == nil {
			topics[p.Topic] = map[int]int64{}
		}
		topics[p.Topic][p.Number] = offset
	}
	switch err := g.kgen.CommitOffsets(topics); {
	case err == nil:
		return nil
	case isOver(err):
		return fmt.Errorf("committing offsets: %w: %w", ErrRevoked, err)
	default:
		return fmt.Errorf("committing offsets: %w", err)
	}
}

// isOver tells the answers that no repetition will change.
func isOver(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) || errors.Is(err, kafka.FencedInstanceID)
}
