package store

import "strings"

// Text is a statement with its parameters: ids, events and so on, see
// plan_test.go.
type Text struct{ Name, SQL, Args string }

// Texts are the statements of rows, named by their ids or not, or of receipts.
func Texts(receipts, byEvent bool) []Text {
	t := rowTexts("public.outbox")
	if receipts {
		t = receiptTexts("public.outbox_receipt")
	}
	pick := func(s statement) string {
		if byEvent {
			return s.byEvent
		}
		return s.byRow
	}
	list := []Text{
		{"claim", pick(t.claim), "many, 'me', 1000"},
		{"claim one", pick(t.claimOne), "one, 'me', 1000"},
		{"take over", pick(t.takeOver), "one, 'me', 1000, 5"},
		{"states", pick(t.states), "many"},
		{"renew", pick(t.renew), "many, generations, 1000"},
		{"done", pick(t.done), "many, generations"},
		{"hand back", pick(t.handBack), "many, generations"},
		{"fail", pick(t.fail), "one, 1, 'C', 'm'"},
		{"release", pick(t.release), "one, 1, 1000, 'C', 'm'"},
	}
	if receipts {
		list = append(list,
			Text{"begin effect", t.beginEffect, `one, 1, '\x00'`},
			Text{"clear effect", t.clearEffect, "one, 1"},
			Text{"provider's reference", t.providerRef, "one, 1, 'm'"},
			Text{"insert", t.insert, "one"},
			Text{"insert again", t.again, "one"},
			Text{"record a failure", t.recordFailure, "one, 'C', 'm'"},
			Text{"record a delay", t.recordDelay, "one, 'C', 'm', 1000"},
			Text{"purge", strings.ReplaceAll(purgePage, "{table}", "public.outbox_receipt"),
				"1000, '', '-infinity', 100"},
		)
	}
	return list
}

// PinSQL pins the settings of a session.
const PinSQL = pinSQL
