package e2e

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// sealing makes payloads of the notification example, as its documentation
// tells, also such as its own code refuses to make.
type sealing struct {
	purpose string
	secret  map[string]any
	of      *outbox.ID // event that the seal is for; nil: its own
}

func (s sealing) payload(t *testing.T) func(outbox.ID) []byte {
	return func(id outbox.ID) []byte {
		name, key, _ := strings.Cut(consumerproc.Keys, ":")
		raw, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			t.Fatal(err)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			t.Fatal(err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		if s.of != nil {
			id = *s.of
		}
		var additional []byte
		for _, field := range []string{"cdc-relay/notification", "1", name, s.purpose, string(id[:])} {
			additional = binary.BigEndian.AppendUint32(additional, uint32(len(field)))
			additional = append(additional, field...)
		}
		nonce := make([]byte, gcm.NonceSize())
		plain, _ := json.Marshal(s.secret) // of plain values
		sealed := gcm.Seal(nonce, nonce, plain, additional)
		payload, _ := json.Marshal(map[string]any{"v": 1, "kid": name, "purpose": s.purpose, "tpl": "verify_email@3", "locale": "en",
			"sealed": base64.RawURLEncoding.EncodeToString(sealed)})
		return payload
	}
}

// TestBadPayloads: what no repetition can mend is FAILED with the application's
// code, at once and without a call; the next event of the partition goes through.
func TestBadPayloads(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		good := sealing{purpose: consumerproc.Purpose, secret: map[string]any{
			"to": "reader@example.com", "token": "a token", "exp": time.Now().Add(time.Hour).Unix()}}
		with := func(name string, value any) sealing {
			s := good
			s.secret = map[string]any{}
			for k, v := range good.secret {
				s.secret[k] = v
			}
			s.secret[name] = value
			return s
		}
		other, elsewhere := outbox.NewID(), good
		elsewhere.of = &other
		purpose := good
		purpose.purpose = "reset_password"
		text := func(s string) func(outbox.ID) []byte { return func(outbox.ID) []byte { return []byte(s) } }
		bad := []struct {
			name    string
			payload func(outbox.ID) []byte
			code    string
		}{
			{"no JSON", text(`{"v":1,`), "APP_PAYLOAD"},
			{"a field missing", text(`{"v":1,"kid":"2026-11","purpose":"verify_email","tpl":"verify_email@3","locale":"en"}`), "APP_PAYLOAD"},
			{"no address", with("to", "reader at example").payload(t), "APP_ADDRESS"},
			{"sealed for another event", elsewhere.payload(t), "APP_SEAL"},
			{"for another purpose", purpose.payload(t), "APP_PURPOSE"},
			{"expired", with("exp", time.Now().Add(-time.Hour).Unix()).payload(t), "APP_EXPIRED"},
		}
		var specs []consumerbed.Spec
		for i, p := range bad {
			specs = append(specs, consumerbed.Spec{Partition: i, Payload: p.payload}, consumerbed.Spec{Partition: i, Payload: good.payload(t)})
		}
		b := consumerbed.New(t, consumerbed.Options{Partitions: len(bad), Consumer: consumerproc.Config{Mode: mode}})
		events := b.Put(specs...)
		p := b.Start()
		failed := consumerbed.Codes{}
		for i := range bad {
			failed[events[2*i].ID] = bad[i].code
		}
		b.Finish(consumerbed.Arranged{Failed: failed})
		for i, tc := range bad {
			b.Want(tc.name, events[2*i], consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: tc.code})
			b.Want("the event after "+tc.name, events[2*i+1], once)
		}
		for _, secret := range []string{"a token", "reader"} {
			if strings.Contains(p.Output(), secret) || b.InMessages(secret) {
				t.Errorf("%q is in the consumer's log or in an error message", secret)
			}
		}
	})
}
