package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// StartClusterWithClock makes a cluster of PostgreSQL 18 whose clock differs
// from everybody else's.
func StartClusterWithClock(t testing.TB, off time.Duration) *pgtest.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp(pgtest.Env(t, "CDC_TEST_TMP"), "clock-")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755) // the server's user loads what is in it
	}
	if err != nil {
		t.Fatalf("making a folder for the clock: %v", err)
	}
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, fmt.Appendf(nil, clockSource, int(off.Seconds())), 0o600); err != nil {
		t.Fatalf("writing the clock: %v", err)
	}
	// the race detector needs a C compiler as well
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("compiling the clock: %v\n%s", err, out)
	}
	c := pgtest.StartCluster(t, 18)
	c.Stop(t, pgtest.Fast)
	c.Env = []string{"LD_PRELOAD=" + library}
	c.Start(t)
	return c
}

// clockSource stands before the C library's clocks of real time.
const clockSource = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static const time_t off = %d;

int clock_gettime(clockid_t id, struct timespec *ts) {
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int result = real(id, ts);
	if (result == 0 && id == CLOCK_REALTIME)
		ts->tv_sec += off;
	return result;
}

int gettimeofday(struct timeval *tv, void *zone) {
	struct timespec ts;
	int result = clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return result;
}

time_t time(time_t *at) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (at)
		*at = ts.tv_sec;
	return ts.tv_sec;
}
`
