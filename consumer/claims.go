package consumer

import "github.com/cdc-relay/cdc-relay/consumer/internal/store"

// Claim is the right to handle an event, for as long as its lease is renewed.
// Its methods may be called from any goroutine.
type Claim struct {
	store.Claim
}

// newClaim is for the line: a claim that was won, and where it came from.
func newClaim(c store.Claim, _ memory) *Claim { return &Claim{c} }

// ended reports whether the handler ended the claim in a transaction of its own.
func (c *Claim) ended() bool { return false }
