package monitor

import (
	"net/http"
	"time"

	"github.com/jackc/pglogrepl"
)

// Status is what the line tells about itself.
type Status struct {
	// State is starting, standby, recovering, streaming, degraded, draining or
	// blocked, since Since.
	State string
	Since time.Time
	// Reason is the id of the check that fails, What it says and Remedy what
	// to do about it; empty while nothing waits for a person.
	Reason string
	What   string
	Remedy string
	// Leader tells that this instance leads Slot. Epoch is its own then, else
	// the last one that is known.
	Leader bool
	Slot   string
	Epoch  int64
	// LeaderInstance is who leads, as the lease last told; empty if that is
	// not known.
	LeaderInstance string
	Positions      Positions
}

// Positions are points in the WAL; 0 where none is known yet.
type Positions struct {
	Received  pglogrepl.LSN // newest that the stream has delivered
	Watermark pglogrepl.LSN // everything before it is resolved
	Saved     pglogrepl.LSN // as committed in cdc_relay_lease
	Confirmed pglogrepl.LSN // as told to the server
	Server    pglogrepl.LSN // end of the server's WAL
}

// Document is the answer of /statusz. Fields are only added.
type Document struct {
	V              int                `json:"v"`
	At             time.Time          `json:"at"`
	Pipeline       string             `json:"pipeline"`
	State          string             `json:"state"`
	Since          time.Time          `json:"since"`
	Reason         string             `json:"reason"`
	What           string             `json:"what"`
	Remedy         string             `json:"remedy"`
	Leader         bool               `json:"leader"`
	Slot           string             `json:"slot"`
	Epoch          int64              `json:"epoch"`
	LeaderInstance string             `json:"leader_instance"`
	Positions      DocumentPositions  `json:"positions"`
	Counters       map[string]float64 `json:"counters"`
}

// DocumentPositions are Positions as text, X/Y.
type DocumentPositions struct {
	Received  string `json:"received"`
	Watermark string `json:"watermark"`
	Saved     string `json:"saved"`
	Confirmed string `json:"confirmed"`
	Server    string `json:"server"`
}

func (s *Server) statusz(w http.ResponseWriter, _ *http.Request) {
	families, err := s.options.Metrics.Gather()
	if err != nil {
		// What could be gathered is still shown.
		s.options.Log.Warn("gathering metrics", "err", err)
	}
	status := s.options.Status()
	s.answer(w, http.StatusOK, Document{
		V: 1, At: time.Now().UTC(), Pipeline: s.options.Pipeline,
		State: status.State, Since: status.Since.UTC(), Reason: status.Reason,
		What: s.hide.Replace(status.What), Remedy: s.hide.Replace(status.Remedy),
		Leader: status.Leader, Slot: status.Slot, Epoch: status.Epoch, LeaderInstance: status.LeaderInstance,
		Positions: DocumentPositions{
			Received:  status.Positions.Received.String(),
			Watermark: status.Positions.Watermark.String(),
			Saved:     status.Positions.Saved.String(),
			Confirmed: status.Positions.Confirmed.String(),
			Server:    status.Positions.Server.String(),
		},
		Counters: flatten(families),
	})
}
