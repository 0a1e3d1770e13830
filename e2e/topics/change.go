package topics

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Grow sets how many partitions a topic has.
func (a *Admin) Grow(ctx context.Context, topic string, partitions int) error {
	answers, err := a.adm.UpdatePartitions(ctx, partitions, topic)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("giving topic %s %d partitions: %w", topic, partitions, err)
	}
	return nil
}

// Leaders returns the node that leads each partition of a topic, -1 for one
// without leader.
func (a *Admin) Leaders(ctx context.Context, topic string) (map[int32]int32, error) {
	details, err := a.adm.ListTopics(ctx, topic)
	if err == nil {
		err = details[topic].Err
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the leaders of topic %s: %w", topic, err)
	}
	leaders := map[int32]int32{}
	for _, p := range details[topic].Partitions {
		leaders[p.Partition] = p.Leader
	}
	return leaders, nil
}

// Allow lets a user write to topics whose names begin with prefix.
func (a *Admin) Allow(ctx context.Context, user, prefix string) error {
	answers, err := a.adm.CreateACLs(ctx, rights(user, prefix))
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	if err != nil {
		return fmt.Errorf("allowing %s to write to %s*: %w", user, prefix, err)
	}
	return nil
}

// Revoke takes back what Allow has given.
func (a *Admin) Revoke(ctx context.Context, user, prefix string) error {
	answers, err := a.adm.DeleteACLs(ctx, rights(user, prefix).AllowHosts())
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	if err != nil {
		return fmt.Errorf("no longer allowing %s to write to %s*: %w", user, prefix, err)
	}
	return nil
}

// rights are those that the documents ask for.
func rights(user, prefix string) *kadm.ACLBuilder {
	return kadm.NewACLs().Allow("User:"+user).Topics(prefix).ResourcePatternType(kadm.ACLPatternPrefixed).
		Operations(kadm.OpWrite, kadm.OpDescribe)
}

// Move puts the partitions of a topic on one broker alone and returns when that
// leads them.
func (a *Admin) Move(ctx context.Context, topic string, broker int32) error {
	leaders, err := a.Leaders(ctx, topic)
	if err != nil {
		return err
	}
	var moves kadm.AlterPartitionAssignmentsReq
	for partition := range leaders {
		moves.Assign(topic, partition, []int32{broker})
	}
	answers, err := a.adm.AlterPartitionAssignments(ctx, moves)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("moving topic %s to broker %d: %w", topic, broker, err)
	}
	return a.awaitLeader(ctx, topic, broker)
}

func (a *Admin) awaitLeader(ctx context.Context, topic string, broker int32) error {
	err := poll(ctx, func() (bool, error) {
		leaders, err := a.Leaders(ctx, topic)
		return err == nil && onlyLeader(leaders, broker), err
	})
	if err != nil {
		return fmt.Errorf("waiting for broker %d to lead topic %s: %w", broker, topic, err)
	}
	return nil
}

func onlyLeader(leaders map[int32]int32, broker int32) bool {
	for _, leader := range leaders {
		if leader != broker {
			return false
		}
	}
	return true
}
