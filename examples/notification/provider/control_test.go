package provider_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
)

// do calls the stub's control and decodes the answer into v, unless it is nil.
func (s *stub) do(t *testing.T, method, path, body string, v any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if v != nil {
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode
}

func TestControlOverHTTP(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	faults := `[{"match": "ada", "nth": 1, "times": 1, "do": "status", "status": 500, "after_accept": true}]`
	if got := s.do(t, "PUT", "/faults", faults, nil); got != 204 {
		t.Fatalf("faults: %d", got)
	}
	if a := s.send(t.Context(), "k", "a1", "to ada"); a.Status != 500 {
		t.Errorf("the fault did nothing: %+v", a)
	}
	var log []provider.Observation
	s.do(t, "GET", "/log", "", &log)
	if diff := cmp.Diff(s.Log(), log); diff != "" || len(log) != 2 {
		t.Errorf("log (-want +got)\n%s", diff)
	}
	var mailbox []provider.Message
	s.do(t, "GET", "/mailbox", "", &mailbox)
	if diff := cmp.Diff([]provider.Message{{ID: "msg-1", Key: "k", Body: "to ada"}}, mailbox); diff != "" {
		t.Errorf("mailbox (-want +got)\n%s", diff)
	}
	if got := s.do(t, "POST", "/reset", "", nil); got != 204 {
		t.Errorf("reset: %d", got)
	}
	if s.do(t, "GET", "/log", "", &log); len(log) != 0 {
		t.Errorf("log after the reset: %v", log)
	}
}

func TestFaultsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.faults(t, provider.Fault{Do: provider.Status, Status: 418})
	for _, tc := range []struct{ name, faults, want string }{
		{"no JSON", `{`, "unexpected EOF"},
		{"not a list", `{"do": "refuse"}`, "cannot unmarshal"},
		{"unknown field", `[{"do": "refuse", "on": 3}]`, "unknown field"},
		{"unknown action", `[{"do": "refuse"}, {"do": "explode"}]`, "fault 2: do is one of"},
		{"no action", `[{}]`, "fault 1: do is one of"},
		{"slow without a wait", `[{"do": "slow"}]`, "slow needs ms"},
		{"throttle without a wait", `[{"do": "throttle"}]`, "throttle needs ms"},
		{"status of success", `[{"do": "status", "status": 200}]`, "400 to 599"},
		{"status without a number", `[{"do": "status"}]`, "400 to 599"},
		{"negative", `[{"do": "refuse", "nth": -1}]`, "not negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said struct{ Error string }
			if got := s.do(t, "PUT", "/faults", tc.faults, &said); got != 400 || !strings.Contains(said.Error, tc.want) {
				t.Errorf("%d %q, want 400 with %q", got, said.Error, tc.want)
			}
		})
	}
	if a := s.send(t.Context(), "k", "a1", "hello"); a.Status != 418 {
		t.Errorf("the faults before are gone: %+v", a)
	}
}
