package wal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
	"unsafe"
)

// sendTimeout bounds the write of a status, which is a few bytes: only a dead
// connection has no room for them.
const sendTimeout = 10 * time.Second

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name: how
// long sent data may stay unacknowledged by the peer's kernel.
const (
	tcpUserTimeout       = 0x12
	unacknowledgedMillis = 30_000
)

// tcpThinLinearTimeouts is TCP_THIN_LINEAR_TIMEOUTS, which package syscall does
// not name either. While nothing is read, the kernel's receive buffer is full,
// and acknowledgements of our statuses get lost with the data they come with
// (retransmissions seen on Linux 6.18 with the buffer full). Doubling the pause
// after each loss would silence us for 3 s after four of them; a stream as thin
// as ours may repeat at an even pace instead.
const tcpThinLinearTimeouts = 0x10

// What is written to the server is small, and acknowledged at once. When
// several writes are not, while the receive buffer is full, the server's
// acknowledgements do not get in: what it has sent beyond the closed window
// comes before them. It then gets nothing but repetitions of the first write,
// and cuts the connection in the end. So the buffer gets room for one more
// window, up to a bound. Seen with wal_sender_timeout of 3 and 5 s on busy
// machines, Linux 6.18.
const (
	unacknowledgedWrites = 2
	mostExtra            = 1 << 20 // bytes
)

// dial connects with a small receive window. The window's scale is settled by
// the connect, hence the hook before it.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control: func(network, _ string, conn syscall.RawConn) error {
			var err error
			controlErr := conn.Control(func(fd uintptr) { err = configure(int(fd), network) })
			return errors.Join(controlErr, err)
		},
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &socket{Conn: conn}, nil
}

func configure(fd int, network string) error {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveWindow); err != nil {
		return fmt.Errorf("setting the receive window: %w", err)
	}
	if network == "unix" {
		return nil
	}
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, tcpUserTimeout, unacknowledgedMillis); err != nil {
		return fmt.Errorf("setting TCP_USER_TIMEOUT: %w", err)
	}
	err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, tcpThinLinearTimeouts, 1)
	if err != nil && err != syscall.ENOPROTOOPT { // a kernel without it will do
		return fmt.Errorf("setting TCP_THIN_LINEAR_TIMEOUTS: %w", err)
	}
	return nil
}

// socket is a connection to the server. During the handshake it is an
// ordinary connection of package net, with deadlines. Once it is detached, Go's
// poller does not know it any more: while a goroutine of ours sleeps, the
// poller would wait for every socket it knows, so each small send of the
// walsender would wake a thread here and cost the walsender itself.
//
// Detached, it may be read by one goroutine and written by another. It has no
// deadlines; shutdown ends a read and a write that wait.
type socket struct {
	net.Conn

	detached bool
	closed   bool // after it was detached
	fd       int
	in       *bufio.Reader // of fd; gives TLS, which reads little at a time, large reads
	extra    int           // bytes of receive buffer beyond receiveWindow; the writer's
	pace     pace
}

// detach takes the connection out of Go's poller. Nobody may be using it.
func (s *socket) detach() error {
	conn, ok := s.Conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("a connection of type %T has no file descriptor", s.Conn)
	}
	fd, err := duplicate(conn)
	if err != nil {
		return fmt.Errorf("duplicating the connection's file descriptor: %w", err)
	}
	if err := block(fd); err != nil {
		syscall.Close(fd)
		return fmt.Errorf("making the connection blocking: %w", err)
	}
	s.fd, s.detached = fd, true
	s.in = bufio.NewReaderSize(descriptor{s}, receiveWindow)
	return s.Conn.Close() // the copy lives on
}

func duplicate(conn syscall.Conn) (fd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(old uintptr) {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, old, syscall.F_DUPFD_CLOEXEC, 0)
		if fd = int(n); errno != 0 {
			err = errno
		}
	})
	return fd, errors.Join(controlErr, err)
}

func block(fd int) error {
	if err := syscall.SetNonblock(fd, false); err != nil {
		return err
	}
	timeout := syscall.NsecToTimeval(sendTimeout.Nanoseconds())
	return syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &timeout)
}

// Read reads what has come, at least one byte. Reads of receiveWindow bytes
// or more go to the socket directly.
func (s *socket) Read(p []byte) (int, error) {
	if !s.detached {
		return s.Conn.Read(p)
	}
	return s.in.Read(p)
}

// caughtUp reports whether the reads so far took all that has come. After a
// large read there mostly is more; if there is not, the next read may wait for
// long.
func (s *socket) caughtUp() bool {
	return s.in.Buffered() == 0 && (s.pace.caughtUp() || !s.readable())
}

// readable reports whether a read would not wait.
func (s *socket) readable() bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(s.fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err != syscall.EAGAIN
}

// descriptor reads from the detached socket itself, at its pace.
type descriptor struct{ s *socket }

func (d descriptor) Read(p []byte) (int, error) {
	if pause := d.s.pace.pause(time.Now()); pause > 0 {
		time.Sleep(pause)
	}
	for {
		n, err := syscall.Read(d.s.fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("reading from the server: %w", err)
		case n == 0:
			return 0, io.EOF
		}
		d.s.pace.read(n, time.Now())
		return n, nil
	}
}

func (s *socket) Write(p []byte) (int, error) {
	if !s.detached {
		return s.Conn.Write(p)
	}
	s.makeRoom(unacknowledgedWrites * len(p))
	written := 0
	for written < len(p) {
		n, err := syscall.Write(s.fd, p[written:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return written, fmt.Errorf("writing to the server: no room within %v", sendTimeout)
		case err != nil:
			return written, fmt.Errorf("writing to the server: %w", err)
		}
		written += n
	}
	return written, nil
}

// makeRoom makes the receive buffer larger if so many bytes that were written
// have not been acknowledged. It is a remedy, not a condition: a socket that
// does not know is left as it is.
func (s *socket) makeRoom(unacknowledged int) {
	var n int32
	_, _, err := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s.fd), syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n)))
	if err != 0 || int(n) < unacknowledged || s.extra >= mostExtra {
		return
	}
	s.extra += receiveWindow
	_ = syscall.SetsockoptInt(s.fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveWindow+s.extra)
}

// shutdown ends reads and writes that wait, and all later ones.
func (s *socket) shutdown() {
	if s.detached && !s.closed {
		_ = syscall.Shutdown(s.fd, syscall.SHUT_RDWR) // it may be closed by the peer already
	}
}

// Close closes the connection; once it is detached, no read or write may be
// waiting then. Closing again does nothing: the number of the file descriptor
// may be somebody else's by now.
func (s *socket) Close() error {
	if !s.detached {
		return s.Conn.Close()
	}
	if s.closed {
		return nil
	}
	s.closed = true
	return syscall.Close(s.fd)
}

// SetDeadline and its like do nothing once the socket is detached: TLS sets
// one when it closes.
func (s *socket) SetDeadline(t time.Time) error {
	if s.detached {
		return nil
	}
	return s.Conn.SetDeadline(t)
}

// SetReadDeadline is explained at SetDeadline.
func (s *socket) SetReadDeadline(t time.Time) error {
	if s.detached {
		return nil
	}
	return s.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is explained at SetDeadline.
func (s *socket) SetWriteDeadline(t time.Time) error {
	if s.detached {
		return nil
	}
	return s.Conn.SetWriteDeadline(t)
}
