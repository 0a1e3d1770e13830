package sink

import (
	"context"
	"fmt"
	"time"
)

// This file spreads the keys of a topic over another number of partitions
// when a person wants that. A key may move to another partition then, and its
// events must stay in order: new ones wait until all that went to the old
// partitions are acknowledged.

// wantedAge is how old the knowledge of what people want may get, and how long
// a drain that was given up is not tried again.
const wantedAge = 5 * time.Second

// repinner is what the watcher knows of wanted partition counts.
type repinner struct {
	wanted  map[string]int // by topic
	read    time.Time
	told    map[string]int // wanted counts that the topic does not have, as logged
	present map[string]int // what topics have more than is pinned, as logged
}

// readWanted asks what people want, for all topics at once, if that is not
// known of late.
func (w *watcher) readWanted(ctx context.Context) {
	r := &w.repins
	if len(w.pinned) == 0 || time.Since(r.read) < wantedAge {
		return
	}
	r.read = time.Now()
	wanted, err := w.pins.Wanted(ctx)
	switch {
	case err == nil:
		r.wanted = wanted
	case ctx.Err() == nil:
		w.log.Warn("wanted partition counts are not known", "err", err)
	}
}

// repin pins what is wanted for t, once its queues are empty. It returns what
// is pinned, and whether t is being emptied: then it must stay as it is.
func (w *watcher) repin(ctx context.Context, t *topic, pinned, present int) (now int, draining bool, err error) {
	wanted := w.repins.wanted[t.name]
	if wanted == 0 || !w.has(t, wanted, present) {
		return pinned, false, nil
	}
	if !w.queues.drain(t) {
		return pinned, w.queues.isDraining(t), nil
	}
	now, err = w.pins.Repin(ctx, t.name, wanted)
	if err != nil {
		return pinned, false, fmt.Errorf("changing the partition count of topic %s: %w", t.name, err)
	}
	delete(w.repins.wanted, t.name)
	w.pinned[t.name] = now
	w.log.Info("the keys of a topic are spread anew: they may move to other partitions", "topic", t.name, "from", pinned, "to", now)
	return now, false, nil
}

// has reports whether t has as many partitions as are wanted, and says so once
// if it does not.
func (w *watcher) has(t *topic, wanted, present int) bool {
	if wanted <= present {
		delete(w.repins.told, t.name)
		return true
	}
	if w.repins.told[t.name] != wanted {
		w.repins.told[t.name] = wanted
		w.log.Warn("a topic has fewer partitions than are wanted: that waits until it has them", "topic", t.name, "wanted", wanted, "present", present)
	}
	return false
}

// tellMore says once that t has more partitions than are used.
func (w *watcher) tellMore(t *topic, pinned, present int) {
	switch {
	case present <= pinned:
		delete(w.repins.present, t.name)
	case w.repins.present[t.name] != present:
		w.repins.present[t.name] = present
		w.log.Info("a topic has more partitions than its keys are spread over: cdc-relay topics repin lets them be used",
			"topic", t.name, "pinned", pinned, "present", present)
	}
}

// drain lets new events of t wait and reports whether its partitions have none
// left. It does not begin while a partition is silent, nor soon after it was
// given up.
func (q *queues) drain(t *topic) (empty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	empty = true
	for _, part := range t.partitions {
		if part.silent {
			return false
		}
		empty = empty && !part.busy && part.open == nil && len(part.full) == 0
	}
	if t.state == topicReady && time.Since(t.resumed) >= wantedAge {
		t.state = topicDraining
	}
	return empty && t.state != topicReady
}

func (q *queues) isDraining(t *topic) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.state == topicDraining
}

// resume gives a drain up, since too much would wait. The lock is held.
func (q *queues) resume(t *topic, now int64) {
	t.resumed = time.UnixMilli(now)
	q.log.Info("changing a topic's partition count is put off: too many events would wait", "topic", t.name)
	q.encodeWaiting(t, now)
}
