// Package users is the API of the notification example: people register with an
// e-mail address and prove by a token that they read mail there.
//
//	POST /users   {"email", "locale"}   202, and an e-mail is on its way
//	POST /verify  {"email", "token"}    204, or 403
//
// User, hash of the token, its expiry and the outbox row that asks for the
// e-mail are one transaction: there is no user without an e-mail, and no e-mail
// for a user who is not there. The raw token is in the memory of the request and
// sealed in the payload, nowhere else.
//
// The answers do not tell who is registered.
package users

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/templates"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Schema makes the table of users, if it is not there yet.
//
//go:embed schema.sql
var Schema string

// AggregateType is that of the events: it picks their topic.
const AggregateType = "user"

const (
	tokenSize = 32 // random bytes
	tokenLife = 24 * time.Hour
)

var tokenEncoding = base64.RawURLEncoding.Strict()

// store is the database side of the API.
type store struct {
	pool   *pgxpool.Pool
	writer *outbox.Writer
	ring   *notice.Ring
}

// request names what a registration has asked for.
type request struct {
	event outbox.ID
	user  string
}

// register adds a user and asks for an e-mail. A user who is there but not
// verified gets a new token instead of the last one; ok is false for one who is
// verified: nothing is done.
func (s store) register(ctx context.Context, email, locale string) (r request, ok bool, err error) {
	var token [tokenSize]byte
	rand.Read(token[:]) // never fails
	n := notice.Notice{
		Purpose: templates.VerifyEmail, Template: templates.Current, Locale: locale, To: email,
		Token: tokenEncoding.EncodeToString(token[:]), Expires: time.Now().Add(tokenLife).Truncate(time.Second),
	}
	r.event = outbox.NewID() // before sealing, which binds the payload to it
	payload, err := s.ring.Seal(r.event, n)
	if err != nil {
		return request{}, false, fmt.Errorf("registering a user: %w", err)
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if r.user, err = upsert(ctx, tx, n, sha256.Sum256(token[:])); err != nil {
			return err
		}
		_, err = s.writer.Write(ctx, tx, outbox.Event{
			ID: r.event, AggregateType: AggregateType, AggregateID: r.user, EventType: "user.verification_requested", Payload: payload,
		})
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return request{}, false, nil
	}
	if err != nil {
		return request{}, false, fmt.Errorf("registering a user: %w", err)
	}
	return r, true, nil
}

// upsert returns the user's id, or pgx.ErrNoRows for a verified one.
func upsert(ctx context.Context, tx pgx.Tx, n notice.Notice, hash [sha256.Size]byte) (id string, err error) {
	err = tx.QueryRow(ctx, `INSERT INTO app_user AS u (email, locale, token_hash, token_expires_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (email) DO UPDATE SET token_hash = EXCLUDED.token_hash, token_expires_at = EXCLUDED.token_expires_at
		WHERE u.verified_at IS NULL RETURNING u.id::text`, n.To, n.Locale, hash[:], n.Expires).Scan(&id)
	return id, err
}

// verify reports whether the token is the user's, and uses it up.
func (s store) verify(ctx context.Context, email, token string) (bool, error) {
	raw, err := tokenEncoding.DecodeString(token)
	if err != nil {
		return false, nil
	}
	given := sha256.Sum256(raw)
	var (
		id   string
		hash []byte
	)
	err = s.pool.QueryRow(ctx, `SELECT id::text, token_hash FROM app_user
		WHERE email = $1 AND token_hash IS NOT NULL AND token_expires_at > now()`, email).Scan(&id, &hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a user: %w", err)
	}
	if subtle.ConstantTimeCompare(hash, given[:]) != 1 {
		return false, nil
	}
	// of two requests with the token one finds it there
	tag, err := s.pool.Exec(ctx, `UPDATE app_user SET verified_at = now(), token_hash = NULL, token_expires_at = NULL
		WHERE id = $1 AND token_hash = $2`, id, hash)
	if err != nil {
		return false, fmt.Errorf("verifying a user: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}
