// Package consumerproc is the consumer under test as a process: the notification
// example's mailer on the kit, told by a file of JSON what to be, and by the
// test, step by step, what to do.
//
// It runs in a test's own program, started once more with EnvConfig set.
package consumerproc

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// EnvConfig names the variable with the path of the configuration.
const EnvConfig = "CDC_E2E_CONSUMER"

// Mode is where the memory of events is kept.
type Mode string

// The modes.
const (
	Shared      Mode = "shared"      // the outbox row
	Receipts    Mode = "receipts"    // a receipt, the effect is outside
	Transaction Mode = "transaction" // a receipt, the effect is a row of the table effect, in its transaction
)

// Config says what a process is. What is zero is the kit's default.
type Config struct {
	Name    string // of the process, for the test
	Brokers []string
	Group   string
	Topics  []string
	DSN     string // of the database with the outbox, or the receipts
	Mode    Mode
	Purpose string // of receipts

	Listen   string // host:port where it answers GET /status
	Provider string // URL
	Control  string // URL; empty: there are no steps

	Policy          string // of ambiguity: repeat, query, hold
	Lease           time.Duration
	Horizon         time.Duration
	KeyTTL          time.Duration
	NotSentWait     time.Duration
	RetryBase       time.Duration
	RetryMax        time.Duration
	RevokeGrace     time.Duration
	Drain           time.Duration
	HandlerTimeout  time.Duration
	Concurrency     int
	AbandonLimit    int
	QuarantineLimit int
	ResumeAtStart   bool
	// Raw sends payloads to the provider as they are.
	Raw bool
	// BeginEffect records that the call may leave the process, before it does.
	BeginEffect bool
	// Deaf are events whose handlers do not notice that their context has ended.
	Deaf []string
}

// Write writes the configuration to a file.
func (c Config) Write(path string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("writing the consumer's configuration: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing the consumer's configuration: %w", err)
	}
	return nil
}

func read(path string) (c Config, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, fmt.Errorf("reading the consumer's configuration: %w", err)
	}
	return c, nil
}
