// Package notice is what the API tells the consumer: the payload of an event
// that asks for an e-mail. Address and token in it are sealed with AES-256-GCM,
// so that neither the outbox table nor a Kafka topic, nor a backup of one, holds
// them readable.
//
// Format 1 is a JSON object:
//
//	{"v":1,"kid":"2026-11","purpose":"verify_email","tpl":"verify_email@3","locale":"en","sealed":"..."}
//
// sealed is base64url, without padding, of nonce (12 random bytes), ciphertext
// and tag. The plaintext is {"to","token","exp"}, exp in Unix seconds. The
// additional data are, in this order and each behind its length as 4 bytes in
// big endian order: "cdc-relay/notification", v in decimal digits, kid, purpose,
// and the 16 bytes of the event id. So a ciphertext fits no other event, purpose
// or version.
//
// No error of this package holds anything that was in a payload.
package notice

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/mail"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Notice asks for one e-mail.
type Notice struct {
	// Purpose says what the e-mail is for, such as verify_email. A consumer
	// opens only what is for its own.
	Purpose string
	// Template names text and version, such as verify_email@3.
	Template string
	Locale   string
	// To is the address alone, without a name.
	To string
	// Token proves that its bearer reads mail at To.
	Token string
	// Expires is when the token is worth nothing any more, in whole seconds.
	Expires time.Time
}

// Errors of Open. Those of a version or key that is not known may be mended by
// the next deployment; the others are final.
var (
	ErrPayload = errors.New("the payload is not of the format")
	ErrVersion = errors.New("the payload has a format version that is not known here")
	ErrPurpose = errors.New("the payload is for another purpose")
	ErrKey     = errors.New("the payload is sealed with a key that is not known here")
	ErrSeal    = errors.New("the sealed part was changed, or is of another event")
	ErrExpired = errors.New("the token has expired")
	ErrAddress = errors.New("the address is none")
)

const version = 1

// payload is format 1.
type payload struct {
	Version  int    `json:"v"`
	Key      string `json:"kid"`
	Purpose  string `json:"purpose"`
	Template string `json:"tpl"`
	Locale   string `json:"locale"`
	Sealed   string `json:"sealed"`
}

// secret is the plaintext of format 1.
type secret struct {
	To      string `json:"to"`
	Token   string `json:"token"`
	Expires int64  `json:"exp"`
}

var encoding = base64.RawURLEncoding.Strict()

// Seal makes the payload of the event with this id, which the caller has chosen
// before: [outbox.NewID].
func (r *Ring) Seal(id outbox.ID, n Notice) ([]byte, error) {
	if !IsAddress(n.To) {
		return nil, ErrAddress
	}
	if n.Purpose == "" || n.Template == "" || n.Locale == "" || n.Token == "" {
		return nil, errors.New("sealing a notice: purpose, template, locale and token are required")
	}
	plain, err := json.Marshal(secret{n.To, n.Token, n.Expires.Unix()})
	if err != nil {
		return nil, errors.New("sealing a notice: it cannot be encoded")
	}
	sealed := r.keys[r.current].Seal(nil, nil, plain, additional(r.current, n.Purpose, id))
	return json.Marshal(payload{version, r.current, n.Purpose, n.Template, n.Locale, encoding.EncodeToString(sealed)})
}

// Open reads the payload of an event whose purpose is the one expected, at a
// time when its token is still of use.
func (r *Ring) Open(id outbox.ID, purpose string, data []byte, now time.Time) (Notice, error) {
	p, err := parse(data)
	if err != nil {
		return Notice{}, err
	}
	if p.Purpose != purpose {
		return Notice{}, ErrPurpose
	}
	key, ok := r.keys[p.Key]
	if !ok {
		return Notice{}, ErrKey
	}
	sealed, err := encoding.DecodeString(p.Sealed)
	if err != nil {
		return Notice{}, ErrSeal
	}
	plain, err := key.Open(nil, nil, sealed, additional(p.Key, p.Purpose, id))
	if err != nil {
		return Notice{}, ErrSeal
	}
	var s secret
	if json.Unmarshal(plain, &s) != nil || s.Token == "" {
		return Notice{}, ErrPayload
	}
	expires := time.Unix(s.Expires, 0)
	switch {
	case !IsAddress(s.To):
		return Notice{}, ErrAddress
	case !now.Before(expires):
		return Notice{}, ErrExpired
	}
	return Notice{p.Purpose, p.Template, p.Locale, s.To, s.Token, expires}, nil
}

// parse looks at the version first: another one may have other fields.
func parse(data []byte) (payload, error) {
	var v struct {
		Version *int `json:"v"`
	}
	if err := json.Unmarshal(data, &v); err != nil || v.Version == nil {
		return payload{}, ErrPayload
	}
	if *v.Version != version {
		return payload{}, ErrVersion
	}
	var p payload
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil { // its text may quote the payload
		return payload{}, ErrPayload
	}
	if p.Key == "" || p.Purpose == "" || p.Template == "" || p.Locale == "" || p.Sealed == "" {
		return payload{}, ErrPayload
	}
	return p, nil
}

// additional is what a seal binds besides its plaintext.
func additional(key, purpose string, id outbox.ID) []byte {
	var b []byte
	for _, field := range [][]byte{
		[]byte("cdc-relay/notification"), []byte(strconv.Itoa(version)), []byte(key), []byte(purpose), id[:],
	} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
		b = append(b, field...)
	}
	return b
}

// maxAddress is the longest path that SMTP carries.
const maxAddress = 254

// IsAddress reports whether s is one e-mail address and nothing else.
func IsAddress(s string) bool {
	a, err := mail.ParseAddress(s)
	return err == nil && a.Address == s && len(s) <= maxAddress
}
