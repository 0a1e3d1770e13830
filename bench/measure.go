package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
)

// result is one drain.
type result struct {
	total     time.Duration // from the start of the process to the last record
	published time.Duration // from the first record to the last
	sent      time.Duration // from the first record to the last row SENT
	cpu       time.Duration // of the relay, start-up included
	peakMiB   float64
	viaSlot   float64 // events that came as inserts through the slot
}

// drainWithRelay starts the relay on the backlog and follows its counters.
func (d *drain) drainWithRelay(ctx context.Context) (result, error) {
	fmt.Fprintln(os.Stderr, "draining")
	var r result
	began := time.Now()
	p, err := d.start("run")
	if err != nil {
		return r, err
	}
	defer p.Stop(30 * time.Second)
	var first, last time.Time
	err = d.until(ctx, p, func(s *relayproc.Status) bool {
		now, acked := time.Now(), s.Counters["events_acked_total"]
		if acked > 0 && first.IsZero() {
			first = now
		}
		if acked >= float64(d.rows) && last.IsZero() {
			last = now
		}
		r.viaSlot = s.Counters[`events_received_total{via="insert"}`]
		return s.Counters[`status_writes_total{result="ok",to="SENT"}`] >= float64(d.rows)
	})
	if err != nil {
		return r, err
	}
	r.total, r.published, r.sent = last.Sub(began), last.Sub(first), time.Since(first)
	if r.cpu, err = cpu(p.PID()); err != nil {
		return r, err
	}
	r.peakMiB, err = peak(p.PID())
	return r, err
}

// cpu is the user and system time of a process.
func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time: %w", err)
	}
	// The name, in parentheses, may hold spaces; times are fields 14 and 15.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const ticksPerSecond = 100
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("reading the CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// peak is the high-water mark of a process's resident memory in MiB.
func peak(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("reading the memory: no VmHWM")
}
