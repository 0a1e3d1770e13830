package notice

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Ring holds the keys by their names. It is immutable.
//
// A nonce is random, so a key may seal 2^32 notices at most; a new one each
// month is far below. An old one stays for as long as payloads sealed with it
// can come: the topic's retention and the replay horizon.
type Ring struct {
	current string
	keys    map[string]cipher.AEAD
}

// ParseRing reads keys as name:base64,name:base64. The first seals, all open. A
// key is 32 bytes. Errors name keys, but show none.
func ParseRing(s string) (*Ring, error) {
	r := &Ring{keys: map[string]cipher.AEAD{}}
	for i, item := range strings.Split(s, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(item), ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("key %d: write name:base64", i+1)
		}
		if r.keys[name] != nil {
			return nil, fmt.Errorf("key %q is given twice", name)
		}
		aead, err := newAEAD(text)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", name, err)
		}
		r.keys[name] = aead
		if i == 0 {
			r.current = name
		}
	}
	return r, nil
}

const keySize = 32 // AES-256

func newAEAD(text string) (cipher.AEAD, error) {
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(key) != keySize {
		return nil, errors.New("a key is 32 random bytes in base64, such as openssl rand -base64 32 prints")
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("making a cipher: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block) // puts its 12 bytes before the ciphertext
}
