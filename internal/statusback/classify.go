package statusback

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// verdict is what an error of a statement means.
type verdict uint8

const (
	wrote      verdict = iota // no error
	lost                      // no answer: it may have been committed
	lockedOut                 // a lock was not granted in time
	again                     // it may pass
	denied                    // a person must change something about the table or the login
	rowRefused                // a row is refused; others may pass
	fenced                    // leadership is gone
)

var errFenced = fmt.Errorf("writing row states: the epoch of the slot has moved: %w", fault.ErrFenced)

// verdictOf is the one place that decides about errors.
func verdictOf(err error) verdict {
	var answer *pgconn.PgError
	switch {
	case err == nil:
		return wrote
	case errors.Is(err, fault.ErrFenced):
		return fenced
	case fault.AsBlocked(err) != nil: // the login is refused, or it is a standby
		return denied
	case !errors.As(err, &answer):
		return lost
	}
	switch answer.Code {
	case pg.CodeLockNotAvailable:
		return lockedOut
	case pg.CodeUndefinedTable, pg.CodeUndefinedColumn, pg.CodeUndefinedSchema, pg.CodeUndefinedFunction:
		return denied // the table is not what it should be
	case pg.CodeQueryCanceled, // statement_timeout, or a person
		pg.CodeSerialization, pg.CodeDeadlock: // with the application; the other one won
		return again
	}
	switch answer.Code[:min(2, len(answer.Code))] {
	case "53", "58", "XX": // out of disk or memory, I/O errors, internal errors: the server's own trouble
		return again
	}
	return rowRefused
}

// deniedBy words what a person has to change.
func deniedBy(err error, table pg.Table) *fault.Blocked {
	if b := fault.AsBlocked(err); b != nil {
		return b
	}
	return &fault.Blocked{Reason: "table.columns",
		What:   fmt.Sprintf("the table %s, the table %s or a column of them is not there (SQLSTATE %s)", table, table.Sibling(slotTable), pg.Code(err)),
		Remedy: "run: cdc-relay migrate status, and check outbox.table", Err: err}
}

// rowState is what the table says of a row that a statement did not change.
type rowState struct {
	found   bool
	visible bool // the event's transaction is
	status  outbox.Status
	due     event.Due
	placed  bool // it has a commit position
}

// fate is what becomes of a write that changed nothing.
type fate uint8

const (
	unchanged fate = iota // the row is as it was last seen
	invisible             // its transaction is not visible yet
	settled               // the row moved on, or was parked or requeued by somebody else
	gone                  // the row is deleted
	unplaced              // it cannot be held: it has no commit position to be released from
)

// classify is pure. What is not visible yet says nothing about the row, which
// may be there in an older version.
func classify(w write, row rowState) fate {
	switch {
	case !row.visible:
		return invisible
	case !row.found:
		return gone
	case row.status != outbox.Ready || row.due != w.Due:
		return settled
	case w.form() == formHeld && w.CommitLSN == 0 && !row.placed:
		return unplaced
	}
	return unchanged
}
