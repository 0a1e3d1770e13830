package kafkaconn

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes makes connections whose other ends come through a channel.
func pipes() (DialFunc, <-chan net.Conn) {
	others := make(chan net.Conn, 10)
	return func(context.Context, string, string) (net.Conn, error) {
		one, other := net.Pipe()
		others <- other
		return one, nil
	}, others
}

func dialed(t *testing.T, c *Conns) net.Conn {
	t.Helper()
	made, err := c.Dial(t.Context(), "tcp", "broker:9092")
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCloseEndsAllConnections(t *testing.T) {
	t.Parallel()
	dial, _ := pipes()
	c := New(dial)
	if c.Closed() || c.Context().Err() != nil {
		t.Error("closed from the start")
	}
	ended := make(chan error)
	for range 2 {
		made := dialed(t, c)
		go func() {
			_, err := made.Read(make([]byte, 1))
			ended <- err
		}()
	}
	c.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("reading: %v", err)
		}
	}
	if !c.Closed() || c.Context().Err() == nil {
		t.Error("not closed")
	}
	if _, err := c.Dial(t.Context(), "tcp", "broker:9092"); err != ErrClosed {
		t.Errorf("dialing: %v", err)
	}
	c.Close()
}

func TestCloseEndsADialThatWaits(t *testing.T) {
	t.Parallel()
	var c *Conns
	c = New(func(ctx context.Context, _, _ string) (net.Conn, error) {
		c.Close()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if _, err := c.Dial(t.Context(), "tcp", "broker:9092"); err != ErrClosed {
		t.Errorf("dialing: %v", err)
	}
}

func TestAConnectionThatComesAfterCloseIsClosed(t *testing.T) {
	t.Parallel()
	dial, others := pipes()
	var c *Conns
	c = New(func(ctx context.Context, network, address string) (net.Conn, error) {
		c.Close()
		return dial(ctx, network, address)
	})
	if _, err := c.Dial(t.Context(), "tcp", "broker:9092"); err != ErrClosed {
		t.Errorf("dialing: %v", err)
	}
	if _, err := (<-others).Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end: %v", err)
	}
}

func TestAFailedDial(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		err  error // of the dial, once ctx has ended if it is that of ctx
		want error
	}{
		"refused":       {t.Context(), refused, refused},
		"context ended": {ended, context.Canceled, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(func(ctx context.Context, network, address string) (net.Conn, error) {
				if network != "tcp" || address != "broker:9092" {
					t.Errorf("dials %s %s", network, address)
				}
				if errors.Is(tc.err, context.Canceled) {
					<-ctx.Done()
				}
				return nil, tc.err
			})
			if _, err := c.Dial(tc.ctx, "tcp", "broker:9092"); err != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestAClosedConnectionIsForgotten(t *testing.T) {
	t.Parallel()
	dial, others := pipes()
	c := New(dial)
	made := dialed(t, c)
	dialed(t, c)
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	if len(c.open) != 1 {
		t.Errorf("%d connections, want the other one", len(c.open))
	}
	if _, err := (<-others).Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end: %v", err)
	}
	c.Close()
	if len(c.open) != 0 {
		t.Errorf("%d connections once closed", len(c.open))
	}
}

func TestLastHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial, others := pipes()
		c := New(dial)
		defer c.Close()
		made, other := dialed(t, c), <-others
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, made)
		}()
		if at := c.LastHeard(); !at.IsZero() {
			t.Errorf("heard at %v, before anything came", at)
		}
		<-time.After(time.Second)
		if _, err := other.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		came := time.Now()
		<-time.After(time.Second)
		if err := other.Close(); err != nil { // the end is nothing that came
			t.Fatal(err)
		}
		<-ended
		if at := c.LastHeard(); !at.Equal(came) {
			t.Errorf("heard at %v, want %v", at, came)
		}
	})
}
