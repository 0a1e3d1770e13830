package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Once records in tx, before the effect, that an event is done for a purpose.
// first is true for one transaction that commits, of all that ever try; if it is
// false, the effect is there, or another attempt's outcome is, so do nothing. A
// concurrent call waits for the first one's transaction to end.
//
// The receipt is in the table outbox_receipt, as tx's search_path finds it; see
// package tables. It must be kept for as long as the event can come again.
// Under REPEATABLE READ or SERIALIZABLE the one that waited gets a serialization
// error (SQLSTATE 40001): repeat the transaction.
func Once(ctx context.Context, tx pgx.Tx, id outbox.ID, purpose string) (first bool, err error) {
	switch {
	case id.IsZero():
		return false, errors.New("recording an event as done: it has no id")
	case !purposeName.MatchString(purpose):
		return false, fmt.Errorf("recording an event as done: %w", errPurpose)
	}
	_, _, first, err = store.NewReceipts(tx, tables.Receipt, purpose, "", 0, 0).Insert(ctx, tx, id)
	return first, err
}
