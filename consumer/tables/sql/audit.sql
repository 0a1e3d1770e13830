CREATE TABLE IF NOT EXISTS "{{schema}}".cdc_relay_audit (
  audit_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor    text        NOT NULL,
  action   text        NOT NULL,
  id       bigint,
  event_id uuid,
  reason   text,
  filter   text
);
CREATE INDEX IF NOT EXISTS cdc_relay_audit_id_idx ON "{{schema}}".cdc_relay_audit (id);
COMMENT ON TABLE "{{schema}}".cdc_relay_audit IS
  'Who replayed, skipped, swept, adopted or purged what, and why. Only ever inserted into.';
COMMENT ON COLUMN "{{schema}}".cdc_relay_audit.id IS 'the outbox row; NULL for an action on many rows or none';
