package users_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/templates"
	"github.com/cdc-relay/cdc-relay/examples/notification/users"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// fixture is an API on a database of its own.
type fixture struct {
	*users.API
	pool *pgxpool.Pool
	ring *notice.Ring
	log  *bytes.Buffer // slog's handlers write one line at a time
}

func setup(t *testing.T, db *pgtest.DB) *fixture {
	t.Helper()
	db.Migrate(t, "public")
	db.Exec(t, users.Schema)
	db.Exec(t, users.Schema) // can be repeated
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	writer, err := outbox.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := notice.ParseRing("k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	return &fixture{users.New(pool, writer, ring, slog.New(slog.NewJSONHandler(log, nil))), pool, ring, log}
}

// post calls the API and returns the status.
func (f *fixture) post(ctx context.Context, path, body string) int {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)).WithContext(ctx))
	return w.Code
}

func (f *fixture) register(t *testing.T, email string) {
	t.Helper()
	if got := f.post(t.Context(), "/users", object(t, "email", email)); got != http.StatusAccepted {
		t.Fatalf("registering: %d", got)
	}
}

func (f *fixture) verify(t *testing.T, email, token string) int {
	t.Helper()
	return f.post(t.Context(), "/verify", object(t, "email", email, "token", token))
}

// object is JSON of names and values.
func object(t *testing.T, pairs ...string) string {
	t.Helper()
	fields := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		fields[pairs[i]] = pairs[i+1]
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// scan reads one row.
func (f *fixture) scan(t *testing.T, into []any, sql string, args ...any) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), sql, args...).Scan(into...); err != nil {
		t.Fatal(err)
	}
}

// notices opens what the outbox holds, in order.
func (f *fixture) notices(t *testing.T) (list []notice.Notice) {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `SELECT event_id, payload FROM outbox ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var (
			id      outbox.ID
			payload []byte
		)
		if err := rows.Scan(&id, &payload); err != nil {
			t.Fatal(err)
		}
		n, err := f.ring.Open(id, templates.VerifyEmail, payload, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestRegisterWritesUserAndEventTogether(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		f.register(t, "Ada@Example.com")
		n := f.notices(t)[0]
		if n.To != "ada@example.com" || n.Template != templates.Current || n.Locale != "en" {
			t.Errorf("notice for %q, %s, %s", n.To, n.Template, n.Locale)
		}
		token, err := base64.RawURLEncoding.DecodeString(n.Token)
		if err != nil || len(token) != 32 {
			t.Fatalf("a token of %d bytes, error %v", len(token), err)
		}
		var (
			hash                   []byte
			user, kind, id, event  string
			status                 int
			expires                time.Time
			payload                []byte
			wantHash, tokenInTable = sha256.Sum256(token), false
		)
		f.scan(t, []any{&user, &hash, &expires}, `SELECT id::text, token_hash, token_expires_at FROM app_user WHERE email = 'ada@example.com'`)
		if !bytes.Equal(hash, wantHash[:]) || !expires.Equal(n.Expires) {
			t.Errorf("hash %x until %v, want %x until %v", hash, expires, wantHash, n.Expires)
		}
		f.scan(t, []any{&kind, &id, &event, &status, &payload}, `SELECT aggregate_type, aggregate_id, event_type, send_status, payload FROM outbox`)
		if kind != "user" || id != user || event != "user.verification_requested" || status != 0 {
			t.Errorf("row %s %s %s in status %d, want user %s", kind, id, event, status, user)
		}
		f.scan(t, []any{&tokenInTable}, `SELECT to_jsonb(u)::text LIKE '%'||$1||'%' OR to_jsonb(u)::text LIKE '%'||$2||'%' FROM app_user u`,
			n.Token, fmt.Sprintf("%x", token))
		if tokenInTable || bytes.Contains(payload, []byte(n.Token)) || bytes.Contains(payload, []byte("ada")) {
			t.Error("token or address are readable in the database")
		}
	})
}

func TestATokenWorksOnce(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		f.register(t, "ada@example.com")
		f.register(t, "bob@example.com")
		n := f.notices(t)
		other := strings.Repeat("A", 43) // 32 zero bytes
		for _, step := range []struct {
			name, email, token string
			want               int
		}{
			{"another token", "ada@example.com", other, 403},
			{"the token of somebody else", "ada@example.com", n[1].Token, 403},
			{"nobody", "eve@example.com", n[0].Token, 403},
			{"no token", "ada@example.com", "", 403},
			{"no base64", "ada@example.com", "***", 403},
			{"no address", "ada\x00", n[0].Token, 403},
			{"the token", "ADA@example.com", n[0].Token, 204},
			{"again", "ada@example.com", n[0].Token, 403},
			{"the other one", "bob@example.com", n[1].Token, 204},
		} {
			if got := f.verify(t, step.email, step.token); got != step.want {
				t.Errorf("%s: %d, want %d", step.name, got, step.want)
			}
		}
		var verified int
		f.scan(t, []any{&verified}, `SELECT count(*) FROM app_user WHERE verified_at IS NOT NULL AND token_hash IS NULL`)
		if verified != 2 {
			t.Errorf("%d users are verified, want 2", verified)
		}
	})
}

func TestOfManyRequestsWithOneTokenOneWins(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	f.register(t, "ada@example.com")
	body := object(t, "email", "ada@example.com", "token", f.notices(t)[0].Token)
	results := make([]int, 8)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = f.post(t.Context(), "/verify", body) })
	}
	wg.Wait()
	won := 0
	for _, status := range results {
		switch status {
		case 204:
			won++
		case 403:
		default:
			t.Errorf("status %d", status)
		}
	}
	if won != 1 {
		t.Errorf("%d requests won, want 1", won)
	}
}

func TestRegisterAgain(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	f.register(t, "ada@example.com")
	f.register(t, "ada@example.com")
	n := f.notices(t)
	if got := f.verify(t, "ada@example.com", n[0].Token); got != 403 {
		t.Errorf("the first token: %d, want 403, as there is a newer one", got)
	}
	if got := f.verify(t, "ada@example.com", n[1].Token); got != 204 {
		t.Errorf("the second token: %d", got)
	}
	f.register(t, "ada@example.com") // verified: the same answer
	if got := len(f.notices(t)); got != 2 {
		t.Errorf("%d events, want 2: a verified user gets no e-mail", got)
	}
}

func TestAnExpiredToken(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	f.register(t, "ada@example.com")
	if _, err := f.pool.Exec(t.Context(), `UPDATE app_user SET token_expires_at = now()`); err != nil {
		t.Fatal(err)
	}
	if got := f.verify(t, "ada@example.com", f.notices(t)[0].Token); got != 403 {
		t.Errorf("%d, want 403", got)
	}
}

func TestNoUserWithoutAnEvent(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	if _, err := f.pool.Exec(t.Context(), `ALTER TABLE outbox ADD CONSTRAINT closed CHECK (false) NOT VALID`); err != nil {
		t.Fatal(err)
	}
	if got := f.post(t.Context(), "/users", `{"email": "ada@example.com"}`); got != 500 {
		t.Errorf("%d, want 500", got)
	}
	var left int
	f.scan(t, []any{&left}, `SELECT count(*) FROM app_user`)
	if left != 0 {
		t.Error("the user is there, the event is not")
	}
	if log := f.log.String(); strings.Contains(log, "ada") || !strings.Contains(log, `"err"`) {
		t.Errorf("log %s", log)
	}
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	for _, tc := range []struct {
		name, path, body string
		want             int
	}{
		{"no JSON", "/users", "hello", 400},
		{"no address", "/users", `{"email": "ada"}`, 400},
		{"empty", "/users", `{}`, 400},
		{"too large", "/users", `{"email": "` + strings.Repeat("a", 5000) + `@example.com"}`, 400},
		{"a zero byte", "/users", `{"email": "a\u0000@example.com"}`, 400},
		{"unknown locale is the default", "/users", `{"email": "bob@example.com", "locale": "xx"}`, 202},
		{"a locale", "/users", `{"email": "eve@example.com", "locale": "de"}`, 202},
		{"verify: no JSON", "/verify", `[`, 400},
		{"verify: empty", "/verify", `{}`, 403},
	} {
		if got := f.post(t.Context(), tc.path, tc.body); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	var languages []string
	for _, n := range f.notices(t) {
		languages = append(languages, n.Locale)
	}
	if got := strings.Join(languages, " "); got != "en de" {
		t.Errorf("locales %s, want en de", got)
	}
}

func TestTheLogNamesEventAndUserOnly(t *testing.T) {
	t.Parallel()
	f := setup(t, pgtest.New(t, 18))
	f.register(t, "ada@example.com")
	token := f.notices(t)[0].Token
	f.verify(t, "ada@example.com", token)
	var line map[string]any
	if err := json.Unmarshal(f.log.Bytes(), &line); err != nil {
		t.Fatalf("not one line: %v", err)
	}
	var event, user string
	f.scan(t, []any{&event, &user}, `SELECT event_id::text, aggregate_id FROM outbox`)
	if line["event_id"] != event || line["aggregate_id"] != user {
		t.Errorf("line %v, want event %s of user %s", line, event, user)
	}
	for _, secret := range []string{"ada", "example.com", token} {
		if strings.Contains(f.log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}
