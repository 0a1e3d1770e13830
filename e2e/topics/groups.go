package topics

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Positions tells where a consumer group stands in each partition of topics.
func (a *Admin) Positions(ctx context.Context, group string, names ...string) ([]check.GroupPosition, error) {
	committed, err := a.adm.FetchOffsets(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("asking for the offsets of group %s: %w", group, err)
	}
	starts, err := a.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("asking where topics %v start: %w", names, err)
	}
	ends, err := a.adm.ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("asking where topics %v end: %w", names, err)
	}
	var positions []check.GroupPosition
	for _, end := range ends.Offsets().Sorted() {
		p := check.GroupPosition{PartitionName: check.PartitionName{Topic: end.Topic, Number: end.Partition}, End: end.At, Committed: -1}
		if start, ok := starts.Lookup(end.Topic, end.Partition); ok {
			p.Start = start.Offset
		}
		if at, ok := committed.Lookup(end.Topic, end.Partition); ok && at.Err == nil {
			p.Committed = at.At
		}
		positions = append(positions, p)
	}
	return positions, nil
}

// Deliveries lists the records that the topics hold when it is called, whatever
// is in them.
func (a *Admin) Deliveries(ctx context.Context, names ...string) ([]check.Delivery, error) {
	var all []check.Delivery
	err := a.each(ctx, names, func(r *kgo.Record) error {
		d := check.Delivery{Place: check.Place{PartitionName: check.PartitionName{Topic: r.Topic, Number: r.Partition}, Offset: r.Offset}}
		for _, h := range r.Headers {
			if h.Key == "ce_id" {
				if raw, err := hex.DecodeString(strings.ReplaceAll(string(h.Value), "-", "")); err == nil && len(raw) == len(d.EventID) {
					d.EventID = [16]byte(raw)
				}
			}
		}
		all = append(all, d)
		return nil
	})
	return all, err
}

// Produce appends records and waits for the acks. Each names its partition,
// which may be a new one: hence a new client.
func (a *Admin) Produce(ctx context.Context, records ...*kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(a.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return fmt.Errorf("making a Kafka client: %w", err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("producing %d records: %w", len(records), err)
	}
	return nil
}

// Members lists the ids of a group's members, and tells its state; none for one
// that is not there.
func (a *Admin) Members(ctx context.Context, group string) (ids []string, state string, err error) {
	groups, err := a.adm.DescribeGroups(ctx, group)
	if err == nil {
		err = groups[group].Err
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, "", fmt.Errorf("asking for the members of group %s: %w", group, err)
	}
	for _, m := range groups[group].Members {
		ids = append(ids, m.MemberID)
	}
	return ids, groups[group].State, nil
}

// Expel makes members leave a group, as they would after their session has
// run out.
func (a *Admin) Expel(ctx context.Context, group string, ids ...string) error {
	request := kmsg.NewPtrLeaveGroupRequest()
	request.Group = group
	for _, id := range ids {
		leaver := kmsg.NewLeaveGroupRequestMember()
		leaver.MemberID = id
		request.Members = append(request.Members, leaver)
	}
	answer, err := request.RequestWith(ctx, a.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("making members of group %s leave: %w", group, err)
	}
	return nil
}

// Seek sets a group's offset in a partition. The group must have no members.
func (a *Admin) Seek(ctx context.Context, group string, p check.PartitionName, offset int64) error {
	var to kadm.Offsets
	to.AddOffset(p.Topic, p.Number, offset, -1)
	answers, err := a.adm.CommitOffsets(ctx, group, to)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("setting the offset of group %s in %s/%d: %w", group, p.Topic, p.Number, err)
	}
	return nil
}

// Trim deletes the records of a partition below an offset.
func (a *Admin) Trim(ctx context.Context, p check.PartitionName, offset int64) error {
	var to kadm.Offsets
	to.AddOffset(p.Topic, p.Number, offset, -1)
	answers, err := a.adm.DeleteRecords(ctx, to)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("deleting records of %s/%d: %w", p.Topic, p.Number, err)
	}
	return nil
}

// DeleteGroups removes groups without members. One that is not there is no
// error.
func (a *Admin) DeleteGroups(ctx context.Context, groups ...string) error {
	answers, err := a.adm.DeleteGroups(ctx, groups...)
	for _, answer := range answers {
		if err == nil && !errors.Is(answer.Err, kerr.GroupIDNotFound) {
			err = answer.Err
		}
	}
	if err != nil {
		return fmt.Errorf("deleting groups %v: %w", groups, err)
	}
	return nil
}
