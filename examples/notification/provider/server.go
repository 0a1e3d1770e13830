package provider

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Headers of the protocol.
const (
	HeaderKey      = "Idempotency-Key"
	HeaderAttempt  = "X-Attempt-Id"
	HeaderReplayed = "Idempotent-Replayed"
)

// Config bounds what a Server remembers. A zero field is its default; what is
// full answers 507.
type Config struct {
	// TTL is how long a key is remembered after its message was accepted; 24 h.
	TTL time.Duration
	// MaxMessages is how many messages and keys; 100,000.
	MaxMessages int
	// MaxBytes is the size of all messages' bodies together; 64 MiB.
	MaxBytes int
	// MaxLog is how many observations, more or less; 1,000,000.
	MaxLog int
}

// Server is the stub, an http.Handler. It is safe for concurrent use.
type Server struct {
	cfg Config
	mux *http.ServeMux

	mu    sync.Mutex
	state *state
}

// New makes a Server that remembers nothing yet.
func New(cfg Config) *Server {
	cfg.TTL = cmp.Or(cfg.TTL, 24*time.Hour)
	cfg.MaxMessages = cmp.Or(cfg.MaxMessages, 100_000)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 64<<20)
	cfg.MaxLog = cmp.Or(cfg.MaxLog, 1_000_000)
	s := &Server{cfg: cfg, mux: http.NewServeMux(), state: newState(cfg)}
	s.mux.HandleFunc("POST /v1/messages", s.send)
	s.mux.HandleFunc("GET /v1/messages", s.find)
	s.mux.HandleFunc("PUT /faults", s.putFaults)
	s.mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Log()) })
	s.mux.HandleFunc("GET /mailbox", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Mailbox()) })
	s.mux.HandleFunc("POST /reset", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	})
	return s
}

// ServeHTTP serves the API and the control of the stub.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// SetFaults replaces the faults, their counts too. An error names the one that
// makes no sense, and nothing is changed.
func (s *Server) SetFaults(faults ...Fault) error {
	script, err := newScript(slices.Clone(faults))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.script = script
	return nil
}

// Log returns what was observed since the last Reset.
func (s *Server) Log() []Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Observation{}, s.state.log...)
}

// Mailbox returns the accepted messages in their order.
func (s *Server) Mailbox() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Message{}, s.state.messages...)
}

// Reset forgets messages, keys, log and faults, and cuts the connections of
// requests that wait. Call it before closing the HTTP server, which waits for
// them.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.state.ended)
	s.state = newState(s.cfg)
}

const (
	maxBody = 64 << 10 // of a request, in bytes
	maxName = 255      // of a key or attempt id, in bytes
)

// send is POST /v1/messages.
func (s *Server) send(w http.ResponseWriter, r *http.Request) {
	req, refusal := readRequest(w, r)
	if refusal.status != 0 {
		writeAnswer(w, refusal)
		return
	}
	st, fault, full := s.begin(req)
	if full {
		writeAnswer(w, answer{status: http.StatusInsufficientStorage, reason: errFull.Error()})
		return
	}
	switch {
	case fault.Do == Refuse:
		cut(w)
	case fault.Do == Throttle:
		w.Header().Set("Retry-After", strconv.Itoa(int((fault.wait()+time.Second-1)/time.Second)))
		s.answer(w, st, req, answer{status: http.StatusTooManyRequests, reason: "throttled"})
	case fault.Do == Status && !fault.AfterAccept:
		s.answer(w, st, req, answer{status: fault.Status, reason: "a fault that was asked for"})
	default:
		s.process(w, r, st, req, fault)
	}
}

// begin finds the fault for a request. The state is the one to go on with, also
// if a reset replaces it.
func (s *Server) begin(req request) (st *state, fault Fault, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.logFull() {
		return nil, Fault{}, true
	}
	return s.state, s.state.script.next(req.key, req.body), false
}

// process accepts a message, or finds that it was accepted, and answers.
func (s *Server) process(w http.ResponseWriter, r *http.Request, st *state, req request, fault Fault) {
	s.mu.Lock()
	e, refusal := st.reserve(req, time.Now())
	s.mu.Unlock()
	if refusal.status != 0 {
		s.answer(w, st, req, refusal)
		return
	}
	if fault.Do == Slow && !wait(r, st, fault.wait()) {
		s.mu.Lock()
		st.abandon(req.key, e)
		s.mu.Unlock()
		cut(w)
		return
	}
	status := http.StatusAccepted
	if fault.Do == Status {
		status = fault.Status
	}
	s.mu.Lock()
	a := st.accept(req, e, status, time.Now())
	s.mu.Unlock()
	if fault.Do == AcceptReset || fault.Do == AcceptHang && !wait(r, st, fault.wait()) {
		cut(w)
		return
	}
	s.answer(w, st, req, a)
}

// answer notes the answer and hands it to the connection, in this order: a
// client that has it finds it in the log.
func (s *Server) answer(w http.ResponseWriter, st *state, req request, a answer) {
	s.mu.Lock()
	st.note(req, Answered, a)
	s.mu.Unlock()
	writeAnswer(w, a)
}

// find is GET /v1/messages?key=.
func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	s.mu.Lock()
	st := s.state
	if st.logFull() {
		s.mu.Unlock()
		writeAnswer(w, answer{status: http.StatusInsufficientStorage, reason: errFull.Error()})
		return
	}
	a := st.find(key)
	st.log = append(st.log, Observation{
		What: Asked, Attempt: bounded(r.Header.Get(HeaderAttempt)), Key: bounded(key), Message: a.message, Status: a.status,
	})
	s.mu.Unlock()
	writeAnswer(w, a)
}

// putFaults is PUT /faults.
func (s *Server) putFaults(w http.ResponseWriter, r *http.Request) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	var faults []Fault
	err := dec.Decode(&faults)
	if err == nil {
		err = s.SetFaults(faults...)
	}
	if err != nil {
		writeAnswer(w, answer{status: http.StatusBadRequest, reason: err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func readRequest(w http.ResponseWriter, r *http.Request) (req request, refusal answer) {
	req.key, req.attempt = r.Header.Get(HeaderKey), r.Header.Get(HeaderAttempt)
	if req.key == "" || len(req.key) > maxName || len(req.attempt) > maxName {
		return req, answer{status: http.StatusBadRequest,
			reason: fmt.Sprintf("%s is required; it and %s have at most %d bytes", HeaderKey, HeaderAttempt, maxName)}
	}
	var err error
	if req.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			return req, answer{status: http.StatusRequestEntityTooLarge, reason: fmt.Sprintf("a message has at most %d bytes", maxBody)}
		}
		return req, answer{status: http.StatusBadRequest, reason: "the body did not arrive"}
	}
	req.digest = sha256.Sum256(req.body)
	return req, answer{}
}

func bounded(s string) string { return s[:min(len(s), maxName)] }

// wait returns false if the client left or the stub was reset before d was over;
// without d nothing else ends it.
func wait(r *http.Request, st *state, d time.Duration) bool {
	var over <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
		return true
	case <-r.Context().Done():
	case <-st.ended:
	}
	return false
}

// cut resets the connection, so that the client gets no answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the server closes the connection
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // reset; otherwise it would be an orderly end
	}
	conn.Close()
}

func writeAnswer(w http.ResponseWriter, a answer) {
	if a.replayed {
		w.Header().Set(HeaderReplayed, "true")
	}
	body := map[string]string{}
	if a.message != "" {
		body["id"] = a.message
	}
	if a.reason != "" {
		body["error"] = a.reason
	}
	writeJSON(w, a.status, body)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // what the client does not get it asks for again
}
