package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestOneTroubleHidesNoOther: a table is missing that is asked for all the time,
// and so is another one. Whoever reads the log must learn of both, and not be
// flooded.
func TestOneTroubleHidesNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c := &Consumer{log: slog.New(slog.NewTextHandler(&log, nil))}
		missing := func(table string) error {
			return fmt.Errorf("asking for it: %w", &pgconn.PgError{Severity: "ERROR", Code: "42P01", Message: table + " does not exist"})
		}
		for range 20 {
			for _, err := range []error{missing("quarantine"), missing("outbox"), errors.New("connection 1"), errors.New("connection 2")} {
				c.trouble(t.Context(), err)
			}
			<-time.After(time.Second)
		}
		for what, want := range map[string]int{"quarantine": 2, "outbox": 2, "connection": 2} {
			if n := strings.Count(log.String(), what); n != want {
				t.Errorf("%s was told %d times, want %d", what, n, want)
			}
		}
		<-time.After(time.Minute)
		log.Reset()
		for i := range 1000 {
			c.trouble(t.Context(), missing(fmt.Sprint("t", i)))
		}
		if n := strings.Count(log.String(), "42P01"); n != maxTroubles {
			t.Errorf("%d different ones were told at once, want %d", n, maxTroubles)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		log.Reset()
		if c.trouble(ended, missing("late")); log.Len() != 0 {
			t.Errorf("told after the end: %s", log.String())
		}
	})
}
