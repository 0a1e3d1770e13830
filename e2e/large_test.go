package e2e

import (
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestLargeValues: a value near the topic's limit arrives whole however the
// table keeps it, and the batch is compressed: from the stream, and read from
// its row when it comes back.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const size = 1_000_000 // bytes
		noise := make([]byte, size)
		rand.Read(noise)
		payloads := []string{strings.Repeat("x", size), string(noise), string(noise[:size/2]) + strings.Repeat("x", size/2)}
		storages := []string{"EXTENDED", "EXTERNAL", "MAIN", "PLAIN"}
		b := newGhostBed(t, db, nil)
		b.StartStreaming(nil)
		rows := 0
		for _, storage := range storages {
			if storage == "PLAIN" {
				payloads = []string{strings.Repeat("x", 5000)} // a page has no place for more
			}
			b.Exec(`ALTER TABLE outbox ALTER payload SET STORAGE ` + storage)
			for i, payload := range payloads {
				aggregate := fmt.Sprint(storage, i)
				b.Insert(harness.Row("order", aggregate, payload))
				b.Insert(harness.Row(ghost, aggregate, payload))
				rows++
			}
		}
		b.Wait("those with a topic to be SENT, and an attempt of each other one", func() bool {
			return b.CountStatus(check.Sent) == rows && b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`) == rows
		})
		createGhost(t, b)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 2*rows })
		b.Finish(harness.Allow{})
	})
}

// copiedRows is how many rows of a COPY a reader yields.
type copiedRows struct {
	left, next int
	rest       []byte
}

// Read yields the next rows, each of another aggregate than its neighbours.
func (c *copiedRows) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(c.rest) == 0 {
			if c.left == 0 {
				break
			}
			c.left--
			c.next++
			c.rest = fmt.Appendf(c.rest[:0], "order\t%d\tcopied\t{\"n\":%d}\n", c.next%200, c.next)
		}
		k := copy(p[n:], c.rest)
		n, c.rest = n+k, c.rest[k:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestAMillionRowsInOneTransaction: the walsender spills them, the relay gets
// them all before it may confirm anything, and stays as small as ever.
func TestAMillionRowsInOneTransaction(t *testing.T) {
	t.Parallel()
	const rows, maxResident = 1_000_000, 96 << 20 // bytes
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), Build: harness.Plain, Types: []string{"order"}})
	relay := b.StartStreaming(nil)
	tag, err := b.Conn().PgConn().CopyFrom(t.Context(), &copiedRows{left: rows},
		`COPY outbox (aggregate_type, aggregate_id, event_type, payload) FROM STDIN`)
	if err != nil || tag.RowsAffected() != rows {
		t.Fatalf("copying rows: %v, %v", tag, err)
	}
	record(t, b, `true`)
	b.Finish(harness.Allow{})
	t.Logf("%d MiB resident at most", relay.PeakMemory()>>20)
	if n := relay.PeakMemory(); n > maxResident {
		t.Errorf("%d MiB resident, want at most %d", n>>20, maxResident>>20)
	}
}
