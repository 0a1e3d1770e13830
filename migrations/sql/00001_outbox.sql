-- The outbox: written by applications, streamed by the relay, claimed by consumers.
-- {{schema}} stands for the configured schema.

-- +goose Up
CREATE TABLE "{{schema}}".outbox (
  id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id         uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
  aggregate_type   text        NOT NULL,
  aggregate_id     text        NOT NULL,
  event_type       text        NOT NULL,
  payload          bytea,
  headers          jsonb       NOT NULL DEFAULT '{}',
  content_type     text        NOT NULL DEFAULT 'application/json',
  topic            text,
  priority         smallint    NOT NULL DEFAULT 0,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  send_status      smallint    NOT NULL DEFAULT 0,
  attempts         integer     NOT NULL DEFAULT 0,
  next_attempt_at  timestamptz,
  commit_lsn       pg_lsn,
  claim_generation integer     NOT NULL DEFAULT 0,
  claimed_by       text,
  lease_until      timestamptz,
  sent_at          timestamptz,
  finished_at      timestamptz,
  error_code       text,
  error_message    text,

  -- Checks run on every update too. A regular expression with a bounded repeat, {1,200}, would cost a write-back three
  -- times as much as all the rest of it; a search for a character that may not be there costs next to nothing.
  CONSTRAINT outbox_aggregate_type_check CHECK (octet_length(aggregate_type) BETWEEN 1 AND 200
                                                AND aggregate_type COLLATE "C" !~ '[^A-Za-z0-9._-]'),
  CONSTRAINT outbox_aggregate_id_check   CHECK (octet_length(aggregate_id) BETWEEN 1 AND 1024),
  CONSTRAINT outbox_event_type_check     CHECK (octet_length(event_type) BETWEEN 1 AND 255),
  CONSTRAINT outbox_payload_check        CHECK (octet_length(payload) <= 16777216),
  CONSTRAINT outbox_headers_check        CHECK (jsonb_typeof(headers) = 'object'),
  CONSTRAINT outbox_content_type_check   CHECK (octet_length(content_type) BETWEEN 1 AND 255),
  CONSTRAINT outbox_topic_check          CHECK (octet_length(topic) BETWEEN 1 AND 249
                                                AND topic COLLATE "C" !~ '[^A-Za-z0-9._-]' AND topic NOT IN ('.', '..')),
  CONSTRAINT outbox_send_status_check    CHECK (send_status BETWEEN 0 AND 5),
  CONSTRAINT outbox_attempts_check       CHECK (attempts >= 0),
  CONSTRAINT outbox_generation_check     CHECK (claim_generation >= 0),
  -- Nothing can wait for nobody: whatever waits without a time is FAILED, which a person sees, or has a place in its
  -- aggregate's order, from which it is released.
  CONSTRAINT outbox_next_attempt_check   CHECK (next_attempt_at <> 'infinity' OR send_status = 3 OR commit_lsn IS NOT NULL)
) WITH (
  -- Half a page is left free so that every update of a row's ordinary life stays on its page (HOT), without a new
  -- index entry.
  fillfactor = 50,
  -- Truncating the table's end takes an ACCESS EXCLUSIVE lock, and applications would wait for it.
  vacuum_truncate = off, toast.vacuum_truncate = off,
  -- A row is written once and updated three times, soon: vacuum by a small share of the table, however large it is.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 5000,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 5000,
  toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 5000
);

-- No index may mention send_status, in key or predicate: not one update would be HOT then. Whatever needs attention has
-- next_attempt_at set, and the first index finds it; the second one finds an aggregate's parked rows in commit order.
CREATE INDEX outbox_next_attempt_idx ON "{{schema}}".outbox (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX outbox_parked_idx ON "{{schema}}".outbox (aggregate_type, aggregate_id, commit_lsn, id)
  WHERE commit_lsn IS NOT NULL;

COMMENT ON TABLE "{{schema}}".outbox IS
  'Events to be published to Kafka by cdc-relay. Applications only insert; see the view outbox_readable.';
COMMENT ON COLUMN "{{schema}}".outbox.event_id IS 'identity of the event for consumers: the same on every retry';
COMMENT ON COLUMN "{{schema}}".outbox.aggregate_type IS 'picks the topic';
COMMENT ON COLUMN "{{schema}}".outbox.aggregate_id IS 'the key of the Kafka record: events of one aggregate keep their order';
COMMENT ON COLUMN "{{schema}}".outbox.payload IS 'the value of the Kafka record, byte for byte; NULL is a tombstone';
COMMENT ON COLUMN "{{schema}}".outbox.topic IS 'overrides the topic, where the configuration allows it';
COMMENT ON COLUMN "{{schema}}".outbox.priority IS 'higher first between aggregates when retried, never within one';
COMMENT ON COLUMN "{{schema}}".outbox.send_status IS '0 READY, 1 INPROGRESS, 2 SENT, 3 FAILED, 4 CONSUMED, 5 CONSUMING';
COMMENT ON COLUMN "{{schema}}".outbox.attempts IS 'failed attempts of the current phase';
COMMENT ON COLUMN "{{schema}}".outbox.next_attempt_at IS
  'NULL: not parked; a time: due then; infinity: waits for a release or a person';
COMMENT ON COLUMN "{{schema}}".outbox.commit_lsn IS 'commit position of the insert, from the first parking until SENT';
COMMENT ON COLUMN "{{schema}}".outbox.finished_at IS 'CONSUMED, or FAILED and waived, since';

-- A requeue travels through the WAL: whoever sets next_attempt_at of a READY row to a time that has come sends the relay
-- a message, in the same transaction. The argument names the table: on a partition TG_TABLE_NAME would be the leaf's.
-- +goose StatementBegin
CREATE FUNCTION "{{schema}}".cdc_relay_requeue() RETURNS trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_logical_emit_message(true, TG_ARGV[0], NEW.id::text);
  RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER outbox_requeue AFTER UPDATE OF next_attempt_at ON "{{schema}}".outbox
  FOR EACH ROW WHEN (NEW.send_status = 0 AND NEW.next_attempt_at <= clock_timestamp())
  EXECUTE FUNCTION "{{schema}}".cdc_relay_requeue('cdc-relay/{{schema}}.outbox');
-- Also where session_replication_role is replica.
ALTER TABLE "{{schema}}".outbox ENABLE ALWAYS TRIGGER outbox_requeue;

-- A bare convert_from in the view would fail the whole query on one binary payload.
-- +goose StatementBegin
CREATE FUNCTION "{{schema}}".cdc_relay_payload_text(payload bytea) RETURNS text
  LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN convert_from(payload, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN encode(payload, 'escape');
END
$$;
-- +goose StatementEnd

CREATE VIEW "{{schema}}".outbox_readable AS
SELECT id, event_id, aggregate_type, aggregate_id, event_type,
       CASE send_status
         WHEN 0 THEN 'READY'    WHEN 1 THEN 'INPROGRESS' WHEN 2 THEN 'SENT'
         WHEN 3 THEN 'FAILED'   WHEN 4 THEN 'CONSUMED'   WHEN 5 THEN 'CONSUMING'
       END AS status,
       attempts, next_attempt_at, error_code, error_message,
       "{{schema}}".cdc_relay_payload_text(payload) AS payload,
       headers, content_type, topic, priority, created_at, sent_at, finished_at,
       commit_lsn, claim_generation, claimed_by, lease_until
  FROM "{{schema}}".outbox;
COMMENT ON VIEW "{{schema}}".outbox_readable IS
  'The outbox with the status in words and the payload as text, escaped where it is not UTF-8.';
