package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
)

// Received is the client's observation: an answer that arrived as a whole. It
// joins the provider's observations on the attempt id.
type Received struct {
	Attempt string `json:"attempt_id"`
	// Key is the message's; empty for a question.
	Key      string `json:"key,omitempty"`
	Method   string `json:"method"`
	Status   int    `json:"status"`
	Replayed bool   `json:"replayed,omitempty"`
}

// Observe tells f of each answer that arrives through next, before the caller
// has it. f may be called from several goroutines.
func Observe(next http.RoundTripper, f func(Received)) http.RoundTripper {
	return observer{next, f}
}

type observer struct {
	next http.RoundTripper
	f    func(Received)
}

// RoundTrip reads the whole answer: its head alone has not arrived.
func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	resp.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	o.f(Received{
		Attempt: req.Header.Get(provider.HeaderAttempt), Key: req.Header.Get(provider.HeaderKey), Method: req.Method,
		Status: resp.StatusCode, Replayed: resp.Header.Get(provider.HeaderReplayed) == "true",
	})
	return resp, nil
}
