package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

func TestNewPolicies(t *testing.T) {
	t.Parallel()
	policies, err := newPolicies(loadTest(t, "CDC_RELAY_RETRY__JITTER=0", "CDC_RELAY_FAILURE__ON_FAILURE=block",
		`CDC_RELAY_FAILURE__BY_TYPE={"log": "continue"}`,
		`CDC_RELAY_RETRY__BY_TYPE={"order": {"base": "1s", "max_attempts": 3, "topic_max_attempts": 2}}`))
	if err != nil {
		t.Fatal(err)
	}
	record, topic := event.Failure{Class: event.ClassRecord}, event.Failure{Class: event.ClassTopic}
	type answer struct {
		Block   bool
		Delay   time.Duration
		Failed  bool // after three failures of the record
		NoTopic bool // after two failures of the topic
	}
	for _, tc := range []struct {
		name, aggregateType string
		want                answer
	}{
		{"retry by type", "order", answer{Block: true, Delay: time.Second, Failed: true, NoTopic: true}},
		{"failure by type", "log", answer{Delay: 5 * time.Second}},
		{"no type of its own", "user", answer{Block: true, Delay: 5 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got answer
			kind, block := policies.Of([]byte(tc.aggregateType))
			got.Block = block
			got.Delay, _ = policies.Next(kind, 0, record)
			_, got.Failed = policies.Next(kind, 2, record)
			_, got.NoTopic = policies.Next(kind, 1, topic)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrderExceptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, mode, byType string
		want               []string
	}{
		{"none", "block", "", nil},
		{"block, and some continue", "block", `{"z": "continue", "a": "continue", "same": "block"}`, []string{"a", "z"}},
		{"continue, and one blocks", "continue", `{"a": "block", "same": "continue"}`, []string{"a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := loadTest(t, "CDC_RELAY_FAILURE__ON_FAILURE="+tc.mode, "CDC_RELAY_FAILURE__BY_TYPE="+tc.byType, `CDC_RELAY_RETRY__BY_TYPE={"retried": {"base": "1s"}}`)
			if diff := cmp.Diff(tc.want, orderExceptions(c)); diff != "" {
				t.Errorf("exceptions (-want +got):\n%s", diff)
			}
		})
	}
}
