package relayproc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func TestCrash(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, output, want string
	}{
		{"a clean log", "time=1 level=INFO msg=\"no panic: all is well\"\n", ""},
		{"a data race", "x\nWARNING: DATA RACE\nRead at\n", "WARNING: DATA RACE\nRead at"},
		{"a panic", "x\npanic: boom\n\ngoroutine 1 [running]:\n", "panic: boom\n\ngoroutine 1 [running]:"},
		{"a trace", "goroutine 17 [running]:\nmain.f()", "goroutine 17 [running]:\nmain.f()"},
		{"a fatal error", "fatal error: all goroutines are asleep", "fatal error: all goroutines are asleep"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := Crash(tc.output); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestConfigIsWrittenAsATree(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.yaml")
	c := Config{"a.b": 1, "a.c.d": "x", "gone": true}.With(Config{"a.b": []string{"y"}, "gone": nil})
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": map[string]any{"b": []any{"y"}, "c": map[string]any{"d": "x"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, script string
		end          func(*Process) error
		code         int
	}{
		{"ends by itself", "echo one; echo two >&2; exit 7", func(*Process) error { return nil }, 7},
		{"is asked to stop", "trap 'exit 3' TERM; echo one; echo two; while :; do read -t 1 <> <(:); done", func(p *Process) error { return p.Stop(time.Minute) }, 3},
		{"is frozen and asked to stop", "trap 'exit 3' TERM; echo one; echo two; while :; do read -t 1 <> <(:); done", func(p *Process) error {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			return p.Stop(time.Minute)
		}, 3},
		{"is killed", "echo one; echo two; exec cat /dev/zero >/dev/null", (*Process).Kill, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p, err := Start(filepath.Join(t.TempDir(), "out"), []string{"X=1"}, "/bin/bash", "-c", tc.script)
			if err != nil {
				t.Fatal(err)
			}
			for tick := time.Tick(time.Millisecond); strings.Count(p.Output(), "\n") < 2 && ctx.Err() == nil; <-tick {
			}
			if err := tc.end(p); err != nil {
				t.Fatal(err)
			}
			code, err := p.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if code != tc.code || !p.Exited() || p.Tail(1) != "two" {
				t.Errorf("exit code %d, ended %t, output %q; want code %d", code, p.Exited(), p.Output(), tc.code)
			}
		})
	}
}

func TestStartReportsAMissingProgram(t *testing.T) {
	t.Parallel()
	if _, err := Start(filepath.Join(t.TempDir(), "out"), nil, "/no/such/program"); err == nil {
		t.Error("no error")
	}
}
