package pg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// answerGrace is what the server's own limit of a statement gets before its
// connection counts as dead.
const answerGrace = 5 * time.Second

// limit bounds the wait for the answer to each statement of a connection. One
// can die without anybody being told: what is sent vanishes, the server's limits
// are no help, and the kernel gives up after a quarter of an hour, or never if
// something between goes on acknowledging. The driver closes a connection whose
// statement was given up, and the caller tries again on another one.
//
// It is given to the driver as a tracer: what that returns at the start of a
// statement is the context of the statement.
type limit time.Duration

func (o Options) limit() limit {
	return limit(orDefault(o.StatementTimeout, DefaultStatementTimeout) + answerGrace)
}

// limitKey is where the end of a limited context is in it.
type limitKey struct{}

func (l limit) begin(ctx context.Context, statements int) context.Context {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(l)*time.Duration(statements))
	return context.WithValue(ctx, limitKey{}, cancel)
}

func (limit) end(ctx context.Context) {
	if cancel, ok := ctx.Value(limitKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

// TraceQueryStart implements pgx.QueryTracer.
func (l limit) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return l.begin(ctx, 1)
}

// TraceQueryEnd implements pgx.QueryTracer: the answer has been read.
func (l limit) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { l.end(ctx) }

// TraceBatchStart implements pgx.BatchTracer.
func (l limit) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return l.begin(ctx, max(1, data.Batch.Len()))
}

// TraceBatchQuery implements pgx.BatchTracer.
func (limit) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer: all answers have been read.
func (l limit) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) { l.end(ctx) }
