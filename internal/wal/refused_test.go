package wal_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// 18 passes over a publication that is missing with a warning, whatever
// language it is in; 15 to 17 end the stream.
func TestPublicationMissing(t *testing.T) {
	t.Parallel()
	notice := waltest.SendMessage(&pgproto3.NoticeResponse{Severity: "WARNUNG", SeverityUnlocalized: "WARNING", Code: "55000",
		Message: "Publikation »p« wurde nicht geladen", Routine: "LoadPublications"})
	failure := waltest.SendMessage(&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "42704",
		Message: `publication "p" does not exist`})
	exists := waltest.Answer("SELECT 1 FROM pg_catalog.pg_publication", []string{"1"})
	missing := waltest.Answer("SELECT 1 FROM pg_catalog.pg_publication")
	tests := []struct {
		name   string
		end    waltest.Step
		answer waltest.Step
		reason string
	}{
		{"warning, missing", notice, missing, "pub.exists"},
		{"warning, younger than the slot", notice, exists, "pub.young"},
		{"error, missing", failure, missing, "pub.exists"},
		{"error, younger than the slot", failure, exists, "pub.young"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := waltest.Serve(t, waltest.Script{waltest.Streaming(noTimeout), tt.end}, waltest.Script{waltest.Login(nil), tt.answer})
			s := start(t, config(t, server.DSN()))
			wantBlocked(t, s.end(t), tt.reason)
		})
	}
}

// A server, or what stands before it, that accepts and then says nothing: the
// leader waited for it for ever, kept the lease meanwhile, and no standby could
// take over.
func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]waltest.Script{
		"who it is":             {waltest.Login(nil)},
		"that the slot streams": {waltest.Login(nil), waltest.Identify(noTimeout)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			defer close(over)
			server := waltest.Serve(t, append(before, waltest.Wait(over)))
			cfg := config(t, server.DSN())
			cfg.AnswerTimeout = time.Second
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, err := wal.Connect(ctx, cfg)
			if err == nil {
				err = s.Start(ctx)
				s.Close()
			}
			if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || fault.AsBlocked(err) != nil {
				t.Errorf("%v; after a minute: %v", err, ctx.Err())
			}
		})
	}
}

func TestConnectRefused(t *testing.T) {
	t.Parallel()
	const planted = "pl4nted-s3cret"
	tests := []struct {
		name   string
		script waltest.Script
		reason string
	}{
		{"wrong password", waltest.Script{waltest.RefuseLogin("28P01", "password "+planted+" is wrong")}, "pg.connect"},
		{"no pg_hba line", waltest.Script{waltest.RefuseLogin("28000", "no entry for "+planted)}, "pg.connect"},
		{"no REPLICATION", waltest.Script{waltest.RefuseLogin("42501", "permission denied to start WAL sender")}, "pg.replication_conn"},
		{"standby", waltest.Script{waltest.Login(nil), waltest.IdentifyAs(0, "t", "logical")}, "pg.primary"},
		{"wal_level", waltest.Script{waltest.Login(nil), waltest.IdentifyAs(0, "f", "replica")}, "pg.wal_level"},
		{"starting up", waltest.Script{waltest.RefuseLogin("57P03", "the database system is starting up")}, ""},
		{"closed", waltest.Script{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := waltest.Serve(t, tt.script)
			cfg := config(t, server.DSN())
			cfg.Conn.Password = planted
			_, err := wal.Connect(t.Context(), cfg)
			if err == nil || strings.Contains(err.Error(), planted) {
				t.Fatalf("got error %v", err)
			}
			if tt.reason != "" {
				wantBlocked(t, err, tt.reason)
			} else if fault.AsBlocked(err) != nil {
				t.Errorf("%v waits for a person", err)
			}
		})
	}
}

func TestConnectNobodyThere(t *testing.T) {
	t.Parallel()
	_, err := wal.Connect(t.Context(), config(t, "postgres://relay:pl4nted@127.0.0.1:1/app?sslmode=disable"))
	if err == nil || fault.AsBlocked(err) != nil || strings.Contains(err.Error(), "pl4nted") {
		t.Errorf("got error %v, want one that may pass", err)
	}
}

func TestStartRefused(t *testing.T) {
	t.Parallel()
	slot := func(kind, plugin, here, status string) waltest.Step {
		return waltest.Answer("SELECT slot_type", []string{kind, plugin, here, status})
	}
	notReady := waltest.Refuse("START_REPLICATION", "55000", "can no longer access replication slot")
	tests := []struct {
		name   string
		steps  []waltest.Step
		reason string
	}{
		{"no slot", []waltest.Step{waltest.Refuse("START_REPLICATION", "42704", `replication slot "s" does not exist`)}, "slot.exists"},
		{"no right", []waltest.Step{waltest.Refuse("START_REPLICATION", "42501", "permission denied to use replication slots")}, "pg.replication_conn"},
		{"lost", []waltest.Step{notReady, slot("logical", "pgoutput", "t", "lost")}, "slot.wal_status"},
		{"physical", []waltest.Step{notReady, slot("physical", "", "f", "reserved")}, "slot.plugin"},
		{"another plugin", []waltest.Step{notReady, slot("logical", "wal2json", "t", "reserved")}, "slot.plugin"},
		{"another database", []waltest.Step{notReady, slot("logical", "pgoutput", "f", "reserved")}, "slot.database"},
		{"not ready otherwise", []waltest.Step{notReady, slot("logical", "pgoutput", "t", "reserved")}, ""},
		{"anything else", []waltest.Step{waltest.Refuse("START_REPLICATION", "53300", "too many")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := waltest.Serve(t, append(waltest.Script{waltest.Login(nil), waltest.Identify(noTimeout)}, tt.steps...))
			s := connect(t, config(t, server.DSN()))
			defer s.Close()
			err := s.Start(t.Context())
			switch {
			case err == nil:
				t.Fatal("started")
			case tt.reason != "":
				wantBlocked(t, err, tt.reason)
			case fault.AsBlocked(err) != nil:
				t.Errorf("%v waits for a person", err)
			}
		})
	}
}

// A walsender of our own name is terminated, and the next try succeeds.
func TestStartEvictsOurselves(t *testing.T) {
	t.Parallel()
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.Refuse("START_REPLICATION", "55006", `replication slot "s" is active for PID 42`),
		waltest.Answer("SELECT s.active_pid", []string{"42", "cdc-relay/s"}),
		waltest.Answer("SELECT pg_catalog.pg_terminate_backend", []string{"t"}),
		waltest.StartReplication(),
		waltest.ExpectTerminate(0),
	})
	start(t, config(t, server.DSN())).stopClean(t)
}

// A relay that does not lead any more, because it was frozen on its way to the
// stream, leaves the walsender of its successor alone.
func TestStartEvictsOnlyAsLeader(t *testing.T) {
	t.Parallel()
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.Refuse("START_REPLICATION", "55006", `replication slot "s" is active for PID 42`),
		waltest.Answer("SELECT s.active_pid", []string{"42", "cdc-relay/s"}),
	}) // anything more the script would refuse
	cfg := config(t, server.DSN())
	cfg.Permit = func(context.Context) error { return fault.ErrFenced }
	s := connect(t, cfg)
	defer s.Close()
	if err := s.Start(t.Context()); !errors.Is(err, fault.ErrFenced) {
		t.Errorf("got error %v, want ErrFenced", err)
	}
}

// A stranger is left alone; when it goes, we start.
func TestStartWaitsForStranger(t *testing.T) {
	t.Parallel()
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.Refuse("START_REPLICATION", "55006", `replication slot "s" is active for PID 42`),
		waltest.Answer("SELECT s.active_pid", []string{"42", "pg_recvlogical"}),
		waltest.Refuse("START_REPLICATION", "55006", `replication slot "s" is active for PID 42`),
		waltest.Answer("SELECT s.active_pid", []string{"", ""}),
		waltest.StartReplication(),
		waltest.ExpectTerminate(0),
	})
	start(t, config(t, server.DSN())).stopClean(t)
}

func TestStartGivesUpWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := waltest.Serve(t, waltest.Script{
		waltest.Login(nil), waltest.Identify(noTimeout),
		waltest.Refuse("START_REPLICATION", "55006", `replication slot "s" is active for PID 42`),
		func(c *waltest.Conn) error {
			defer cancel()
			return waltest.Answer("SELECT s.active_pid", []string{"42", "pg_recvlogical"})(c)
		},
	})
	s := connect(t, config(t, server.DSN()))
	defer s.Close()
	if err := s.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want the context's", err)
	}
}
