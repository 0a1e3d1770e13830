package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
)

// Secret is a value that must not be shown: a password or a DSN, given itself
// or as the name of a file. Every way of printing it yields "***", or nothing
// when it is not set. The zero value is not set.
type Secret struct {
	// A function, because fmt prints a field that it cannot call methods on as
	// what it holds, through pointers too; of a function it prints the address.
	read func() (string, error)
}

// NewSecret returns a secret with this value; an empty one is not set.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{func() (string, error) { return value, nil }}
}

// NewSecretFile returns a secret whose value is what the file holds whenever
// it is read; an empty name is not set.
func NewSecretFile(name string) Secret {
	if name == "" {
		return Secret{}
	}
	return Secret{func() (string, error) { return readSecretFile(name) }}
}

// IsSet reports whether a value or a file was given.
func (s Secret) IsSet() bool { return s.read != nil }

// Read returns the value, "" if not set. A file is read anew at each call, so
// that a rotated secret is found without a restart; one trailing newline is
// cut. It is safe for concurrent use.
func (s Secret) Read() (string, error) {
	if s.read == nil {
		return "", nil
	}
	return s.read()
}

const (
	maxSecret = 64 << 10
	maxFile   = 4 << 20 // configuration, certificates
)

// readBounded reads a file of at most so many bytes: what is named by mistake may
// be a log, or a device without an end.
func readBounded(name string, most int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(data) > most {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("is larger than %s", Size(most))}
	}
	return data, err
}

func readSecretFile(name string) (string, error) {
	data, err := readBounded(name, maxSecret)
	if err != nil {
		return "", fmt.Errorf("reading secret file: %w", err)
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	return string(bytes.TrimSuffix(data, []byte("\r"))), nil
}

// String returns "***", or "" when the secret is not set.
func (s Secret) String() string {
	if !s.IsSet() {
		return ""
	}
	return "***"
}

// Format prints String for every verb and flag.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalJSON renders String.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText renders String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue renders String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
