package main

import (
	"context"

	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// cannotConnectNow is what a server answers while it shuts down or starts up.
const cannotConnectNow = "57P03"

// source is a stream that lets go of its server before the relay does. A server
// that shuts down waits for its walsenders until their clients have confirmed
// everything; that takes SQL statements, which it refuses by then. So the
// stream ends, and the line waits with what is in flight until the server is
// back.
type source struct {
	*wal.Stream
	gone  context.Context
	letGo context.CancelFunc
}

func newSource(s *wal.Stream) *source {
	gone, letGo := context.WithCancel(context.Background())
	return &source{Stream: s, gone: gone, letGo: letGo}
}

// Run reads until ctx ends or letGo was called.
func (s *source) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.gone, cancel)()
	return s.Stream.Run(ctx)
}
