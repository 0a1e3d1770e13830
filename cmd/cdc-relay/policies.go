package main

import (
	"math/rand/v2"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/retrysched"
)

// newPolicies is what happens to failed events, by aggregate type.
func newPolicies(c *config.Config) (*retrysched.Policies, error) {
	byType := map[string]retrysched.TypePolicy{}
	for _, name := range c.TypesWithPolicy() {
		byType[name] = typePolicy(c.Retry.Of(name), c.Failure.Blocks(name))
	}
	return retrysched.NewPolicies(typePolicy(c.Retry.RetryPolicy, c.Failure.Blocks("")), byType)
}

// orderExceptions names the aggregate types for which the opposite of
// failure.on_failure holds, sorted.
func orderExceptions(c *config.Config) []string {
	var except []string
	for _, name := range c.TypesWithPolicy() {
		if c.Failure.Blocks(name) != c.Failure.Blocks("") {
			except = append(except, name)
		}
	}
	return except
}

func typePolicy(p config.RetryPolicy, block bool) retrysched.TypePolicy {
	return retrysched.TypePolicy{
		Policy: retrysched.Policy{
			Base:             p.Base,
			Jitter:           p.Jitter,
			MaxAttempts:      int32(p.MaxAttempts),
			TopicMaxAttempts: int32(p.TopicMaxAttempts),
			Random:           rand.Float64,
		},
		Block: block,
	}
}
