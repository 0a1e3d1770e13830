package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// The line reads from a real replication connection, whose server follows a
// script: the orders that the protocol allows and a real server seldom shows.
func TestScriptedWalsender(t *testing.T) {
	t.Parallel()
	row := func(id int64) waltest.Row { return waltest.Row{ID: id, Payload: []byte("{}")} }
	var b waltest.Builder
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   pglogrepl.LSN // confirmed while nothing is acknowledged
		after  pglogrepl.LSN // confirmed once everything is
		ids    []int64
	}{
		{"a keepalive beyond an unresolved event", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Transaction(100, 110, 1, row(1)), b.Keepalive(900, true),
		}, 50, 900, []int64{1}},
		{"a keepalive inside a transaction", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Begin(100, 1), b.Keepalive(100, true), b.Insert(row(1)),
			b.Keepalive(100, true), b.Insert(row(2)), b.Commit(110),
		}, 50, 110, []int64{1, 2}},
		{"an empty transaction behind an unresolved event", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Transaction(100, 110, 1, row(1)), b.Transaction(200, 210, 2),
		}, 50, 210, []int64{1}},
		{"commits in order, records starting further back", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Transaction(300, 310, 5, row(2)), b.Transaction(400, 410, 3, row(1)),
		}, 50, 410, []int64{2, 1}},
		{"the relation described anew between two rows", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Begin(100, 1), b.Insert(row(1)), b.Relation(), b.Insert(row(2)), b.Commit(110),
		}, 50, 110, []int64{1, 2}},
		{"another table's rows and messages between ours", [][]byte{
			b.Keepalive(50, false), b.Relation(), b.Begin(100, 1), b.RelationOf(7, []waltest.Column{{Name: "x", Type: waltest.TextOID}}),
			b.InsertInto(7, []byte("y")), b.Message("other", "z"), b.Insert(row(1)), b.LooseMessage(105, "other", "z"), b.Commit(110),
		}, 50, 110, []int64{1}},
		{"keepalives that repeat themselves", [][]byte{
			b.Keepalive(50, false), b.Keepalive(50, true), b.Keepalive(40, false), b.Keepalive(50, false),
		}, 50, 50, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for _, id := range c.ids {
				w.set(id, ready, event.Due{})
			}
			w.hold = make(chan struct{})
			quiet, confirmed := make(chan struct{}), make(chan struct{})
			statuses := 0
			server := waltest.Serve(t, waltest.Script{
				waltest.Streaming(0),
				waltest.Send(c.frames...),
				waltest.ExpectConfirmed(c.want),
				waltest.ExpectStatus("no further position, twenty times", func(s waltest.Status) bool {
					if s.Flushed > c.want || s.Applied > c.want {
						t.Errorf("confirmed %s, past what is unresolved", s.Flushed)
					}
					statuses++
					return statuses == 20
				}),
				signal(quiet),
				waltest.ExpectConfirmed(c.after),
				signal(confirmed),
				waltest.ExpectTerminate(c.after),
			})
			stop := start(newRelay(t, w, scripted(w, server), nil))
			<-quiet
			close(w.hold)
			<-confirmed
			if err := stop(); err != nil {
				t.Error(err)
			}
			wantPublished(t, w, c.ids...)
		})
	}
}

func signal(ch chan struct{}) waltest.Step {
	return func(*waltest.Conn) error {
		close(ch)
		return nil
	}
}

// scripted opens w's edges with a real replication connection to server.
func scripted(w *world, server *waltest.Server) Open {
	return func(ctx context.Context, tenure Tenure, in *Inbox) (*Parts, error) {
		conf, err := pgconn.ParseConfig(server.DSN())
		if err != nil {
			return nil, err
		}
		stream, err := wal.Connect(ctx, wal.Config{
			Conn: conf, Slot: "s", Publication: "p", ConfirmInterval: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
		if err := stream.Start(ctx); err != nil {
			stream.Close()
			return nil, err
		}
		parts, err := w.parts(ctx, tenure, in)
		parts.Source = stream
		return parts, err
	}
}
