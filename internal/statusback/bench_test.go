package statusback_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// BenchmarkSent writes SENT to rows of a real server, handed over in the
// portions in which acks arrive. ns/op is per row.
func BenchmarkSent(b *testing.B) {
	f := setup(b, pgtest.New(b, 18))
	f.exec(b, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'o-' || i, 'created', decode(repeat('ab', 200), 'hex') FROM generate_series(1, $1::int) i`, b.N)
	refs := make([]event.Ref, b.N)
	for i := range refs {
		refs[i] = event.Ref{Seq: event.Seq(i), ID: int64(i + 1), XID: 1}
	}
	f.out.countOnly()
	b.ReportAllocs()
	b.ResetTimer()
	for rest := refs; len(rest) > 0; {
		n := min(len(rest), 130)
		f.Sent(rest[:n])
		rest = rest[n:]
	}
	f.out.waitFor(b, "all rows", func() bool { return f.out.total == len(refs) })
	b.StopTimer()
	if n := f.count(b, isSent); n != len(refs) {
		b.Errorf("%d rows are SENT, want %d", n, len(refs))
	}
}
