package consumer

import "context"

// Policy says what to do about an effect in doubt: [Repeat], [Hold] or a
// [Query]. It is asked when an attempt starts in doubt, or ends in an
// [Ambiguous] error.
type Policy struct {
	kind policyKind
	ask  func(context.Context, *Event) (Found, error)
}

type policyKind int

const (
	repeatKind policyKind = iota
	holdKind
	queryKind
)

// Repeat runs the handler again, with the same [Event.Key]: right where the
// receiver recognises the key for as long as [KeyTTL], and where a duplicate
// does no harm.
var Repeat = Policy{kind: repeatKind}

// Hold makes the event FAILED with CONSUMER_AMBIGUOUS: a person decides. As a
// process that dies leaves all that it had claimed in doubt, nothing is claimed
// before its handler can start: one statement for each event or few.
var Hold = Policy{kind: holdKind}

// Query asks the receiver by the event's key: Present is CONSUMED, Absent runs
// the handler, Unknown and an error try again later.
func Query(ask func(ctx context.Context, ev *Event) (Found, error)) Policy {
	return Policy{kind: queryKind, ask: ask}
}

// Found is what the receiver of an effect says, see [Query].
type Found int

// Answers of a query.
const (
	// Unknown: it cannot be told now.
	Unknown Found = iota
	// Present: the effect happened.
	Present
	// Absent: it did not, and will not any more.
	Absent
)
