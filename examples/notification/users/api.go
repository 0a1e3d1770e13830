package users

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// API is an http.Handler. It is safe for concurrent use.
type API struct {
	store  store
	logger *slog.Logger
	mux    *http.ServeMux
}

// New makes the API on a database that has [Schema] and the outbox.
func New(pool *pgxpool.Pool, writer *outbox.Writer, ring *notice.Ring, logger *slog.Logger) *API {
	a := &API{store: store{pool, writer, ring}, logger: logger, mux: http.NewServeMux()}
	a.mux.HandleFunc("POST /users", a.register)
	a.mux.HandleFunc("POST /verify", a.verify)
	return a
}

// ServeHTTP serves the API.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// locales are those in which e-mails are written; the first is the default.
var locales = []string{"en", "de"}

func (a *API) register(w http.ResponseWriter, r *http.Request) {
	var body struct{ Email, Locale string }
	if !read(w, r, &body) {
		return
	}
	email := strings.ToLower(body.Email)
	if !notice.IsAddress(email) {
		fail(w, http.StatusBadRequest, "email is not an address")
		return
	}
	locale := locales[0]
	for _, l := range locales {
		if l == body.Locale {
			locale = l
		}
	}
	asked, ok, err := a.store.register(r.Context(), email, locale)
	if err != nil {
		a.logger.Error("a registration failed", "err", err)
		fail(w, http.StatusInternalServerError, "try again later")
		return
	}
	if ok {
		a.logger.Info("an e-mail is asked for", "event_id", asked.event, "aggregate_id", asked.user)
	}
	w.WriteHeader(http.StatusAccepted)
}

func (a *API) verify(w http.ResponseWriter, r *http.Request) {
	var body struct{ Email, Token string }
	if !read(w, r, &body) {
		return
	}
	var (
		email = strings.ToLower(body.Email)
		ok    bool
		err   error
	)
	if notice.IsAddress(email) {
		ok, err = a.store.verify(r.Context(), email, body.Token)
	}
	switch {
	case err != nil:
		a.logger.Error("a verification failed", "err", err)
		fail(w, http.StatusInternalServerError, "try again later")
	case !ok:
		fail(w, http.StatusForbidden, "the link is wrong, was used or has expired: register again")
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

const maxBody = 4 << 10 // bytes

// read decodes the body, or answers why not.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(v); err != nil {
		fail(w, http.StatusBadRequest, "the body is no JSON object of at most 4 KiB")
		return false
	}
	return true
}

func fail(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": reason}) // a client that is gone needs none
}
