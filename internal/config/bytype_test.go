package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestByType: what is not said of a type is as for all, from a file and from
// the environment.
func TestByType(t *testing.T) {
	t.Parallel()
	const general = "retry.base=3s"
	for _, tc := range []struct {
		name string
		yaml string
		env  []string
	}{
		{name: "file", yaml: "failure: {on_failure: block, by_type: {log: continue}}\nretry:\n  by_type:\n" +
			"    order: {base: 1s, jitter: 0, max_attempts: 3, topic_max_attempts: 0}\n    user: {max_attempts: 7, base: }\n    log:\n"},
		{name: "environment", env: []string{
			"CDC_RELAY_FAILURE__ON_FAILURE=block", `CDC_RELAY_FAILURE__BY_TYPE={"log": "continue"}`,
			`CDC_RELAY_RETRY__BY_TYPE={"order": {"base": "1s", "jitter": "0", "max_attempts": "3", "topic_max_attempts": 0}, "user": {"max_attempts": 7}}`,
		}},
		{name: "environment over file", yaml: "failure: {on_failure: block, by_type: {order: continue}}\nretry: {by_type: {log: {base: 9s}}}", env: []string{
			`CDC_RELAY_FAILURE__BY_TYPE={"log": "continue"}`,
			`CDC_RELAY_RETRY__BY_TYPE={"order": {"base": "1s", "jitter": 0, "max_attempts": 3, "topic_max_attempts": 0}, "user": {"max_attempts": 7}}`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := load(t, minimal+tc.yaml, tc.env, []string{general})
			if err != nil {
				t.Fatal(err)
			}
			c := l.Config
			others := RetryPolicy{Base: 3 * time.Second, Jitter: 0.2, MaxAttempts: 10, TopicMaxAttempts: 100}
			users := others
			users.MaxAttempts = 7
			want := map[string]RetryPolicy{
				"order": {Base: time.Second, MaxAttempts: 3}, "user": users, "log": others, "other": others,
			}
			for name, policy := range want {
				if diff := cmp.Diff(policy, c.Retry.Of(name)); diff != "" {
					t.Errorf("policy of %s (-want +got):\n%s", name, diff)
				}
				if blocks := c.Failure.Blocks(name); blocks != (name != "log") {
					t.Errorf("%s blocks: %t", name, blocks)
				}
			}
			if diff := cmp.Diff([]string{"log", "order", "user"}, c.TypesWithPolicy()); diff != "" {
				t.Errorf("types with a policy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOverridesAreShownAsTheEnvironmentTakesThem reads what it has shown.
func TestOverridesAreShownAsTheEnvironmentTakesThem(t *testing.T) {
	t.Parallel()
	const (
		retry   = `{"order":{"base":"1s","jitter":0.1,"max_attempts":3,"topic_max_attempts":0},"user":{"max_attempts":7}}`
		failure = `{"log":"continue","order":"block"}`
	)
	l, err := load(t, minimal, []string{"CDC_RELAY_RETRY__BY_TYPE=" + retry, "CDC_RELAY_FAILURE__BY_TYPE=" + failure}, nil)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, s := range l.Show() {
		shown[s.Key] = s.Value
	}
	if shown["retry.by_type"] != retry || shown["failure.by_type"] != failure {
		t.Errorf("shown: %s and %s", shown["retry.by_type"], shown["failure.by_type"])
	}
}
