// Package client talks to the e-mail provider (package provider) and tells apart
// what a caller has to decide on. It never repeats a request by itself.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
)

// Client sends messages to a provider. It is safe for concurrent use.
type Client struct {
	url  string
	http *http.Client
}

// New makes a client for the provider at baseURL. The transport's own time-outs
// apply; the caller's context bounds each call as a whole.
func New(baseURL string, transport http.RoundTripper) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the provider's address is a URL such as http://localhost:8025")
	}
	return &Client{url: u.JoinPath("/v1/messages").String(), http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Answer is what the provider said.
type Answer struct {
	// Status is the HTTP status: what it means for the message is for the caller
	// to say.
	Status int
	// Replayed says that this is the stored answer to an earlier request.
	Replayed bool
	// RetryAfter is how long to wait, 0 if that was not said.
	RetryAfter time.Duration
	// ID is the provider's name of an accepted message.
	ID string
}

// Send asks to deliver a message. The key is the same on each attempt and the
// attempt id is not. After an error the message may have been accepted.
func (c *Client) Send(ctx context.Context, key, attempt string, message []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(message))
	if err != nil {
		return Answer{}, fmt.Errorf("sending a message: %w", err)
	}
	// With an Idempotency-Key the transport would send a request again by itself
	// after a reset connection, unseen by those who count attempts. It cannot
	// without this function.
	req.GetBody = nil
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(provider.HeaderKey, key)
	a, err := c.do(req, attempt)
	if err != nil {
		return Answer{}, fmt.Errorf("sending a message: %w", err)
	}
	return a, nil
}

// Find asks whether the message of a key was accepted: 200 is yes, 404 no.
func (c *Client) Find(ctx context.Context, key, attempt string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?"+url.Values{"key": {key}}.Encode(), nil)
	if err != nil {
		return Answer{}, fmt.Errorf("asking for a message: %w", err)
	}
	a, err := c.do(req, attempt)
	if err != nil {
		return Answer{}, fmt.Errorf("asking for a message: %w", err)
	}
	return a, nil
}

const maxAnswer = 64 << 10 // bytes

func (c *Client) do(req *http.Request, attempt string) (Answer, error) {
	req.Header.Set(provider.HeaderAttempt, attempt)
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{}, withoutURL(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	}
	var said struct{ ID string }
	_ = json.Unmarshal(body, &said) // the status is what counts; an id is for people
	return Answer{
		Status: resp.StatusCode, Replayed: resp.Header.Get(provider.HeaderReplayed) == "true",
		RetryAfter: retryAfter(resp.Header.Get("Retry-After")), ID: said.ID,
	}, nil
}

// withoutURL takes the address, and with it the key, out of an error.
func withoutURL(err error) error {
	if in := new(url.Error); errors.As(err, &in) {
		return in.Err
	}
	return err
}

// retryAfter reads a number of seconds; the header's other form, a date, would
// depend on the clocks of two machines.
func retryAfter(header string) time.Duration {
	seconds, err := strconv.Atoi(header)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 24*60*60)) * time.Second
}
