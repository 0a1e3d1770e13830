// Package e2e runs the relay's program, and consumers, on real PostgreSQL and
// Kafka servers. Every test of the relay ends in the same checker, see Bed.Finish
// of package harness, and every test of consumers in another one, see Bed.Finish
// of package consumerbed.
package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// onBroker runs a test on every PostgreSQL version, one after the other, with
// one broker of its own, which the test may stop: starting one costs more than
// running two such tests in turn.
func onBroker(t *testing.T, test func(t *testing.T, db *pgtest.DB, broker *harness.Broker)) {
	t.Helper()
	broker := harness.StartBroker(t)
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			broker.EnsureUp() // a failed test may have left it down
			test(t, pgtest.New(t, version), broker)
		})
	}
}
