package recovery

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Topics keeps the pinned partition counts of cdc_relay_topic: the partition
// of a key must not change because somebody adds partitions. It is as safe for
// concurrent use as its DB is.
type Topics struct {
	db           DB
	insert, read string
}

// NewTopics returns the Topics of a schema. It does no I/O.
func NewTopics(db DB, schema string) *Topics {
	table := pgx.Identifier{schema, "cdc_relay_topic"}.Sanitize()
	return &Topics{
		db: db,
		insert: "INSERT INTO " + table + " (topic, partitions, changed_at) VALUES ($1, $2, clock_timestamp())" +
			" ON CONFLICT (topic) DO NOTHING",
		read: "SELECT partitions FROM " + table + " WHERE topic = $1",
	}
}

// Pin returns the pinned partition count of a topic. A topic that is seen for
// the first time is pinned at present, the count it has in Kafka.
func (t *Topics) Pin(ctx context.Context, topic string, present int) (pinned int, err error) {
	var batch pgx.Batch
	batch.Queue(t.insert, topic, present)
	batch.Queue(t.read, topic).QueryRow(func(row pgx.Row) error { return row.Scan(&pinned) })
	if err := t.db.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, fmt.Errorf("pinning the partition count of topic %s: %w", topic, err)
	}
	return pinned, nil
}
