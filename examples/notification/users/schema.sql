-- The application's own table. The raw token is nowhere in the database.
CREATE TABLE IF NOT EXISTS app_user (
  id               uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
  email            text        NOT NULL UNIQUE,
  locale           text        NOT NULL,
  token_hash       bytea,      -- SHA-256; NULL once it was used
  token_expires_at timestamptz,
  created_at       timestamptz NOT NULL DEFAULT now(),
  verified_at      timestamptz
);
