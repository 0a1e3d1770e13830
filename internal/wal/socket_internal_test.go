package wal

import (
	"net"
	"syscall"
	"testing"
)

// A peer that acknowledges nothing more gets a larger receive buffer to fill,
// up to a bound; one that does leaves it as it is.
func TestRoomForAcknowledgements(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := conn.(*socket)
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if err := s.detach(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	room := func() int {
		n, err := syscall.GetsockoptInt(s.fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	status, got := make([]byte, 39), make([]byte, 39)
	before := room()
	for range 100 {
		if _, err := s.Write(status); err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Read(got); err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Write(got); err != nil { // carries the acknowledgement
			t.Fatal(err)
		}
		if _, err := s.Read(got); err != nil {
			t.Fatal(err)
		}
	}
	if now := room(); now != before {
		t.Errorf("a receive buffer of %d bytes, %d before, though all was acknowledged", now, before)
	}

	if err := syscall.SetNonblock(s.fd, true); err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 1<<20); ; { // the peer reads nothing
		if _, err := syscall.Write(s.fd, full); err == syscall.EAGAIN {
			break
		}
	}
	last := before
	for i := range mostExtra/receiveWindow + 2 {
		_, _ = s.Write(status)
		now := room()
		switch {
		case i < mostExtra/receiveWindow && now <= last:
			t.Fatalf("write %d: a receive buffer of %d bytes, as before, though nothing was acknowledged", i, now)
		case s.extra > mostExtra:
			t.Fatalf("%d bytes more, over the bound", s.extra)
		}
		last = now
	}
}
