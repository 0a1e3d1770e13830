package recovery

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// Topics keeps the pinned partition counts of cdc_relay_topic: the partition
// of a key must not change because somebody adds partitions. It is as safe for
// concurrent use as its DB is.
type Topics struct {
	cfg                                Config
	insert, read, wanted, repin, fence string
}

// Topics returns the Topics beside the rows' table. It does no I/O.
func (r *Rows) Topics() *Topics {
	cfg := r.cfg
	table := cfg.Table.Sibling("cdc_relay_topic").Ident()
	fence := "SELECT FROM " + cfg.Table.Sibling("cdc_relay_slot").Ident() + " WHERE slot = $1 AND epoch = $2 AND owner = $3"
	return &Topics{
		cfg: cfg,
		insert: "INSERT INTO " + table + " (topic, partitions, changed_at) VALUES ($1, $2, clock_timestamp())" +
			" ON CONFLICT (topic) DO NOTHING",
		read:   "SELECT partitions FROM " + table + " WHERE topic = $1",
		wanted: "SELECT topic, wanted FROM " + table + " WHERE wanted IS NOT NULL",
		repin: "WITH e AS MATERIALIZED (" + fence + " FOR SHARE)" +
			" UPDATE " + table + " SET partitions = wanted, wanted = NULL, changed_at = clock_timestamp()" +
			" WHERE topic = $4 AND wanted = $5 AND EXISTS (SELECT FROM e)",
		fence: "SELECT EXISTS (" + fence + ")",
	}
}

// Pin returns the pinned partition count of a topic. A topic that is seen for
// the first time is pinned at present, the count it has in Kafka.
func (t *Topics) Pin(ctx context.Context, topic string, present int) (pinned int, err error) {
	var batch pgx.Batch
	batch.Queue(t.insert, topic, present)
	batch.Queue(t.read, topic).QueryRow(func(row pgx.Row) error { return row.Scan(&pinned) })
	if err := t.cfg.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, fmt.Errorf("pinning the partition count of topic %s: %w", topic, err)
	}
	return pinned, nil
}

// Wanted returns, by topic, the partition counts that a person wants to be
// pinned instead of the present ones.
func (t *Topics) Wanted(ctx context.Context) (map[string]int, error) {
	wanted := map[string]int{}
	var batch pgx.Batch
	batch.Queue(t.wanted).Query(func(rows pgx.Rows) error {
		var topic string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&topic, &n}, func() error {
			wanted[topic] = n
			return nil
		})
		return err
	})
	if err := t.cfg.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("reading the wanted partition counts: %w", err)
	}
	return wanted, nil
}

// Repin pins wanted, if that is still what is wanted, and returns what is
// pinned then. The error is fault.ErrFenced when the tenure has ended.
func (t *Topics) Repin(ctx context.Context, topic string, wanted int) (pinned int, err error) {
	tenure := []any{t.cfg.Slot, t.cfg.Epoch, t.cfg.Owner}
	leads := false
	var batch pgx.Batch
	batch.Queue(t.repin, append(tenure, topic, wanted)...)
	batch.Queue(t.fence, tenure...).QueryRow(func(row pgx.Row) error { return row.Scan(&leads) })
	batch.Queue(t.read, topic).QueryRow(func(row pgx.Row) error { return row.Scan(&pinned) })
	if err := t.cfg.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, fmt.Errorf("changing the pinned partition count of topic %s: %w", topic, err)
	}
	if !leads {
		return 0, fault.ErrFenced
	}
	return pinned, nil
}
