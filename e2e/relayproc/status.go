package relayproc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/cdc-relay/cdc-relay/internal/nettest"
)

// Status is what /statusz says.
type Status struct {
	State     string             `json:"state"`
	Reason    string             `json:"reason"`
	What      string             `json:"what"`
	Remedy    string             `json:"remedy"`
	Leader    bool               `json:"leader"`
	Positions map[string]string  `json:"positions"`
	Counters  map[string]float64 `json:"counters"`
}

// ReadStatus asks a relay on its http.listen address.
func ReadStatus(ctx context.Context, addr string) (*Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/statusz", nil)
	if err != nil {
		return nil, fmt.Errorf("asking /statusz: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking /statusz: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking /statusz: answer %s", resp.Status)
	}
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("reading /statusz: %w", err)
	}
	return &s, nil
}

// FreeAddr returns a free address on loopback that stays free, see
// nettest.FreePort.
func FreeAddr() (string, error) {
	port, err := nettest.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
