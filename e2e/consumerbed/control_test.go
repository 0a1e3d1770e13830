package consumerbed

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// ask tells the control of a step, as a consumer does, and returns the order;
// empty too if ctx ends first.
func ask(ctx context.Context, b *Bed, at consumerproc.At, ev Event) consumerproc.Order {
	body, err := json.Marshal(consumerproc.Step{At: at, Event: ev.ID.String(), Group: b.Group})
	if err != nil {
		return consumerproc.Order(err.Error())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.control.url, bytes.NewReader(body))
	if err != nil {
		return consumerproc.Order(err.Error())
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	order, err := io.ReadAll(resp.Body)
	if err != nil {
		return consumerproc.Order(err.Error())
	}
	return consumerproc.Order(order)
}

func newControlled(t *testing.T) (*Bed, Event) {
	b := &Bed{t: t, control: startControl(t), Group: "a"}
	t.Cleanup(b.control.open)
	return b, Event{ID: outbox.NewID()}
}

func TestHoldTakesOneAttemptAfterTheOther(t *testing.T) {
	t.Parallel()
	b, ev := newControlled(t)
	holds := []*Hold{b.Hold(consumerproc.Call, ev), b.Hold(consumerproc.Call, ev)}
	orders := [2]chan consumerproc.Order{make(chan consumerproc.Order, 1), make(chan consumerproc.Order, 1)}
	for i, h := range holds {
		go func() { orders[i] <- ask(context.Background(), b, consumerproc.Call, ev) }()
		h.Wait()
	}
	for _, free := range []struct {
		at consumerproc.At
		ev Event
	}{{consumerproc.Call, ev}, {consumerproc.Started, ev}, {consumerproc.Call, Event{ID: outbox.NewID()}}} {
		if got := ask(t.Context(), b, free.at, free.ev); got != consumerproc.GoOn {
			t.Errorf("a step that nobody holds got the order %q", got)
		}
	}
	holds[1].Release(consumerproc.Die)
	holds[0].Release(consumerproc.Panic)
	if first, second := <-orders[0], <-orders[1]; first != consumerproc.Panic || second != consumerproc.Die {
		t.Errorf("the orders were %q and %q", first, second)
	}
	if n := len(b.Steps(consumerproc.Call, ev)); n != 3 {
		t.Errorf("%d steps were noted, want 3", n)
	}
}

func TestOrderIsLimitedAndLifted(t *testing.T) {
	t.Parallel()
	b, ev := newControlled(t)
	b.Order(consumerproc.Started, ev, 1, consumerproc.FailData)
	always := b.Order(consumerproc.Started, ev, -1, consumerproc.FailLater)
	next := func() consumerproc.Order { return ask(t.Context(), b, consumerproc.Started, ev) }
	got := []consumerproc.Order{next(), next(), next()}
	always.Lift()
	got = append(got, next())
	for i, want := range []consumerproc.Order{consumerproc.FailData, consumerproc.FailLater, consumerproc.FailLater, consumerproc.GoOn} {
		if got[i] != want {
			t.Errorf("attempt %d got the order %q, want %q", i+1, got[i], want)
		}
	}
}

func TestHoldSeesThatAnAttemptIsGone(t *testing.T) {
	t.Parallel()
	b, ev := newControlled(t)
	h := b.Hold(consumerproc.Call, ev)
	ctx, end := context.WithCancel(t.Context())
	go ask(ctx, b, consumerproc.Call, ev)
	h.Wait()
	end()
	h.WaitGone()
}

func TestGroupsHaveRulesOfTheirOwn(t *testing.T) {
	t.Parallel()
	b, ev := newControlled(t)
	other := *b
	other.Group = "b"
	other.Order(consumerproc.Started, ev, -1, consumerproc.FailData)
	if got := ask(t.Context(), b, consumerproc.Started, ev); got != consumerproc.GoOn {
		t.Errorf("the order for another group was taken: %q", got)
	}
	if n := len(other.Steps(consumerproc.Started, ev)); n != 0 {
		t.Errorf("%d steps of another group were taken for its own", n)
	}
}
