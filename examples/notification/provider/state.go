package provider

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Observation is one thing that the server saw or did. The order of a log is
// the order in which it happened.
type Observation struct {
	What Event `json:"what"`
	// Attempt is the request's X-Attempt-Id.
	Attempt string `json:"attempt_id"`
	Key     string `json:"key"`
	// Digest is the SHA-256 of the body, in hexadecimal; not of a question.
	Digest string `json:"digest,omitempty"`
	// Message is the id of what was accepted, the same for each repetition.
	Message string `json:"message_id,omitempty"`
	// Replayed says that the message had been accepted before.
	Replayed bool `json:"replayed,omitempty"`
	// Status is the answer's.
	Status int `json:"status,omitempty"`
}

// Event says what was observed.
type Event string

// Events.
const (
	// Accepted: the message will be delivered, once for each Message id.
	Accepted Event = "accepted"
	// Answered: an answer was handed to the connection. It may not arrive.
	Answered Event = "answered"
	// Asked: somebody asked for a key, and got the answer Status.
	Asked Event = "asked"
)

// Message is what was accepted, once.
type Message struct {
	ID   string `json:"id"`
	Key  string `json:"key"`
	Body string `json:"body"`
}

// request is one to send a message.
type request struct {
	key, attempt string
	body         []byte
	digest       [32]byte
}

// answer to a request. Without a message it is a refusal.
type answer struct {
	status   int
	message  string
	replayed bool
	reason   string // of a refusal
}

// entry is what is remembered of a key.
type entry struct {
	digest  [32]byte
	running bool
	stored  answer
	until   time.Time // forgotten then; zero while it runs
}

// state is all that a server remembers. It is not safe for concurrent use.
type state struct {
	cfg      Config
	script   script
	keys     map[string]*entry
	messages []Message
	bytes    int // of the messages' bodies
	log      []Observation
	ended    chan struct{} // closed when this state is given up
}

func newState(cfg Config) *state {
	return &state{cfg: cfg, keys: map[string]*entry{}, ended: make(chan struct{})}
}

var errFull = errors.New("the stub's memory is full: POST /reset")

// reserve finds the entry of a key, or makes one that is running. Otherwise the
// answer says why the request is refused.
func (s *state) reserve(r request, now time.Time) (e *entry, refusal answer) {
	s.forget(r.key, now)
	e, known := s.keys[r.key]
	switch {
	case known && e.digest != r.digest:
		return nil, answer{status: http.StatusUnprocessableEntity, reason: "this key came with another body before"}
	case known && e.running:
		return nil, answer{status: http.StatusConflict, reason: "a request with this key is running"}
	case known:
		return e, answer{}
	case s.full(len(r.body)):
		return nil, answer{status: http.StatusInsufficientStorage, reason: errFull.Error()}
	}
	e = &entry{digest: r.digest, running: true}
	s.keys[r.key] = e
	return e, answer{}
}

// forget deletes an entry whose time is over.
func (s *state) forget(key string, now time.Time) {
	if e, ok := s.keys[key]; ok && !e.running && !now.Before(e.until) {
		delete(s.keys, key)
	}
}

// full: a request makes an entry, a message and at most two observations.
func (s *state) full(bytes int) bool {
	return len(s.keys) >= s.cfg.MaxMessages || len(s.messages) >= s.cfg.MaxMessages || s.bytes+bytes > s.cfg.MaxBytes ||
		s.logFull()
}

func (s *state) logFull() bool { return len(s.log)+2 > s.cfg.MaxLog }

// abandon ends a running entry whose client left before anything was accepted.
func (s *state) abandon(key string, e *entry) {
	if e.running {
		delete(s.keys, key)
	}
}

// accept takes the message, unless that was done before, and returns the stored
// answer; status is that of a new one.
func (s *state) accept(r request, e *entry, status int, now time.Time) answer {
	if e.running {
		m := Message{ID: fmt.Sprintf("msg-%d", len(s.messages)+1), Key: r.key, Body: string(r.body)}
		s.messages = append(s.messages, m)
		s.bytes += len(m.Body)
		e.running, e.stored, e.until = false, answer{status: status, message: m.ID}, now.Add(s.cfg.TTL)
		s.note(r, Accepted, e.stored)
		return e.stored
	}
	again := e.stored
	again.replayed = true
	s.note(r, Accepted, again)
	return again
}

// note appends to the log. An acceptance has no status.
func (s *state) note(r request, what Event, a answer) {
	o := Observation{
		What: what, Attempt: r.attempt, Key: r.key, Digest: hex.EncodeToString(r.digest[:]),
		Message: a.message, Replayed: a.replayed,
	}
	if what == Answered {
		o.Status = a.status
	}
	s.log = append(s.log, o)
}

// find answers the question for a key: a message stays known when its key is
// forgotten.
func (s *state) find(key string) answer {
	if e, ok := s.keys[key]; ok && e.running {
		return answer{status: http.StatusConflict, reason: "a request with this key is running"}
	}
	for _, m := range s.messages {
		if m.Key == key {
			return answer{status: http.StatusOK, message: m.ID}
		}
	}
	return answer{status: http.StatusNotFound, reason: "no message has this key"}
}
