package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/consumer/tables"
)

// PurgeOptions say which receipts [PurgeReceipts] removes.
type PurgeOptions struct {
	// Schema holds outbox_receipt, "public" by default.
	Schema string
	// Purpose limits it to the receipts of one; empty means all.
	Purpose string
	// OlderThan is the age above which receipts go. Horizon is that of the
	// consumers, the option of this name: the age up to which records are
	// accepted, at least the retention of their topics. Both are required, and
	// OlderThan must not be below Horizon: a record that came again would look
	// new.
	OlderThan, Horizon time.Duration
	// Page is how many receipts one transaction looks at, 1000 by default; Pause
	// is the time between two.
	Page  int
	Pause time.Duration
}

// PurgeReceipts removes old receipts that are done or waived, in pages, and
// returns how many. Those that wait, are in progress or are FAILED stay. It
// refuses an OlderThan below the Horizon. After an error, or on several
// processes, it can be run again. db must be a pool or a connection, so that
// each page is a transaction of its own; its login needs SELECT, UPDATE and
// DELETE.
func PurgeReceipts(ctx context.Context, db DB, o PurgeOptions) (deleted int64, err error) {
	if db == nil {
		return 0, errors.New("purging receipts: no database: give a pool or a connection")
	}
	page := o.Page
	if page == 0 {
		page = 1000
	}
	return store.Purge{
		Table:   pgx.Identifier{orDefault(o.Schema, defaults().schema), tables.Receipt}.Sanitize(),
		Purpose: o.Purpose, OlderThan: o.OlderThan, Horizon: o.Horizon, Page: page, Pause: o.Pause,
	}.Run(ctx, db)
}
