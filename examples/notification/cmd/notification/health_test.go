package main

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// TestHealth: one that cannot join, as while Kafka is away, has no partition that
// stands still, and was healthy for ever.
func TestHealth(t *testing.T) {
	t.Parallel()
	now, long := time.Now(), time.Now().Add(-2*stallAfter)
	for name, tc := range map[string]struct {
		health consumer.Health
		want   bool
	}{
		"not started":         {consumer.Health{}, true},
		"joining":             {consumer.Health{Since: now}, true},
		"cannot join":         {consumer.Health{Since: long}, false},
		"without partitions":  {consumer.Health{Joined: true, Since: long}, true},
		"a topic is missing":  {consumer.Health{Since: now, TopicsMissing: []string{"t"}}, false},
		"a partition moves":   {consumer.Health{Joined: true, Since: long, Partitions: []consumer.PartitionHealth{{End: 9, Moved: now}}}, true},
		"a partition is done": {consumer.Health{Joined: true, Since: long, Partitions: []consumer.PartitionHealth{{Position: 9, End: 9, Moved: long}}}, true},
		"a partition stalls":  {consumer.Health{Joined: true, Since: long, Partitions: []consumer.PartitionHealth{{End: 9, Moved: long}}}, false},
	} {
		if got := healthy(tc.health); got != tc.want {
			t.Errorf("%s: healthy %v", name, got)
		}
	}
}
