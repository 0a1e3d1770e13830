package consumerbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
)

// Process is a running consumer. Unless the test ended it, its end fails the
// test, and so does a data race or a trace at any time.
type Process struct {
	*relayproc.Process
	bed      *Bed
	cfg      consumerproc.Config
	expected bool // the test asked for its end
}

// Start starts a consumer; change is applied to the bed's configuration.
func (b *Bed) Start(change ...func(*consumerproc.Config)) *Process {
	b.t.Helper()
	addr, err := relayproc.FreeAddr()
	if err != nil {
		b.t.Fatal(err)
	}
	p := &Process{bed: b, cfg: b.cfg}
	p.cfg.Name, p.cfg.Listen = fmt.Sprintf("c%d", len(b.processes)+1), addr
	for _, f := range change {
		f(&p.cfg)
	}
	program, err := os.Executable()
	if err != nil {
		b.t.Fatalf("finding the test's own program: %v", err)
	}
	name := filepath.Join(b.dir, p.cfg.Name)
	if err := p.cfg.Write(name + ".json"); err != nil {
		b.t.Fatal(err)
	}
	p.Process, err = relayproc.Start(name+".log", []string{consumerproc.EnvConfig + "=" + name + ".json"}, program)
	if err != nil {
		b.t.Fatal(err)
	}
	b.processes = append(b.processes, p)
	return p
}

// Status is what the process says of itself, nil while it does not answer.
func (p *Process) Status() *consumerproc.Status {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.bed.t.Context()), 2*time.Second)
	defer cancel()
	s, err := consumerproc.ReadStatus(ctx, p.cfg.Listen)
	if err != nil {
		return nil
	}
	return s
}

// WaitStatus waits until the process says something of itself.
func (p *Process) WaitStatus(what string, holds func(*consumerproc.Status) bool) {
	p.bed.t.Helper()
	p.bed.Wait(what, func() bool {
		s := p.Status()
		return s != nil && holds(s)
	})
}

// Counts are records by outcome.
type Counts map[consumer.Outcome]int

// WantRecords waits until the process has counted these outcomes. Others may
// have been counted too.
func (p *Process) WantRecords(want Counts) {
	p.bed.t.Helper()
	p.WaitStatus(fmt.Sprintf("consumer %s to count %v", p.cfg.Name, want), func(s *consumerproc.Status) bool {
		for o, n := range want {
			if s.Records[o] != n {
				return false
			}
		}
		return true
	})
}

// WaitRefused waits until the process has said of each of these events that it
// could not record an outcome, as the claim was lost.
func (p *Process) WaitRefused(events ...Event) {
	p.bed.t.Helper()
	for _, ev := range events {
		p.bed.Wait(fmt.Sprintf("consumer %s to lose its claim on %s", p.cfg.Name, ev.ID), func() bool {
			for line := range strings.Lines(p.Output()) {
				if strings.Contains(line, "an outcome was not recorded") && strings.Contains(line, ev.ID.String()) {
					return true
				}
			}
			return false
		})
	}
}

// WaitReason waits until the process says why a partition waits.
func (p *Process) WaitReason(partition check.PartitionName, reason consumer.Reason) {
	p.bed.t.Helper()
	p.WaitStatus(fmt.Sprintf("%s/%d to wait: %s", partition.Topic, partition.Number, reason), func(s *consumerproc.Status) bool {
		return s.Reason(partition.Topic, partition.Number) == reason
	})
}

// WaitMoved waits until two processes have a partition each, and returns that of
// the second.
func (b *Bed) WaitMoved(first, second *Process) (moved check.PartitionName) {
	b.t.Helper()
	b.Wait("a partition each", func() bool {
		one, other := first.Status(), second.Status()
		if one == nil || other == nil || len(one.Health.Partitions) != 1 || len(other.Health.Partitions) != 1 {
			return false
		}
		p := other.Health.Partitions[0]
		moved = check.PartitionName{Topic: p.Topic, Number: int32(p.Partition)}
		return true
	})
	return moved
}

// WaitGroup waits until the group is in a state, as the broker names it.
func (b *Bed) WaitGroup(state string) {
	b.t.Helper()
	b.Wait("the group to be "+state, func() bool {
		_, now, err := b.Admin.Members(b.t.Context(), b.Group)
		return err == nil && now == state
	})
}

// WaitPartitions waits until the bed's consumers have n partitions together.
func (b *Bed) WaitPartitions(n int) {
	b.t.Helper()
	b.Wait(fmt.Sprintf("%d partitions to be read", n), func() bool {
		sum := 0
		for _, p := range b.processes {
			if s := p.Status(); s != nil {
				sum += len(s.Health.Partitions)
			}
		}
		return sum == n
	})
}

// WaitMembers waits until the group has n members.
func (b *Bed) WaitMembers(n int) {
	b.t.Helper()
	b.Wait(fmt.Sprintf("the group to have %d members", n), func() bool {
		members, _, err := b.Admin.Members(b.t.Context(), b.Group)
		return err == nil && len(members) == n
	})
}

// Kill ends the process by SIGKILL. If no other one lives, its membership of the
// group ends too: it would otherwise last until its session has run out.
func (p *Process) Kill() {
	p.bed.t.Helper()
	p.expected = true
	if err := p.Process.Kill(); err != nil {
		p.bed.t.Fatal(err)
	}
	p.bed.bury()
}

// WaitDeath waits until the process has killed itself, as it was ordered to.
func (p *Process) WaitDeath() {
	p.bed.t.Helper()
	p.expected = true
	p.bed.Wait("consumer "+p.cfg.Name+" to die", p.Exited)
	p.bed.bury()
}

// bury makes the members leave once their processes are all dead.
func (b *Bed) bury() {
	b.t.Helper()
	if slices.ContainsFunc(b.processes, func(p *Process) bool { return !p.Exited() }) {
		return // which member is whose nobody can tell
	}
	members, _, err := b.Admin.Members(b.t.Context(), b.Group)
	if err == nil && len(members) > 0 {
		err = b.Admin.Expel(b.t.Context(), b.Group, members...)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Freeze stops the process by SIGSTOP until Thaw.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

// SendTerm asks the process to stop.
func (p *Process) SendTerm() {
	p.expected = true
	p.signal(syscall.SIGTERM)
}

func (p *Process) signal(sig syscall.Signal) {
	p.bed.t.Helper()
	if err := p.Signal(sig); err != nil {
		p.bed.t.Fatal(err)
	}
}

// Terminate asks the process to stop and waits for a clean end.
func (p *Process) Terminate() {
	p.bed.t.Helper()
	p.SendTerm()
	p.WaitEnd()
}

// WaitEnd waits for a clean end, which was asked for.
func (p *Process) WaitEnd() {
	p.bed.t.Helper()
	ctx, cancel := context.WithTimeout(p.bed.t.Context(), 60*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil || code != 0 {
		p.bed.t.Fatalf("consumer %s after SIGTERM: exit code %d, %v\n%s", p.cfg.Name, code, err, p.Tail(20))
	}
}

// stopProcesses ends what still runs and looks at what was written.
func (b *Bed) stopProcesses() {
	for _, p := range b.processes {
		if p.Exited() && !p.expected {
			b.t.Errorf("consumer %s ended unexpectedly", p.cfg.Name)
		}
		if err := p.Stop(30 * time.Second); err != nil {
			b.t.Errorf("ending consumer %s: %v", p.cfg.Name, err)
		}
		if trace := relayproc.Crash(p.Output()); trace != "" {
			b.t.Errorf("consumer %s crashed or raced:\n%s", p.cfg.Name, trace)
		}
	}
	if !b.t.Failed() {
		return
	}
	for _, p := range b.processes {
		b.t.Logf("last lines of consumer %s:\n%s", p.cfg.Name, p.Tail(60))
	}
}
