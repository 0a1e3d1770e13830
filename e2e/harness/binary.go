// Package harness gives each end-to-end test a world of its own: a database,
// topics, a slot and publication made by the relay's own commands, relay
// processes, and where a test needs it a broker or a proxy. Bed.Finish ends
// every test with the one checker of package check.
//
// Servers are named by the variables of package pgtest, and CDC_TEST_KAFKA
// (host:port of the shared broker), CDC_TEST_KAFKA_LIBS and CDC_TEST_JAVA (for
// brokers of a test's own).
package harness

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
)

// Build is a way to compile the relay.
type Build int

// Race has the race detector, Plain is what users run.
const (
	Race Build = iota
	Plain
)

var builds = [...]func() (string, error){
	Race:  sync.OnceValues(func() (string, error) { return compile("-race") }),
	Plain: sync.OnceValues(func() (string, error) { return compile() }),
}

// Binary compiles the relay once a test run and returns its path.
func Binary(t testing.TB, b Build) string {
	t.Helper()
	path, err := builds[b]()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	binariesMu sync.Mutex
	binaries   []string // folders
)

func compile(flags ...string) (string, error) {
	dir, err := os.MkdirTemp("", "cdc-relay-e2e-")
	if err != nil {
		return "", fmt.Errorf("making a folder for the relay's program: %w", err)
	}
	binariesMu.Lock()
	binaries = append(binaries, dir)
	binariesMu.Unlock()
	path := filepath.Join(dir, "cdc-relay")
	args := append([]string{"build", "-o", path}, flags...)
	out, err := exec.Command("go", append(args, "github.com/cdc-relay/cdc-relay/cmd/cdc-relay")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the relay: %w\n%s", err, out)
	}
	return path, nil
}

// lanes is how many tests run side by side unless -parallel says so: much of
// their time they wait for servers, clocks and time-outs.
const lanes = "6"

// Main is the TestMain of packages that use this one. A consumer under test is
// this same program.
func Main(m *testing.M) {
	if consumerproc.Asked() {
		os.Exit(consumerproc.Main())
	}
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", lanes); err != nil {
			panic(err) // only if the testing package has renamed it
		}
	}
	code := m.Run()
	if err := removeBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func removeBinaries() error {
	binariesMu.Lock()
	defer binariesMu.Unlock()
	for _, dir := range binaries {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing the relay's program: %w", err)
		}
	}
	return nil
}
