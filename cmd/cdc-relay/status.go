package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/monitor"
	"github.com/cdc-relay/cdc-relay/internal/sampler"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (a *app) statusCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the relay does and what waits in the outbox",
		Long: "Show state, leader, positions, slot and rows, as the relay on http.listen tells them.\n" +
			"If none answers there, show what the tables and the slot in the database say.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 0 {
				return usageError(errors.New("--watch must be positive, such as 2s"))
			}
			c, err := a.loadForDatabase()
			if err != nil {
				return err
			}
			if every > 0 {
				return a.watchStatus(cmd.Context(), c, every)
			}
			return a.showStatus(cmd.Context(), c)
		},
	}
	cmd.Flags().DurationVar(&every, "watch", 0, "show it again at this `interval`, until interrupted")
	return cmd
}

func (a *app) showStatus(ctx context.Context, c *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	answer, err := readStatus(ctx, c)
	if err != nil {
		return err
	}
	return a.print(answer, answer.write)
}

// watchStatus shows the status again and again until ctx ends. What fails is
// shown in its place: it may come back.
func (a *app) watchStatus(ctx context.Context, c *config.Config, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	between := "\n"
	switch {
	case a.json:
		between = "" // one document a line
	case isTerminal(a.stdout):
		between = "\x1b[H\x1b[2J" // to the top of an empty screen
	}
	for {
		err := a.showStatus(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			a.report(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		fmt.Fprint(a.stdout, between)
	}
}

// status is the answer. Pointers are null where nothing is known, or there is
// no such value. Fields are only added.
type status struct {
	envelope
	Source string `json:"source"` // relay, or database
	// State is the relay's, "unknown" from the database.
	State  string     `json:"state"`
	Since  *time.Time `json:"since"`
	Reason string     `json:"reason"`
	What   string     `json:"what"`
	Remedy string     `json:"remedy"`

	Leader         *bool    `json:"leader"` // the relay that answers leads
	LeaderInstance string   `json:"leader_instance"`
	RenewedAge     *float64 `json:"lease_age_seconds"`
	Epoch          int64    `json:"epoch"`

	Received  *string `json:"received"`
	Watermark *string `json:"watermark"`
	Saved     *string `json:"saved"`
	Confirmed *string `json:"confirmed"`
	Server    *string `json:"server"`

	InflightEvents *float64 `json:"inflight_events"`
	InflightBytes  *float64 `json:"inflight_bytes"`

	Slot              string   `json:"slot"`
	SlotActive        *bool    `json:"slot_active"`
	WALStatus         string   `json:"wal_status"`
	RetainedBytes     *float64 `json:"retained_bytes"`
	ConfirmedLagBytes *float64 `json:"confirmed_lag_bytes"`
	SafeBytes         *float64 `json:"safe_bytes"`
	TimeToLoss        *float64 `json:"time_to_loss_seconds"`

	// OldestReadyAge leaves out delayed rows, which wait because they are told to.
	OldestReadyAge *float64    `json:"oldest_ready_age_seconds"`
	LeasesExpired  *float64    `json:"leases_expired"`
	RowsComplete   bool        `json:"rows_complete"` // false: counts are lower bounds
	Rows           []statusRow `json:"rows"`
}

// statusRow is a group of rows.
type statusRow struct {
	Status     string   `json:"status"`
	StatusCode int      `json:"status_code"`
	Kind       string   `json:"kind"`
	Count      float64  `json:"count"`
	OldestAge  *float64 `json:"oldest_age_seconds"`
}

// readStatus asks the relay, else the database.
func readStatus(ctx context.Context, c *config.Config) (*status, error) {
	live, unanswered := askRelay(ctx, c)
	if unanswered == nil {
		return fromRelay(live), nil
	}
	sample, err := sampler.Once(ctx, samplerConfig(c, timeLeft(ctx)))
	if err != nil {
		return nil, fmt.Errorf("asking the relay: %w; asking the database: %w", unanswered, err)
	}
	return fromDatabase(c, sample, unanswered), nil
}

func timeLeft(ctx context.Context) time.Duration {
	const least = time.Second
	if deadline, ok := ctx.Deadline(); ok {
		return max(least, time.Until(deadline))
	}
	return least
}

const (
	// relayPatience bounds the question to a relay, which answers from memory.
	relayPatience = 3 * time.Second
	maxStatus     = 4 << 20
)

// askRelay asks the relay that this configuration is for.
func askRelay(ctx context.Context, c *config.Config) (*monitor.Document, error) {
	url, err := statusURL(c.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, relayPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, errors.New("http.listen is no address to ask")
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("no relay answers on http.listen %s", c.HTTP.Listen)
	}
	defer response.Body.Close()
	var live monitor.Document
	err = json.NewDecoder(io.LimitReader(response.Body, maxStatus)).Decode(&live)
	switch {
	case response.StatusCode != http.StatusOK || err != nil || live.V != 1:
		return nil, fmt.Errorf("what answers on http.listen %s is not a relay of this version", c.HTTP.Listen)
	case live.Pipeline != c.Pipeline || live.Slot != c.Slot.Name:
		return nil, fmt.Errorf("the relay that answers on http.listen %s serves another pipeline or slot", c.HTTP.Listen)
	}
	return &live, nil
}

// statusURL is where a relay that listens there is asked from its own machine.
func statusURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" {
		return "", errors.New("http.listen names no port to ask")
	}
	switch ip := net.ParseIP(host); {
	case host == "", ip != nil && ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return "http://" + net.JoinHostPort(host, port) + "/statusz", nil
}

// fromRelay takes figures by their names as metrics.
func fromRelay(live *monitor.Document) *status {
	figure := func(name string) *float64 {
		if value, ok := live.Counters[name]; ok {
			return &value
		}
		return nil
	}
	s := &status{
		envelope: newEnvelope(live.Pipeline, live.At), Source: "relay",
		State: live.State, Since: &live.Since, Reason: live.Reason, What: live.What, Remedy: live.Remedy,
		Leader: &live.Leader, LeaderInstance: live.LeaderInstance, Epoch: live.Epoch, Slot: live.Slot,
		InflightEvents: figure("inflight_events"), InflightBytes: figure("inflight_bytes"),
		RetainedBytes: figure("slot_retained_wal_bytes"), ConfirmedLagBytes: figure("slot_confirmed_lag_bytes"),
		SafeBytes: figure("slot_safe_wal_bytes"), TimeToLoss: figure("slot_time_to_loss_seconds"),
		LeasesExpired: figure("outbox_leases_expired"),
	}
	if live.Leader { // else it knows no position
		p := &live.Positions
		s.Received, s.Watermark, s.Saved, s.Confirmed, s.Server = &p.Received, &p.Watermark, &p.Saved, &p.Confirmed, &p.Server
	}
	if active := figure("slot_active"); active != nil {
		is := *active == 1
		s.SlotActive = &is
	}
	for _, walStatus := range sampler.WALStatuses {
		if one := figure(fmt.Sprintf("slot_wal_status{wal_status=%q}", walStatus)); one != nil && *one == 1 {
			s.WALStatus = walStatus
		}
	}
	s.RowsComplete = true
	for _, part := range []string{"attention", "new", "consume"} {
		complete := figure(fmt.Sprintf("outbox_sample_complete{part=%q}", part))
		s.RowsComplete = s.RowsComplete && complete != nil && *complete == 1
	}
	for _, g := range sampler.Groups {
		labels := fmt.Sprintf("{kind=%q,status=%q}", g.Kind, g.Status.String())
		if count := figure("outbox_rows" + labels); count != nil {
			s.addRows(g, *count, figure("outbox_oldest_age_seconds"+labels))
		}
	}
	return s
}

// fromDatabase says what tables and slot say; why no relay answers is told as
// the reason.
func fromDatabase(c *config.Config, sample *sampler.Sample, unanswered error) *status {
	s := &status{
		envelope: newEnvelope(c.Pipeline, sample.At.UTC()), Source: "database",
		State: "unknown", What: unanswered.Error(),
		Remedy:         "this is what the database says; run this command where the relay runs, or start one: cdc-relay run",
		LeaderInstance: sample.Lease.Instance, Epoch: sample.Lease.Epoch,
		Slot: c.Slot.Name, WALStatus: sample.Slot.WALStatus,
		Saved: position(sample.Lease.Saved), Confirmed: position(sample.Slot.Confirmed), Server: position(sample.Slot.Server),
		RetainedBytes: float(sample.Slot.RetainedBytes), ConfirmedLagBytes: float(sample.Slot.ConfirmedLagBytes),
		SafeBytes: float(sample.Slot.SafeBytes), LeasesExpired: float(sample.LeasesExpired),
		RowsComplete: sample.Complete.Attention && sample.Complete.New && sample.Complete.Consume,
	}
	if sample.Slot.Exists {
		s.SlotActive = &sample.Slot.Active
	}
	if sample.Lease.Instance != "" {
		age := sample.Lease.Age.Seconds()
		s.RenewedAge = &age
	}
	if !sample.Lease.Held {
		s.LeaderInstance = "" // it was the last one's
	}
	for _, r := range sample.Rows {
		s.addRows(r.Group, float64(r.Count), r.OldestAge)
	}
	return s
}

func (s *status) addRows(g sampler.Group, count float64, oldest *float64) {
	s.Rows = append(s.Rows, statusRow{g.Status.String(), int(g.Status), g.Kind, count, oldest})
	if g.Status == outbox.Ready && g.Kind != "delayed" && oldest != nil && (s.OldestReadyAge == nil || *oldest > *s.OldestReadyAge) {
		s.OldestReadyAge = oldest
	}
}

// position is nil for one that is not known.
func position(lsn pglogrepl.LSN) *string {
	if lsn == 0 {
		return nil
	}
	text := lsn.String()
	return &text
}

func float(n *int64) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n)
	return &f
}
