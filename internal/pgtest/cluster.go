package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/nettest"
)

// Cluster is a PostgreSQL server of one test, on 127.0.0.1, with fsync on and
// every login trusted. It needs CDC_TEST_PG<version>_BIN, the folder of the
// server's programs, and CDC_TEST_TMP, a folder that the server's OS user can
// enter; CDC_TEST_PG_USER names that user when tests run as root.
type Cluster struct {
	Version int
	Dir     string // the data directory
	Port    int
	Env     []string // added to the environment of the server's programs
	bin     string
	log     string
	user    *syscall.Credential // nil: the test's own
}

// StopMode says how a server ends.
type StopMode string

// Fast ends sessions and writes a checkpoint; Immediate is a crash.
const (
	Fast      StopMode = "fast"
	Immediate StopMode = "immediate"
)

// StartCluster makes a cluster and starts it. Each setting is a line of
// postgresql.conf and beats the defaults here. The cluster is stopped and
// removed at the end of the test.
func StartCluster(t testing.TB, version int, settings ...string) *Cluster {
	t.Helper()
	c := newCluster(t, version)
	c.must(t, filepath.Dir(c.Dir), "initdb", "-D", c.Dir, "-U", "postgres", "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync")
	c.Configure(t, append([]string{
		"listen_addresses = '127.0.0.1'",
		fmt.Sprintf("port = %d", c.Port),
		"unix_socket_directories = ''",
		"wal_level = logical",
		"max_wal_senders = 10",
		"max_replication_slots = 10",
		"max_connections = 50",
		"shared_buffers = 32MB",
		"log_line_prefix = '%m [%p] %q%u@%d %a '",
		"timezone = 'UTC'",
	}, settings...)...)
	c.Start(t)
	return c
}

// newCluster makes a folder for a server, which goes with the test.
func newCluster(t testing.TB, version int) *Cluster {
	t.Helper()
	c := &Cluster{
		Version: version,
		bin:     Env(t, fmt.Sprintf("CDC_TEST_PG%d_BIN", version)),
		user:    serverUser(t),
		Port:    freePort(t),
	}
	home, err := os.MkdirTemp(Env(t, "CDC_TEST_TMP"), fmt.Sprintf("pg%d-", version))
	if err != nil {
		t.Fatalf("making a folder for the cluster: %v", err)
	}
	t.Cleanup(func() { c.remove(t, home) })
	c.Dir, c.log = filepath.Join(home, "data"), filepath.Join(home, "log")
	c.own(t, home)
	return c
}

// own gives a file or folder to the server's user.
func (c *Cluster) own(t testing.TB, path string) {
	t.Helper()
	if c.user == nil {
		return
	}
	if err := os.Chown(path, int(c.user.Uid), int(c.user.Gid)); err != nil {
		t.Fatalf("giving the cluster's files to the server's user: %v", err)
	}
}

// Configure appends lines to postgresql.conf; a server that runs reads them
// at its next reload or start.
func (c *Cluster) Configure(t testing.TB, settings ...string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.Dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("configuring the cluster: %v", err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, strings.Join(settings, "\n")); err != nil {
		t.Fatalf("configuring the cluster: %v", err)
	}
}

// Start starts the server and waits until it accepts connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	c.must(t, c.Dir, "pg_ctl", "-D", c.Dir, "-l", c.log, "-w", "-t", "60", "start")
}

// Stop stops the server and waits for its end.
func (c *Cluster) Stop(t testing.TB, mode StopMode) {
	t.Helper()
	c.must(t, c.Dir, "pg_ctl", "-D", c.Dir, "-m", string(mode), "-w", "-t", "60", "stop")
}

// DSN is that of the superuser for a database of the cluster.
func (c *Cluster) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.Port, database)
}

// New makes a database in the cluster. It needs no dropping: it goes with the
// cluster.
func (c *Cluster) New(t testing.TB) *DB {
	t.Helper()
	db := &DB{Version: c.Version, Name: "cdc_test_" + randomName(), admin: c.DSN("postgres")}
	db.DSN = c.DSN(db.Name)
	execSQL(t, db.admin, "CREATE DATABASE "+db.Name+" TEMPLATE template0")
	return db
}

func (c *Cluster) remove(t testing.TB, home string) {
	if _, err := os.Stat(filepath.Join(c.Dir, "postmaster.pid")); err == nil {
		if out, err := c.run(c.Dir, "pg_ctl", "-D", c.Dir, "-m", "immediate", "-w", "stop"); err != nil {
			t.Errorf("stopping the cluster: %v\n%s", err, out)
		}
	}
	if err := os.RemoveAll(home); err != nil {
		t.Errorf("removing the cluster: %v", err)
	}
}

// must runs one of the server's programs and shows what it and the server
// said if it fails.
func (c *Cluster) must(t testing.TB, dir, program string, args ...string) {
	t.Helper()
	if out, err := c.run(dir, program, args...); err != nil {
		log, _ := os.ReadFile(c.log) // it may not be there yet
		t.Fatalf("%s: %v\n%s\nserver log:\n%s", program, err, out, tail(log))
	}
}

// run gives the program files and not pipes for its output: a server that
// keeps a pipe open would keep its reader waiting.
func (c *Cluster) run(dir, program string, args ...string) (output []byte, err error) {
	out, err := os.CreateTemp("", "pgtest-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.Command(filepath.Join(c.bin, program), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user}
	err = cmd.Run()
	output, _ = os.ReadFile(out.Name()) // shown to people only
	return output, err
}

// serverUser is who runs PostgreSQL, which refuses root.
func serverUser(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(Env(t, "CDC_TEST_PG_USER"))
	if err != nil {
		t.Fatalf("looking up the user who runs PostgreSQL: %v", err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		t.Fatalf("user %s has no numeric ids", u.Username)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// freePort stays free while the server is stopped.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := nettest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// tail returns the last lines of a log.
func tail(log []byte) []byte {
	lines := bytes.Split(log, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-20):], []byte("\n"))
}

// Standby lets a stopped server start as a standby, in recovery, with nobody
// to follow.
func (c *Cluster) Standby(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.Dir, "standby.signal"), nil, 0o644); err != nil {
		t.Fatalf("making the cluster a standby: %v", err)
	}
}
