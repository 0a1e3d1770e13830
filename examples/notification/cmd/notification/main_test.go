package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const aKey = "2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// settings are environment variables.
type settings map[string]string

func (s settings) get(name string) string { return s[name] }

// process is a command at work.
type process struct {
	addr string        // of what it serves
	stop func() string // waits for an end without an error, and returns the log
}

// start runs a command until the test, or stop, ends it.
func start(t *testing.T, command string, s settings) process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	lines, log := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{command}, s.get, slog.New(slog.NewJSONHandler(log, nil)))
		log.Close()
		ended <- err
	}()
	served := make(chan string, 1)
	var all strings.Builder // read once served is closed
	go func() {
		defer close(served)
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			t.Log(command, scanner.Text())
			all.WriteString(scanner.Text() + "\n")
			var line struct{ Msg, Addr string }
			if json.Unmarshal(scanner.Bytes(), &line) == nil && line.Msg == "serving" {
				served <- line.Addr
			}
		}
	}()
	p := process{addr: <-served, stop: func() string {
		cancel()
		for range served { // until the log ends
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", command, err)
		}
		ended <- nil
		return all.String()
	}}
	t.Cleanup(func() { p.stop() })
	if p.addr == "" {
		t.Fatalf("%s does not serve", command)
	}
	return p
}

// call is one request to a process.
func call(t *testing.T, method, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true // leaves no goroutine
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"help"}, {"api", "now"}} {
		if err := run(t.Context(), args, settings{}.get, slog.New(slog.DiscardHandler)); !errors.Is(err, errUsage) {
			t.Errorf("%v: error %v", args, err)
		}
	}
}

func TestAllThatIsWrongWithTheSettingsIsTold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, command string
		settings      settings
		want          []string
	}{
		{"nothing to consume", "consume", nil,
			[]string{"DSN is not set", "KEYS is not set", "BROKERS is not set", "PROVIDER is not set"}},
		{"nothing for the API", "api", nil, []string{"DSN is not set", "KEYS is not set"}},
		{"nothing to set up", "setup", nil, []string{"DSN is not set", "BROKERS is not set"}},
		{"no broker", "setup", settings{dsn: "postgres://127.0.0.1:1/x", brokers: ","}, []string{"BROKERS is a list with nothing in it"}},
		{"words", "consume", settings{ambiguity: "guess", traces: "all", timeout: "soon"},
			[]string{"AMBIGUITY is one of repeat, query, hold", "TRACES is one of off, log", "TIMEOUT is a duration such as 10s"}},
		{"time to live", "provider", settings{providerKeyTTL: "-1h"}, []string{"KEYTTL is a duration"}},
		{"keys", "api", settings{dsn: "x", keys: "k:c2VjcmV0"}, []string{`KEYS: key "k": a key is 32 random bytes`}},
		{"provider's address", "consume", settings{dsn: "postgres://127.0.0.1:1/x", keys: aKey, brokers: "b:1", providerURL: "somewhere"},
			[]string{"PROVIDER: the provider's address is a URL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), []string{tc.command}, tc.settings.get, slog.New(slog.DiscardHandler))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %q", want, err)
				}
			}
			if strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("a key is in %q", err)
			}
		})
	}
}

func TestProviderEndsWhileARequestHangs(t *testing.T) {
	t.Parallel()
	p := start(t, "provider", settings{listen: "127.0.0.1:0"})
	if status, _ := call(t, "PUT", "http://"+p.addr+"/faults", `[{"do": "accept_hang"}]`); status != 204 {
		t.Fatalf("status %d", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.addr+"/v1/messages", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	req.Header.Set("Idempotency-Key", "k")
	hung := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(req)
		hung <- err
	}()
	for log := ""; !strings.Contains(log, "accepted"); {
		_, log = call(t, "GET", "http://"+p.addr+"/log", "")
	}
	p.stop()
	if err := <-hung; err == nil {
		t.Error("an answer came")
	}
}
