// Package relayproc runs cdc-relay as people do: a process with a
// configuration file, signals and an HTTP listener.
package relayproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started. Its methods are safe for concurrent
// use.
type Process struct {
	cmd    *exec.Cmd
	output string // file of both its outputs
	done   chan struct{}
	err    error // of Wait, valid once done is closed
}

// Start runs a program with both outputs appended to the file output, in
// nothing but a minimal environment and env. It ends with this process.
func Start(output string, env []string, program string, args ...string) (*Process, error) {
	f, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the output file of %s: %w", program, err)
	}
	defer f.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "TZ=UTC"}, env...)
	cmd.Stdout, cmd.Stderr = f, f
	p := &Process{cmd: cmd, output: output, done: make(chan struct{})}
	if err := startTied(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Wait waits for the end and returns the exit code, -1 after a signal.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for process %d to end: %w", p.PID(), ctx.Err())
	}
}

// Kill ends the process at once and waits for it.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end, and kills it after patience. It is meant for
// cleaning up.
func (p *Process) Stop(patience time.Duration) error {
	if p.Exited() {
		return nil
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGCONT); err != nil { // it may be frozen
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

// Output is everything the process has written so far.
func (p *Process) Output() string {
	text, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail is the last lines of Output.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimRight(p.Output(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// crash matches what the Go runtime and the race detector write.
var crash = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: |goroutine \d+ .*\[)`)

// Crash returns the part of an output that shows a data race, a panic or a
// trace of goroutines; empty if there is none.
func Crash(output string) string {
	at := crash.FindStringIndex(output)
	if at == nil {
		return ""
	}
	trace := []byte(output[at[0]:])
	const lines = 60
	for i, n := 0, 0; i < len(trace); i++ {
		if trace[i] == '\n' {
			if n++; n == lines {
				return string(trace[:i])
			}
		}
	}
	return string(bytes.TrimRight(trace, "\n"))
}
