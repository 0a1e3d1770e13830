package operate

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Kind is where a row is in its life; status codes alone do not tell.
type Kind string

// The kinds, as JSON shows them.
const (
	KindNew           Kind = "new"
	KindHeld          Kind = "held"
	KindDelayed       Kind = "delayed"
	KindRetrying      Kind = "retrying"
	KindDue           Kind = "due"
	KindPolled        Kind = "polled"
	KindSent          Kind = "sent"
	KindConsumerDelay Kind = "consumer_delay"
	KindConsuming     Kind = "consuming"
	KindAbandoned     Kind = "abandoned"
	KindConsumed      Kind = "consumed"
	KindFailedPublish Kind = "failed_publish"
	KindFailedConsume Kind = "failed_consume"
	KindWaived        Kind = "waived"
	KindUnknown       Kind = "unknown"
)

// meanings say what a kind is.
var meanings = map[Kind]string{
	KindNew:           "it is committed and not published yet; the relay takes it from the slot in the order of commits",
	KindHeld:          "it waits for an earlier event of its aggregate, so that their order is kept",
	KindDelayed:       "it was written to be published later, at its next attempt",
	KindRetrying:      "publishing it failed or was put off; the relay tries again by itself at the next attempt",
	KindDue:           "its time has come; the relay publishes it at its next tick",
	KindPolled:        "a relay that polls has claimed it and is publishing it",
	KindSent:          "Kafka has acknowledged it; it waits for its consumer, if that marks what it has consumed",
	KindConsumerDelay: "Kafka has acknowledged it; its consumer has put it off until the next attempt",
	KindConsuming:     "its consumer is working on it",
	KindAbandoned:     "a consumer claimed it and its lease is over; another one takes it over, or the relay publishes it again",
	KindConsumed:      "its consumer is done with it",
	KindFailedPublish: "it could not be published and waits for a person",
	KindFailedConsume: "it was published, its consumer failed, and it waits for a person",
	KindWaived:        "it failed and a person skipped it; nothing waits for it",
	KindUnknown:       "its status is none that cdc-relay knows",
}

// Kind tells where the row is at a time.
func (r *Row) Kind(at time.Time) Kind {
	waits := r.NextAttemptAt.After(at)
	switch r.Status {
	case outbox.Ready:
		return r.readyKind(waits)
	case outbox.InProgress:
		return KindPolled
	case outbox.Sent:
		if waits {
			return KindConsumerDelay
		}
		return KindSent
	case outbox.Consuming:
		if r.LeaseUntil.After(at) {
			return KindConsuming
		}
		return KindAbandoned
	case outbox.Consumed:
		return KindConsumed
	case outbox.Failed:
		switch {
		case r.FinishedAt.IsSet():
			return KindWaived
		case r.Phase() == PhaseConsume:
			return KindFailedConsume
		default:
			return KindFailedPublish
		}
	default:
		return KindUnknown
	}
}

func (r *Row) readyKind(waits bool) Kind {
	switch {
	case !r.NextAttemptAt.IsSet():
		return KindNew
	case r.NextAttemptAt.Never():
		return KindHeld
	case !waits:
		return KindDue
	case r.Attempts == 0 && r.CommitLSN == "":
		return KindDelayed
	default:
		return KindRetrying
	}
}

// Kind tells where the event is.
func (d *Detail) Kind() Kind { return d.Row.Kind(d.At) }

// Meaning says it in words.
func (d *Detail) Meaning() string { return meanings[d.Kind()] }

// unpublished are the kinds that wait for the relay.
func (k Kind) unpublished() bool {
	switch k {
	case KindNew, KindHeld, KindDelayed, KindRetrying, KindDue:
		return true
	}
	return false
}

// Holds says what keeps the event from going on, a sentence each; none if
// nothing is known to.
func (d *Detail) Holds() []string {
	var holds []string
	kind := d.Kind()
	if kind.unpublished() && d.First.ID != 0 {
		holds = append(holds, "row "+d.First.text()+" comes before it in its aggregate")
	}
	if kind == KindHeld && d.First.ID == 0 {
		holds = append(holds, "nothing comes before it any more: the relay releases it within a minute, unless the partition does not answer")
	}
	if kind == KindRetrying && d.ErrorCode != "" {
		holds = append(holds, "attempt "+fmt.Sprint(d.Attempts)+" failed: "+Explain(d.ErrorCode).Meaning)
	}
	if kind.unpublished() && !d.Leader.Leads {
		holds = append(holds, d.Leader.absent())
	}
	if kind == KindConsuming || kind == KindAbandoned || kind == KindPolled {
		if d.ClaimedBy != "" {
			holds = append(holds, "it is claimed by "+d.ClaimedBy)
		}
	}
	for _, locker := range d.Lockers {
		holds = append(holds, locker.String()+" has locked the row or changed it, and not ended its transaction")
	}
	return holds
}

func (h *Head) text() string {
	text := fmt.Sprintf("%d (%s", h.ID, h.Status)
	switch {
	case h.Status == outbox.Ready && h.NextAttemptAt.Never():
		text += ", held"
	case h.Status == outbox.Ready && h.NextAttemptAt.Finite():
		text += ", next attempt at " + h.NextAttemptAt.Time.UTC().Format(time.RFC3339)
	}
	if h.ErrorCode != "" {
		text += ", " + h.ErrorCode
	}
	return text + ")"
}

func (l *Leader) absent() string {
	if l.Instance == "" {
		return "no relay has ever led this slot"
	}
	text := "no relay leads the slot"
	if l.RenewedAt.Finite() {
		text += fmt.Sprintf("; %s did so until %s", l.Instance, l.RenewedAt.Time.UTC().Format(time.RFC3339))
	}
	return text
}

// NextSteps say what to do now: commands to copy, or a sentence; none if there
// is nothing to be done.
func (d *Detail) NextSteps() []string {
	switch kind := d.Kind(); kind {
	case KindFailedPublish, KindFailedConsume:
		var steps []string
		if d.ErrorCode != "" {
			steps = append(steps, Explain(d.ErrorCode).Remedy)
		}
		return append(steps, d.command("replay", "--wait 30s --reason '...'"), d.command("skip", "--reason '...'"))
	case KindWaived:
		return []string{d.command("replay", "--include-waived --wait 30s --reason '...'")}
	case KindSent, KindConsumerDelay, KindConsumed:
		return []string{d.command("events show", "--locate")}
	case KindRetrying:
		if d.ErrorCode != "" && d.First.ID == 0 {
			return []string{Explain(d.ErrorCode).Remedy}
		}
	}
	return d.waitingSteps()
}

// waitingSteps are those of an event that is not the one to be dealt with.
func (d *Detail) waitingSteps() []string {
	switch {
	case !d.Kind().unpublished():
		return nil
	case d.First.ID != 0 && d.First.Status == outbox.Failed:
		return []string{fmt.Sprintf("cdc-relay failed show %d", d.First.ID)}
	case d.First.ID != 0:
		return []string{fmt.Sprintf("cdc-relay events show %d", d.First.ID)}
	case !d.Leader.Leads, d.Kind() != KindDelayed:
		return []string{"cdc-relay status"}
	}
	return nil
}

func (d *Detail) command(name, flags string) string {
	return fmt.Sprintf("cdc-relay %s %d %s", name, d.ID, flags)
}

// ReplayEffect says what a replay of a FAILED row would do.
func (d *Detail) ReplayEffect() string {
	if d.Kind() == KindFailedConsume {
		text := "sets it READY and due with no attempts; the relay publishes it to Kafka again, with the same event id, and its consumer gets another try"
		if doubtful(d.ErrorCode) {
			text += ", as if no earlier one could have had its effect"
		}
		return text
	}
	text := "sets it READY and due with no attempts; the relay publishes it"
	switch {
	case d.Kind() == KindWaived:
		text += ", after what was published meanwhile; it needs --include-waived"
	case d.Blocking > 0:
		text += ", and then the " + HeldText(d.Blocking) + " behind it, in order"
	}
	return text
}

// SkipEffect says what skipping a FAILED row would do.
func (d *Detail) SkipEffect() string {
	switch kind := d.Kind(); {
	case kind == KindWaived:
		return "nothing: it is skipped already"
	case kind == KindFailedConsume:
		return "gives it up: no consumer gets it again from here, and it no longer alerts"
	case d.Blocking > 0:
		return "gives it up: it is never published and no longer alerts, and the " + HeldText(d.Blocking) + " behind it follow within a tick"
	default:
		return "gives it up: it is never published and no longer alerts"
	}
}

// HeldText is a count of held events, up to MaxBlocking, in words.
func HeldText(n int) string {
	switch {
	case n >= MaxBlocking:
		return fmt.Sprintf("%d or more held events", MaxBlocking)
	case n == 1:
		return "1 held event"
	default:
		return fmt.Sprintf("%d held events", n)
	}
}
