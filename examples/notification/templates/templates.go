// Package templates makes the e-mails. It is pure: the same notice gives the
// same bytes on every attempt, by every process that knows the template. A
// provider recognises a repeated message by its bytes, so there is no clock, no
// randomness and no configuration in them.
//
// A version that was once in use is never changed, also not by another language:
// make a new one, and keep the old one for as long as events that name it can
// come, the topic's retention and the replay horizon.
package templates

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
)

// VerifyEmail is the purpose of e-mails that ask for a confirmation, and Current
// the template that new ones name.
const (
	VerifyEmail = "verify_email"
	Current     = "verify_email@3"
)

// ErrTemplate: there is no such template for this purpose.
var ErrTemplate = errors.New("the template is not known here, or is for another purpose")

// message is what the provider gets.
type message struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// text of a template in one language.
type text struct {
	subject, body string
}

// defaultLocale is used where a template does not have the one asked for.
const defaultLocale = "en"

// texts by template and locale. What is in braces is replaced.
var texts = map[string]map[string]text{
	"verify_email@2": {
		"en": {"Confirm your address", "Your code is {token}\n"},
	},
	"verify_email@3": {
		"en": {"Please confirm your e-mail address",
			"Hello,\n\nsomebody, probably you, has registered with this address. To confirm it, open\n\n{link}\n\n" +
				"If it was not you, there is nothing to do.\n"},
		"de": {"Bitte bestätigen Sie Ihre E-Mail-Adresse",
			"Guten Tag,\n\njemand, wahrscheinlich Sie, hat sich mit dieser Adresse angemeldet. Zur Bestätigung öffnen Sie bitte\n\n{link}\n\n" +
				"Wenn Sie es nicht waren, ist nichts zu tun.\n"},
	},
}

// site is where links lead. It is part of the templates, as their bytes are.
const site = "https://app.example.com/verify"

// Render makes the provider's message of a notice.
func Render(n notice.Notice) ([]byte, error) {
	name, _, _ := strings.Cut(n.Template, "@")
	languages, ok := texts[n.Template]
	if !ok || name != n.Purpose {
		return nil, ErrTemplate
	}
	t, ok := languages[n.Locale]
	if !ok {
		t = languages[defaultLocale]
	}
	link := site + "?" + url.Values{"email": {n.To}, "token": {n.Token}}.Encode()
	return json.Marshal(message{
		To: n.To, Subject: t.subject, Text: strings.NewReplacer("{token}", n.Token, "{link}", link).Replace(t.body),
	})
}
