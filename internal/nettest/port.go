package nettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// given are the ports that this process has handed out. A server that restarts
// finds its own again: nobody else here got it meanwhile.
var given struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort returns a port of loopback that nobody listens on, each only once. It
// is below those that Linux hands out to clients. Safe for concurrent use.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = map[int]bool{}
	}
	for range 1000 {
		port := 10000 + rand.IntN(10000)
		if given.ports[port] {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			given.ports[port] = true
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port between 10000 and 20000")
}
