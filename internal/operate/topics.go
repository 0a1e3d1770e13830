package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Topic is a topic whose partition count is pinned.
type Topic struct {
	Name   string
	Pinned int // partitions that keys are spread over
	Wanted int // what a person has asked for and the leader is to switch to; 0: nothing
	// ChangedAt is when the pinned count was last set.
	ChangedAt Moment
}

// Topics reads and changes the pinned partition counts. Not safe for concurrent
// use.
type Topics struct {
	conn                *pgx.Conn
	list, repin, person string
}

// NewTopics returns the Topics beside an outbox table. person is the operating
// system's name of who acts, for the audit trail. It does no I/O.
func NewTopics(conn *pgx.Conn, outbox pg.Table, person string) *Topics {
	topics, audit := outbox.Sibling("cdc_relay_topic").Ident(), outbox.Sibling("cdc_relay_audit").Ident()
	return &Topics{
		conn: conn, person: person,
		list: `SELECT topic, partitions, coalesce(wanted, 0), changed_at FROM ` + topics + ` ORDER BY topic COLLATE "C"`,
		repin: `
WITH changed AS (
  UPDATE ` + topics + ` SET wanted = $3 WHERE topic = $1 AND partitions = $2
  RETURNING topic)
INSERT INTO ` + audit + ` (actor, action, reason, filter)
SELECT ` + actorSQL + `, 'repin', $5::text, format('topic %s: %s -> %s partitions', topic, $2::int, $3::int) FROM changed`,
	}
}

// List returns all topics, by name.
func (t *Topics) List(ctx context.Context) ([]Topic, error) {
	rows, err := t.conn.Query(ctx, t.list)
	if err != nil {
		return nil, fmt.Errorf("reading the pinned topics: %w", explain(err))
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Topic])
	if err != nil {
		return nil, fmt.Errorf("reading the pinned topics: %w", explain(err))
	}
	return list, nil
}

// ErrChanged says that somebody else has changed a topic's pinned count
// meanwhile.
var ErrChanged = errors.New("the pinned partition count has changed meanwhile; look at cdc-relay topics list and decide again")

// Repin asks the leader to spread the keys of a topic over wanted partitions
// instead of the pinned ones, and audits that. The leader first drains the
// topic. ErrChanged says that the topic is no longer as it was listed.
func (t *Topics) Repin(ctx context.Context, topic Topic, wanted int, reason string) error {
	tag, err := t.conn.Exec(ctx, t.repin, topic.Name, topic.Pinned, wanted, t.person, orNull(reason))
	if err != nil {
		return fmt.Errorf("repinning topic %s: %w", topic.Name, explain(err))
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("repinning topic %s: %w", topic.Name, ErrChanged)
	}
	return nil
}

// Partitions asks Kafka how many partitions these topics have. A topic that the
// cluster does not show, or not to this login, is missing in the answer.
func Partitions(ctx context.Context, client *kafka.Client, topics []string) (map[string]int, error) {
	present := make(map[string]int, len(topics))
	if len(topics) == 0 {
		return present, nil // an empty list would be all topics
	}
	answer, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	for _, topic := range answer.Topics {
		if len(topic.Partitions) > 0 {
			present[topic.Name] = len(topic.Partitions)
		}
	}
	return present, nil
}
