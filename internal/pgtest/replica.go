package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// replicaSlot is the physical slot of a replica on its primary.
const replicaSlot = "replica"

// StartReplica makes a physical standby of this server, which must be running
// and have none yet, and starts it; it streams when this returns. Each setting
// is a line of its postgresql.conf. It is stopped and removed at the end of the
// test.
func (c *Cluster) StartReplica(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	execSQL(t, c.DSN("postgres"), "SELECT pg_create_physical_replication_slot('"+replicaSlot+"', true)")
	r := newCluster(t, c.Version)
	r.copyOf(t, c)
	r.writeFile(t, "standby.signal", "")
	r.Configure(t, append([]string{
		fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres dbname=postgres application_name=%s'", c.Port, replicaSlot),
		"primary_slot_name = '" + replicaSlot + "'",
	}, settings...)...)
	r.Start(t)
	c.WaitReplica(t)
	return r
}

// WaitReplica waits until the replica of this server has replayed all WAL of
// now.
func (c *Cluster) WaitReplica(t testing.TB) {
	t.Helper()
	conn := connect(t, c.DSN("postgres"))
	defer conn.Close(context.Background())
	var end string
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&end); err != nil {
		t.Fatalf("asking for the end of WAL: %v", err)
	}
	var replayed string
	Eventually(t, "the replica to replay "+end, func() bool {
		var done bool
		err := conn.QueryRow(t.Context(), `SELECT coalesce(replay_lsn >= $1::text::pg_lsn, false), coalesce(replay_lsn::text, 'nothing')
			FROM pg_stat_replication WHERE application_name = '`+replicaSlot+`'`, end).Scan(&done, &replayed)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatalf("asking how far the replica is: %v", err)
		}
		return done
	}, func() string { return "replayed " + replayed })
}

// Promote makes a replica the primary, on a new timeline.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	execSQL(t, c.DSN("postgres"), "SELECT pg_promote(true, 60)")
}

// copyOf makes this cluster's data folder a base backup of a running server.
func (c *Cluster) copyOf(t testing.TB, from *Cluster) {
	t.Helper()
	conn := connect(t, from.DSN("postgres"))
	defer conn.Close(context.Background())
	query := func(sql string) (text string) {
		if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
			t.Fatalf("copying the cluster: %s: %v", sql, err)
		}
		return text
	}
	query("SELECT pg_backup_start('pgtest', true)::text")
	c.copyFiles(t, from.Dir)
	c.writeFile(t, "backup_label", query("SELECT labelfile FROM pg_backup_stop(false)"))
	c.Configure(t, fmt.Sprintf("port = %d", c.Port))
}

// copyFiles copies the data folder of a running server, without what belongs
// to the process, and without its slots.
func (c *Cluster) copyFiles(t testing.TB, from string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(from, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile: the WAL tells about it
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		case entry.IsDir() && strings.HasPrefix(name, "pg_replslot"+string(filepath.Separator)):
			return fs.SkipDir
		case name == "postmaster.pid" || name == "postmaster.opts":
			return nil
		}
		to := filepath.Join(c.Dir, name)
		if entry.IsDir() {
			err = os.Mkdir(to, 0o700)
		} else if err = copyFile(path, to); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			c.own(t, to)
		}
		return err
	})
	if err != nil {
		t.Fatalf("copying the cluster: %v", err)
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func (c *Cluster) writeFile(t testing.TB, name, content string) {
	t.Helper()
	path := filepath.Join(c.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatalf("writing %s: %v", name, err)
	}
	c.own(t, path)
}
