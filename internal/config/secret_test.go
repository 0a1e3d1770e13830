package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// holder keeps a secret where fmt cannot call its methods.
type holder struct {
	Shown  Secret
	hidden Secret
}

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	const planted = "hunter2"
	secret := NewSecret(planted)
	held := holder{secret, secret}
	asJSON, err := json.Marshal(map[string]any{"secret": secret, "held": held, "config": Config{Postgres: Postgres{DSN: secret}}})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("x", "secret", secret, "held", held, "pointer", &held, "err", fmt.Errorf("reading %v", secret))
	}
	printed := []string{string(asJSON), log.String(), fmt.Sprint(secret, &secret), secret.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{secret, &secret, held, &held, []Secret{secret}, map[string]Secret{"a": secret}} {
			printed = append(printed, fmt.Sprintf(verb, v))
		}
	}
	for _, text := range printed {
		if strings.Contains(text, planted) || strings.Contains(text, fmt.Sprintf("%x", planted)) {
			t.Errorf("the secret is shown: %s", text)
		}
	}
	if got := fmt.Sprint(secret); got != "***" {
		t.Errorf("a secret is printed as %q, want ***", got)
	}
	if got := fmt.Sprint(Secret{}); got != "" {
		t.Errorf("an absent secret is printed as %q, want nothing", got)
	}
}

func TestSecretRead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		content string
		want    string
	}{
		{"bare", "hunter2", "hunter2"},
		{"newline", "hunter2\n", "hunter2"},
		{"carriage return", "hunter2\r\n", "hunter2"},
		{"only one newline is cut", "hunter2\n\n", "hunter2\n"},
		{"blanks stay", " hunter2 \n", " hunter2 "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := NewSecretFile(write(t, tt.content)).Read()
			if err != nil || got != tt.want {
				t.Errorf("Read = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// TestSecretRotates: a file is read at each call.
func TestSecretRotates(t *testing.T) {
	t.Parallel()
	name := write(t, "old")
	secret := NewSecretFile(name)
	for _, want := range []string{"old", "new"} {
		if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := secret.Read(); err != nil || got != want {
			t.Errorf("Read = %q, %v, want %q", got, err, want)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.Read(); err == nil {
		t.Error("a file that is gone is no error")
	}
}

func TestSecretFromFileOfAKey(t *testing.T) {
	t.Parallel()
	name := write(t, "postgres://u:hunter2@db/app\n")
	l, err := Load(Input{Environ: []string{"CDC_RELAY_POSTGRES__DSN_FILE=" + name}, Use: UseDatabase, File: write(t, "")})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Config.Postgres.DSN.Read(); err != nil || got != "postgres://u:hunter2@db/app" {
		t.Errorf("Read = %q, %v", got, err)
	}
	for _, s := range l.Show() {
		if strings.HasPrefix(s.Key, "postgres.dsn") && (s.Key != "postgres.dsn_file" || s.Value != name || s.Origin != "env CDC_RELAY_POSTGRES__DSN_FILE") {
			t.Errorf("shown as %+v", s)
		}
	}
}

// A device or a log named by mistake was read until the memory was gone, and the
// program ended with a trace of its stack.
func TestFilesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("x: 1\n"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/zero", large} {
		_, err := Load(Input{File: name, Use: UseNone})
		if err == nil || !strings.Contains(err.Error(), "is larger than 4MiB") || strings.Contains(err.Error(), "\n") {
			t.Errorf("configuration %s: %v", name, err)
		}
		_, err = Load(Input{Flags: []string{"kafka.tls.ca_file=" + name}, File: os.DevNull, Use: UseNone})
		if err == nil || !strings.Contains(err.Error(), "kafka.tls.ca_file: cannot be read: is larger than 4MiB") {
			t.Errorf("certificates %s: %v", name, err)
		}
		if _, err := NewSecretFile(name).Read(); err == nil || !strings.Contains(err.Error(), "is larger than 64KiB") {
			t.Errorf("secret %s: %v", name, err)
		}
		_, err = Load(Input{Flags: []string{"postgres.password_file=" + name}, File: os.DevNull, Use: UseNone})
		if err == nil || !strings.Contains(err.Error(), "postgres.password_file: cannot be read: is larger than 64KiB") {
			t.Errorf("password file %s: %v", name, err)
		}
	}
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, bytes.Repeat([]byte("s"), maxSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := NewSecretFile(full).Read(); err != nil || len(got) != maxSecret {
		t.Errorf("a secret of the largest size: %d bytes, %v", len(got), err)
	}
}
