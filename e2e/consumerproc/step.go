package consumerproc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"syscall"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// At names a step of an attempt.
type At string

// The steps of an attempt.
const (
	Started  At = "started"  // the handler runs, so the event is claimed
	Call     At = "call"     // the request to the provider is about to be sent
	Received At = "received" // the provider's whole answer has arrived
	Recorded At = "recorded" // the effect is in the transaction, which is not committed
)

// Step is what a process tells the test, which keeps it waiting for the answer.
type Step struct {
	Process, Group string
	At             At
	Event          string // its id
	// Of the event, at Started; Bytes are those of the payload.
	Attempt              int
	Ambiguous, Tombstone bool
	Bytes                int
	// Try is the attempt's id that the provider knows too, at Call and Received.
	Try string
	// Status is the provider's answer, at Received.
	Status int
}

// Order is the test's answer to a step.
type Order string

// The orders.
const (
	GoOn      Order = ""
	Panic     Order = "panic"
	Die       Order = "die"        // SIGKILL
	FailData  Order = "fail data"  // return a DataError with the code APP_TEST
	FailLater Order = "fail later" // return another error
)

// stage asks the test at each step.
type stage struct {
	cfg  Config
	http *http.Client
}

// step tells the test where an attempt is, and does what the test orders.
func (s stage) step(ctx context.Context, step Step) error {
	if s.cfg.Control == "" {
		return nil
	}
	if slices.Contains(s.cfg.Deaf, step.Event) {
		ctx = context.WithoutCancel(ctx)
	}
	step.Process, step.Group = s.cfg.Name, s.cfg.Group
	order, err := s.ask(ctx, step)
	if err != nil {
		return fmt.Errorf("asking the test at step %s: %w", step.At, err)
	}
	switch order {
	case GoOn:
		return nil
	case Panic:
		panic("the test asked for it")
	case Die:
		return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("still alive"))
	case FailData:
		return consumer.DataError("APP_TEST", errors.New("the test asked for it"))
	default:
		return errors.New(string(order))
	}
}

func (s stage) ask(ctx context.Context, step Step) (Order, error) {
	body, err := json.Marshal(step)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.Control, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	order, err := io.ReadAll(resp.Body)
	return Order(order), err
}
