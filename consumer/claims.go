package consumer

import "github.com/cdc-relay/cdc-relay/consumer/internal/store"

// Claim is the right to handle an event, for as long as its lease is renewed.
// Its methods may be called from any goroutine.
type Claim struct {
	store.Claim
}
