package sink

import (
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordID is the row id that a record carries.
func recordID(t *testing.T, headers []kgo.RecordHeader) int64 {
	t.Helper()
	for _, h := range headers {
		if h.Key == "cdcr-id" {
			id, err := strconv.ParseInt(string(h.Value), 10, 64)
			if err != nil {
				t.Fatalf("header cdcr-id: %v", err)
			}
			return id
		}
	}
	t.Fatal("a record has no header cdcr-id")
	return 0
}
