package monitor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Health is what the parts tell of themselves. Times are zero while what they
// tell of has not happened.
type Health struct {
	// State is that of Status, and Reason the id of the check that blocks it.
	State  string
	Reason string
	// Parts are those that run now. The loop that starts the others always
	// does.
	Parts []pulse.Part
	// Schema is the verdict on the database's schema.
	Schema Verdict
	// LeaseAt is when a leader's last successful renewal was sent, or when an
	// instance that stands by last read the lease.
	LeaseAt time.Time

	// The rest is looked at only while this instance leads.

	Stream Stream
	// BrokerAt is when a Kafka broker last answered.
	BrokerAt time.Time
	// InFlight counts the events that are not resolved. MovedAt is when the
	// watermark last moved, or when there first were some again, if later.
	InFlight int
	MovedAt  time.Time
}

// Stream is what is known of the replication stream.
type Stream struct {
	Connected bool
	// HeldBack tells that the line takes nothing from the stream at present,
	// so that its silence means nothing.
	HeldBack bool
	// MessageAt is when anything last came, keepalives included; EventAt when
	// an event or a probe of this instance did, whichever way.
	MessageAt time.Time
	EventAt   time.Time
	// SenderTimeout is wal_sender_timeout as the connection has it; 0: none.
	SenderTimeout time.Duration
}

// Verdict is what is known of a question.
type Verdict uint8

// Answers to a question.
const (
	Unknown Verdict = iota
	OK
	Fail
)

// String returns the verdict as documents show it.
func (v Verdict) String() string {
	switch v {
	case OK:
		return "ok"
	case Fail:
		return "fail"
	}
	return "unknown"
}

// Limits are how old what a check looks at may be.
type Limits struct {
	// StallAfter is for events, probes and the watermark.
	StallAfter time.Duration
	// Lease is after how long another instance may take over.
	Lease time.Duration
	// Beat is for one thing that a part is at: longer than any wait for
	// PostgreSQL or Kafka may take.
	Beat time.Duration
}

const (
	// brokerLimit is for the last answer of a broker.
	brokerLimit = 60 * time.Second
	// readLimit is for the last look at the lease of an instance that stands
	// by; it looks every lease.renew_interval.
	readLimit = 10 * time.Second
	// silenceLimit is for the stream where the server has no time-out itself.
	silenceLimit = 60 * time.Second
)

// Check is one finding.
type Check struct {
	// ID is that of the doctor check which describes the condition.
	ID      string
	Verdict Verdict
	Detail  string // a few words without addresses
}

// Report is what a health path answers. It is healthy if every check is OK: a
// check that could not be made is not.
type Report []Check

// Healthy reports whether all is well.
func (r Report) Healthy() bool {
	for _, c := range r {
		if c.Verdict != OK {
			return false
		}
	}
	return len(r) > 0
}

// Live judges whether the process does anything at all. It never fails for
// what is wrong elsewhere: a restart would not help.
func Live(h Health, l Limits, now time.Time) Report {
	if len(h.Parts) == 0 {
		return Report{{"relay.beat", Unknown, "no part tells"}}
	}
	var r Report
	for _, p := range h.Parts {
		if p.Since.IsZero() {
			r = append(r, Check{"relay.beat", OK, p.Name + " waits for something to do"})
			continue
		}
		r = append(r, recent("relay.beat", "beat of the "+p.Name, p.Since, l.Beat, now))
	}
	return r
}

// Started judges whether the process has come as far as it can by itself: its
// configuration is valid, else it would not run.
func Started(h Health, _ Limits, _ time.Time) Report { return Report{schema(h)} }

// Ready judges whether the process does its work, or stands by for it. It
// never fails for a backlog, or for rows that failed or are held.
func Ready(h Health, l Limits, now time.Time) Report {
	switch h.State {
	case "blocked":
		return Report{{h.Reason, Fail, "blocked"}}
	case "standby":
		// A look that finds the lease free is followed by a takeover at once:
		// while it is read, another instance leads, or a takeover runs.
		return Report{recent("relay.leader", "look at the lease", h.LeaseAt, readLimit, now), schema(h)}
	case "recovering", "streaming", "polling", "degraded":
		return leading(h, l, now)
	}
	return Report{{"relay.state", Fail, h.State}}
}

func leading(h Health, l Limits, now time.Time) Report {
	r := Report{
		recent("relay.leader", "renewal of the lease", h.LeaseAt, l.Lease, now),
		recent("kafka.connect", "answer of a broker", h.BrokerAt, brokerLimit, now),
	}
	s := h.Stream
	switch {
	case !s.Connected:
		return append(r, Check{"pg.replication_conn", Fail, "the stream is not connected"}, progress(h, l, now))
	case s.HeldBack:
		r = append(r, Check{"pg.replication_conn", OK, "connected, and held back by what is in flight"})
	default:
		r = append(r, recent("pg.replication_conn", "message of the server", s.MessageAt, s.silence(), now))
	}
	return append(r, recent("relay.probe", "event or probe", s.EventAt, l.StallAfter, now), progress(h, l, now))
}

func (s Stream) silence() time.Duration {
	if s.SenderTimeout <= 0 {
		return silenceLimit
	}
	return s.SenderTimeout * 3 / 2
}

// progress looks at the watermark while there is something in flight.
func progress(h Health, l Limits, now time.Time) Check {
	if h.InFlight == 0 {
		return Check{"relay.stalled", OK, "nothing is in flight"}
	}
	return recent("relay.stalled", "move of the watermark", h.MovedAt, l.StallAfter, now)
}

func schema(h Health) Check {
	detail := map[Verdict]string{Unknown: "the database has not answered yet", OK: "accepted", Fail: "refused"}[h.Schema]
	return Check{"table.schema_version", h.Schema, detail}
}

// recent judges by when something last happened.
func recent(id, what string, at time.Time, limit time.Duration, now time.Time) Check {
	if at.IsZero() {
		return Check{id, Unknown, "no " + what + " yet"}
	}
	age := max(0, now.Sub(at))
	c := Check{id, OK, fmt.Sprintf("last %s %.1f s ago, limit %.1f s", what, age.Seconds(), limit.Seconds())}
	if age > limit {
		c.Verdict = Fail
	}
	return c
}

// healthDocument is the answer of the health paths. Fields are only added.
type healthDocument struct {
	V      int             `json:"v"`
	At     time.Time       `json:"at"`
	OK     bool            `json:"ok"`
	State  string          `json:"state"`
	Checks []checkDocument `json:"checks"`
}

type checkDocument struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Detail string `json:"detail"`
}

// health answers with what judge finds.
func (s *Server) health(judge func(Health, Limits, time.Time) Report) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h, now := s.options.Health(), time.Now()
		report := judge(h, s.options.Limits, now)
		document := healthDocument{V: 1, At: now.UTC(), OK: report.Healthy(), State: h.State}
		for _, c := range report {
			document.Checks = append(document.Checks, checkDocument{c.ID, c.Verdict.String(), c.Detail})
		}
		code := http.StatusOK
		if !document.OK {
			code = http.StatusServiceUnavailable
		}
		s.answer(w, code, document)
	}
}

// answer writes a JSON document.
func (s *Server) answer(w http.ResponseWriter, code int, document any) {
	body, err := json.Marshal(document)
	if err != nil {
		s.options.Log.Error("encoding an answer", "err", err)
		http.Error(w, "the answer cannot be encoded; see the log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}
