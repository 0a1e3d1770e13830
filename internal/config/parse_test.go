package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"500ms", 500 * time.Millisecond, true},
		{"1h30m", 90 * time.Minute, true},
		{"14d", 14 * 24 * time.Hour, true},
		{"1d12h", 36 * time.Hour, true},
		{"0", 0, true},
		{"0s", 0, true},
		{"-1s", -time.Second, true}, // for the check of each key to judge
		{"5", 0, false},
		{"1.5", 0, false},
		{"", 0, false},
		{"d", 0, false},
		{"1.5d", 0, false},
		{"-1d", 0, false},
		{"1d-2h", 0, false},
		{"12h1d", 0, false},
		{"1d2d", 0, false},
		{"5 s", 0, false},
		{"65535d900000h", 0, true},
		{"65536d", 0, false},
		{"60000d2500000h", 0, false}, // more than a Duration holds
		{"9999999h", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			got, d := parseDuration(tt.text)
			if (d == fine) != tt.ok || tt.want != 0 && got != tt.want {
				t.Errorf("parseDuration(%q) = %v, %v", tt.text, got, d)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want Size
		ok   bool
	}{
		{"0", 0, true},
		{"1044480", 1044480, true},
		{"1KiB", 1 << 10, true},
		{"24MiB", 24 << 20, true},
		{"24 MiB", 24 << 20, true},
		{"2GiB", 2 << 30, true},
		{"1.5GiB", 0, false},
		{"24MB", 0, false},
		{"-1", 0, false},
		{"MiB", 0, false},
		{"", 0, false},
		{"8589934592GiB", 0, false}, // 2^63
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			got, d := parseSize(tt.text)
			if got != tt.want || (d == fine) != tt.ok {
				t.Errorf("parseSize(%q) = %d, %v", tt.text, got, d)
			}
		})
	}
}

// TestShownIsRead: what config show prints can be written into the environment.
func TestShownIsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Min(0).Draw(t, "size"))
		if got, d := parseSize(size.String()); got != size {
			t.Errorf("size %d is shown as %s and read as %d, %v", size, size, got, d)
		}
		duration := time.Duration(rapid.Int64Min(0).Draw(t, "duration"))
		text := formatDuration(duration)
		if got, d := parseDuration(text); got != duration {
			t.Errorf("duration %d is shown as %s and read as %d, %v", duration, text, got, d)
		}
	})
}

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "5s": 5 * time.Second, "4m": 4 * time.Minute, "10m": 10 * time.Minute, "1h": time.Hour, "20h": 20 * time.Hour,
		"1h0m1s": time.Hour + time.Second, "1500ms": 1500 * time.Millisecond,
	} {
		got, defect := parseDuration(formatDuration(d))
		if got != d || defect != fine {
			t.Errorf("%v does not survive", d)
		}
		if want != "1500ms" && formatDuration(d) != want {
			t.Errorf("formatDuration(%d) = %s, want %s", d, formatDuration(d), want)
		}
	}
}

func TestParseDSN(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want dsn
		ok   bool
	}{
		{"url", "postgres://u:p@db:5433/app", dsn{"db", "5433", true, false}, true},
		{"other scheme", "postgresql://db/app", dsn{host: "db"}, true},
		{"url without password", "postgres://u@db/app", dsn{host: "db"}, true},
		{"empty password", "postgres://u:@db/app", dsn{host: "db"}, true},
		{"password as a parameter", "postgres://db/app?password=p", dsn{host: "db", hasPassword: true}, true},
		{"password of a key", "postgres://db/app?sslpassword=p", dsn{host: "db", hasKeyPassword: true}, true},
		{"password of a key as a keyword", "host=db sslpassword=p", dsn{host: "db", hasKeyPassword: true}, true},
		{"host as a parameter", "postgres:///app?host=/run/pg&port=6543", dsn{host: "/run/pg", port: "6543"}, true},
		{"several hosts", "postgres://u:p@a:1,b:2/app", dsn{"a", "1", true, false}, true},
		{"ipv6", "postgres://[::1]:5432/app", dsn{host: "::1", port: "5432"}, true},
		{"bad escape", "postgres://u:%zz@db/app", dsn{}, false},
		{"bad query", "postgres://db/app?a=%zz", dsn{}, false},
		{"keywords", "host=db port = 6543 password=p", dsn{"db", "6543", true, false}, true},
		{"quoted", `password='it\'s a = secret' host='a b'`, dsn{host: "a b", hasPassword: true}, true},
		{"escaped blank", `host=a\ b`, dsn{host: "a b"}, true},
		{"empty value", "password= ", dsn{}, true},
		{"service", "service=app", dsn{}, true},
		{"open quote", "host='a", dsn{}, false},
		{"a word", "secret", dsn{}, false},
		{"words", "a b=c", dsn{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseDSN(tt.text)
			if got != tt.want || ok != tt.ok {
				t.Errorf("parseDSN = %+v, %v, want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// FuzzParseDSN: no input ends the program.
func FuzzParseDSN(f *testing.F) {
	f.Add("postgres://u:p@a:1,b:2/app?x=y")
	f.Add(`host='a\'b' port=1 password=\`)
	f.Fuzz(func(_ *testing.T, text string) { parseDSN(text) })
}

// FuzzYAML: no input ends the program, and every problem says all it must.
func FuzzYAML(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &x [*x]\n<<: *x\n? {a: b}\n: c"))
	f.Add([]byte("---\n...\n---\n"))
	f.Add([]byte("postgres: {password: [}"))
	f.Add([]byte("outbox: {columns: {a: {b: {c: [d]}}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, problems := parseYAML(data)
		l := &Loaded{settings: map[string]setting{}}
		for path, s := range settings {
			l.settings[path] = s.(setting)
		}
		problems = append(problems, l.parse()...)
		for _, p := range problems {
			if p.Path == "" || p.What == "" || p.Hint == "" {
				t.Errorf("incomplete problem %+v", p)
			}
		}
	})
}

func TestBrokenYAMLShowsNothingOfTheFile(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, text := range []string{
		"postgres:\n  password: *hunter2\n",
		"postgres:\n  password: @hunter2\n",
		"postgres:\n  password: \"hunter2\n",
		"postgres:\n  password: %hunter2\n",
		"postgres:\n  password: [hunter2\n",
		"postgres: {password: {hunter2: 1}}\n",
		"postgres: {password: [hunter2]}\n",
		"kafka: {brokers: [\"postgres://u:hunter2@h/d\"]}\n",
		"http: {listen: \"postgres://u:hunter2@h/d\"}\n",
		"hunter2\n",
	} {
		_, err := Load(Input{File: write(t, text), Use: UseNone})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"kafka.broker":         "kafka.brokers",
		"kafka.bootstrap":      "kafka.brokers",
		"postgres.pasword":     "postgres.password",
		"postgres.dsn_fil":     "postgres.dsn_file",
		"slots":                "slot",
		"record.publication":   "slot.publication",
		"limit.inflight_bytes": "limits.inflight_bytes",
		"drain_timeout":        "shutdown.drain_timeout",
	} {
		if got := nearestKey(name); got != want {
			t.Errorf("nearestKey(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{0,6}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		ab, ba, ac, cb := distance(a, b), distance(b, a), distance(a, c), distance(c, b)
		if ab != ba || (ab == 0) != (a == b) || ab > ac+cb || ab > max(len(a), len(b)) {
			t.Errorf("not a metric: %q %q %q: %d %d %d %d", a, b, c, ab, ba, ac, cb)
		}
	})
	if got := distance("kitten", "sitting"); got != 3 {
		t.Errorf("kitten to sitting: %d, want 3", got)
	}
}

// TestTable holds for every key: its default can be parsed, its place is
// unique, it is documented, and every source reaches it.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range keys {
		if seen[k.path] || k.help == "" || isLater(k.path) || isSection(k.path) {
			t.Errorf("%s: twice, without help, for later or a section too", k.path)
		}
		seen[k.path] = true
		back := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(EnvName(k.path), envPrefix), envLevel, "."))
		if back != k.path {
			t.Errorf("%s: its variable means %s", k.path, back)
		}
	}
	for _, path := range later {
		if isKnown(path) {
			t.Errorf("%s is known and for later", path)
		}
	}
}

func TestDefaultsShown(t *testing.T) {
	t.Parallel()
	shown := map[string]string{}
	for _, s := range Defaults().Show() {
		shown[s.Key] = s.Value
		if s.Origin != "default" {
			t.Errorf("%s comes from %s", s.Key, s.Origin)
		}
	}
	want := map[string]string{
		"postgres.dsn": "", "lease.publish_within": "1.5s", "kafka.batch_bytes": "1020KiB", "kafka.idle_timeout": "4m",
		"limits.inflight_bytes": "24MiB", "outbox.table": "public.outbox", "retry.jitter": "0.2", "outbox.columns": "",
	}
	for key, value := range want {
		if diff := cmp.Diff(value, shown[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}
