package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Backup is a base backup of a server, and the WAL that it archives since.
type Backup struct {
	of, copy *Cluster
	archive  string // folder
}

// TakeBackup copies the files of a running server, which must have been started
// with archive_mode = on, and lets it archive its WAL. Slots are not in the
// copy.
func (c *Cluster) TakeBackup(t testing.TB) *Backup {
	t.Helper()
	b := &Backup{of: c, copy: newCluster(t, c.Version)}
	b.archive = filepath.Join(filepath.Dir(b.copy.Dir), "archive")
	if err := os.Mkdir(b.archive, 0o700); err != nil {
		t.Fatalf("making a folder for archived WAL: %v", err)
	}
	c.own(t, b.archive)
	c.Configure(t, fmt.Sprintf("archive_command = 'cp %%p %s/%%f'", b.archive))
	execSQL(t, c.DSN("postgres"), "SELECT pg_reload_conf()")
	b.copy.copyOf(t, c)
	return b
}

// Recover starts the copy as it was at a time by the server's clock: a primary
// on a new timeline. Something must have been committed since; the original
// must be running, and goes on. It can be called once.
func (b *Backup) Recover(t testing.TB, at time.Time) *Cluster {
	t.Helper()
	b.archiveAll(t)
	b.copy.writeFile(t, "recovery.signal", "")
	b.copy.Configure(t,
		fmt.Sprintf("restore_command = 'cp %s/%%f %%p'", b.archive),
		fmt.Sprintf("recovery_target_time = '%s'", at.Format("2006-01-02 15:04:05.999999-07:00")),
		"recovery_target_action = 'promote'",
		"archive_mode = off")
	b.copy.Start(t)
	conn := connect(t, b.copy.DSN("postgres"))
	defer conn.Close(context.Background())
	Eventually(t, "the end of recovery", func() bool {
		var recovering bool
		if err := conn.QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&recovering); err != nil {
			t.Fatalf("asking for the end of recovery: %v", err)
		}
		return !recovering
	}, func() string { return "in recovery" })
	return b.copy
}

// archiveAll waits until all WAL of now is in the archive.
func (b *Backup) archiveAll(t testing.TB) {
	t.Helper()
	conn := connect(t, b.of.DSN("postgres"))
	defer conn.Close(context.Background())
	var last string
	if err := conn.QueryRow(t.Context(), "SELECT pg_walfile_name(pg_switch_wal())").Scan(&last); err != nil {
		t.Fatalf("switching to another WAL file: %v", err)
	}
	var done string
	Eventually(t, "WAL file "+last+" to be archived", func() bool {
		if err := conn.QueryRow(t.Context(), "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver").Scan(&done); err != nil {
			t.Fatalf("asking what is archived: %v", err)
		}
		return done >= last
	}, func() string { return "archived up to " + done })
}
