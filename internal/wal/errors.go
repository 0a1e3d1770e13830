package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// SQLSTATE codes that matter here.
const (
	codeObjectInUse  = "55006" // the slot is active
	codeNotReady     = "55000" // object_not_in_prerequisite_state: the slot is lost, and more
	codeUndefined    = "42704" // no such slot, no such publication
	codeNoPrivilege  = pg.CodeNoPrivilege
	classData        = "22" // data exceptions, whose messages may quote data
	classAuth        = "28"
	skippedSeverity  = "WARNING"
	skippedByRoutine = "LoadPublications"
)

var errEnded = errors.New("the server ended the stream; it may be shutting down")

// answerError is a refusal by the server, as text that is safe to show.
type answerError struct{ answer *pgconn.PgError }

func (e *answerError) Error() string {
	switch e.answer.Code[:min(2, len(e.answer.Code))] {
	case classData, classAuth:
		return fmt.Sprintf("the server answered with SQLSTATE %s", e.answer.Code)
	}
	return fmt.Sprintf("the server answered: %s (SQLSTATE %s)", e.answer.Message, e.answer.Code)
}

func (e *answerError) Unwrap() error { return e.answer }

// safe replaces a refusal by the server in err's chain, and the driver's words
// around it, by one line that is safe to show.
func safe(err error) error {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return &answerError{answer}
	}
	return err
}

// lost names the end of a connection that the server did not announce.
func lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("reading the stream: the server closed the connection without a word: %w", err)
	}
	return fmt.Errorf("reading the stream: %w", err)
}

// connectError explains why no replication connection could be made.
func connectError(err error, conf *pgconn.Config) error {
	if pg.Code(err) == codeNoPrivilege {
		return &fault.Blocked{
			Reason: "pg.replication_conn",
			What:   fmt.Sprintf("user %q may not open a replication connection", conf.User),
			Remedy: fmt.Sprintf(`run ALTER ROLE %q REPLICATION (on RDS: GRANT rds_replication TO %[1]q)`, conf.User),
			Err:    err,
		}
	}
	return pg.Explain(err)
}

func noLogicalWAL(level string) error {
	return &fault.Blocked{
		Reason: "pg.wal_level",
		What:   fmt.Sprintf("wal_level is %s, logical decoding needs logical", level),
		Remedy: "run ALTER SYSTEM SET wal_level = logical and restart PostgreSQL, or set the parameter of your provider (rds.logical_replication, cloudsql.logical_decoding)",
	}
}

func inRecovery() error {
	return &fault.Blocked{
		Reason: "pg.primary",
		What:   "the server of the replication connection is a standby, in recovery",
		Remedy: "connect to the primary, or list all hosts with target_session_attrs=read-write",
	}
}

// startError explains why START_REPLICATION was refused.
func (s *Stream) startError(ctx context.Context, err error) error {
	blocked := &fault.Blocked{Err: err}
	switch pg.Code(err) {
	case codeUndefined:
		blocked.Reason, blocked.What = "slot.exists", fmt.Sprintf("there is no replication slot %q", s.slot)
		blocked.Remedy = "run: cdc-relay slot create"
	case codeNoPrivilege:
		blocked.Reason, blocked.What = "pg.replication_conn", "the login may not use replication slots"
		blocked.Remedy = "give the role the REPLICATION attribute (on RDS: GRANT rds_replication)"
	case codeNotReady:
		return s.unusableSlot(ctx, err)
	default:
		return fmt.Errorf("starting to stream from slot %q: %w", s.slot, safe(err))
	}
	return blocked
}

// streamError explains an error that ended the stream.
func streamError(answer *pgproto3.ErrorResponse) error {
	return fmt.Errorf("streaming: %w", &answerError{pgconn.ErrorResponseToPgError(answer)})
}

// errNoPublication ends a stream that has met a time without publication.
var errNoPublication = errors.New("the publication does not exist at this point of the WAL")

// notice refuses the one warning that means loss: from 18 on the server
// skips a publication that did not exist when the change was made.
func notice(body []byte) error {
	var n pgproto3.NoticeResponse
	if err := n.Decode(body); err != nil {
		return fmt.Errorf("reading a notice of the server: %w", err)
	}
	skipped := n.Routine == skippedByRoutine || strings.HasPrefix(n.Message, "skipped loading publication")
	if n.SeverityUnlocalized == skippedSeverity && skipped {
		return errNoPublication
	}
	return nil
}

// recreate is what cures a slot that cannot be streamed any more.
func recreate(slot string) string {
	return fmt.Sprintf("run: cdc-relay slot recreate --confirm %s: what is READY is then published from the table, so nothing is lost", slot)
}

// explain finishes the error that ended a stream: only the database can tell
// whether a publication is missing or merely younger than the slot.
func (s *Stream) explain(ctx context.Context, err error) error {
	if pg.Code(err) != codeUndefined && !errors.Is(err, errNoPublication) {
		return err
	}
	if s.publicationExists(ctx) {
		return &fault.Blocked{
			Reason: "pub.young",
			What:   fmt.Sprintf("publication %q is younger than the position of slot %q", s.publication, s.slot),
			Remedy: recreate(s.slot),
			Err:    err,
		}
	}
	return &fault.Blocked{
		Reason: "pub.exists",
		What:   fmt.Sprintf("publication %q does not exist", s.publication),
		Remedy: fmt.Sprintf(`run CREATE PUBLICATION %q FOR TABLE <outbox table> WITH (publish = 'insert'), or cdc-relay init --apply`, s.publication),
		Err:    err,
	}
}
