package consumerproc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// Status is what GET /status says.
type Status struct {
	Records map[consumer.Outcome]int // by outcome, since the start
	Health  consumer.Health
}

// Reason is why a partition waits; empty if it does not, or is somebody else's.
func (s *Status) Reason(topic string, partition int32) consumer.Reason {
	for _, p := range s.Health.Partitions {
		if p.Topic == topic && p.Partition == int(partition) {
			return p.Reason
		}
	}
	return ""
}

// watcher is the process's consumer.Observer. It counts records.
type watcher struct {
	mu      sync.Mutex
	records map[consumer.Outcome]int
}

func newWatcher() *watcher { return &watcher{records: map[consumer.Outcome]int{}} }

func (w *watcher) Records(_ string, o consumer.Outcome, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records[o] += n
}

func (*watcher) Processed(string, time.Duration)           {}
func (*watcher) Claimed(time.Duration)                     {}
func (*watcher) Renewed(bool, int)                         {}
func (*watcher) Paused(string, int, consumer.Reason, bool) {}
func (*watcher) QuarantineRow(string, string)              {}
func (*watcher) ClaimLost()                                {}

func (w *watcher) status(health consumer.Health) Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Status{Records: maps.Clone(w.records), Health: health}
}

// serve answers GET /status until ctx ends.
func (w *watcher) serve(ctx context.Context, addr string, health func() consumer.Health) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(rw http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(rw).Encode(w.status(health())) // the test asks again
	})
	server := &http.Server{Addr: addr, Handler: mux}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return fmt.Errorf("serving the consumer's status: %w", err)
	}
	return nil
}

// ReadStatus asks a process on its address.
func ReadStatus(ctx context.Context, addr string) (*Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, fmt.Errorf("asking for a consumer's status: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for a consumer's status: %w", err)
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("reading a consumer's status: %w", err)
	}
	return &s, nil
}
