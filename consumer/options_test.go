package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// validConfig connects to nothing.
func validConfig(t *testing.T) Config {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"t"}, DB: pool}
}

// TestNewSaysWhatIsWrong before anything is connected to, and what to do.
func TestNewSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	handle := func(context.Context, *Event) error { return nil }
	receipts := []Option{Receipts("mail"), Horizon(time.Hour)}
	for name, tc := range map[string]struct {
		spoil func(*Config)
		opts  []Option
		want  string // empty: accepted
	}{
		"defaults":              {},
		"receipts":              {opts: receipts},
		"copies":                {opts: []Option{Quarantine("dlq"), QuarantineHeaders(ConnectNames)}},
		"no brokers":            {spoil: func(c *Config) { c.Brokers = nil }, want: "no brokers"},
		"a broker without port": {spoil: func(c *Config) { c.Brokers = []string{"localhost"} }, want: "localhost"},
		"no group":              {spoil: func(c *Config) { c.Group = "" }, want: "no group"},
		"no topics":             {spoil: func(c *Config) { c.Topics = nil }, want: "no topics"},
		"no database":           {spoil: func(c *Config) { c.DB = nil }, want: "no database"},
		"nil option":            {opts: []Option{nil}, want: "an option is nil"},
		"nil middleware":        {opts: []Option{Use(nil)}, want: "Use"},
		"no concurrency":        {opts: []Option{Concurrency(0)}, want: "Concurrency"},
		"no window":             {opts: []Option{Window(0)}, want: "Window"},
		"short lease":           {opts: []Option{Lease(time.Second)}, want: "Lease"},
		"long grace":            {opts: []Option{RevokeGrace(time.Minute)}, want: "RevokeGrace"},
		"negative drain":        {opts: []Option{Drain(-1)}, want: "Drain"},
		"retry upside down":     {opts: []Option{RetryDelay(RetryPolicy{Base: time.Minute, Max: time.Second})}, want: "RetryDelay"},
		"negative attempts":     {opts: []Option{MaxAttempts(-1)}, want: "MaxAttempts"},
		"filter without":        {opts: []Option{Filter(func([]Header) bool { return true })}, want: "Filter"},
		"purpose in capitals":   {opts: []Option{Receipts("Mail"), Horizon(time.Hour)}, want: "Receipts"},
		"no horizon":            {opts: receipts[:1], want: "Horizon"},
		"query without asking":  {opts: []Option{Ambiguity(Query(nil))}, want: "Query"},
		"nil logger":            {opts: []Option{Logger(nil)}, want: "Logger"},
		"flood of nothing":      {opts: []Option{QuarantineLimit(1, 0)}, want: "QuarantineLimit"},
		"copies of copies":      {opts: []Option{Quarantine("t")}, want: "Quarantine"},
		"names without copies":  {opts: []Option{QuarantineHeaders(SpringNames)}, want: "QuarantineHeaders"},
		"unknown names":         {opts: []Option{Quarantine("dlq"), QuarantineHeaders(9)}, want: "QuarantineHeaders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := validConfig(t)
			if tc.spoil != nil {
				tc.spoil(&cfg)
			}
			_, err := New(cfg, handle, tc.opts...)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
	if _, err := New(validConfig(t), nil); err == nil || !strings.Contains(err.Error(), "no handler") {
		t.Errorf("without a handler: %v", err)
	}
	if _, err := NewTx(validConfig(t), func(context.Context, pgx.Tx, *Event) error { return nil }); err == nil || !strings.Contains(err.Error(), "Receipts") {
		t.Errorf("a transaction without a purpose: %v", err)
	}
}
