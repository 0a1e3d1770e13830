-- The memory of a consumer that does not drive the outbox row: one row for each event and purpose, in the database where
-- the effect is, or where it is remembered. Status has the outbox's codes.
CREATE TABLE IF NOT EXISTS "{{schema}}".outbox_receipt (
  event_id         uuid        NOT NULL,
  purpose          text        NOT NULL,
  status           smallint    NOT NULL DEFAULT 4,
  attempts         integer     NOT NULL DEFAULT 0,
  claim_generation integer     NOT NULL DEFAULT 0,
  claimed_by       text,
  lease_until      timestamptz,
  next_attempt_at  timestamptz,
  effect_at        timestamptz,
  request_digest   bytea,
  provider_ref     text,
  error_code       text,
  error_message    text,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at      timestamptz,
  PRIMARY KEY (event_id, purpose),
  CONSTRAINT outbox_receipt_purpose_check    CHECK (octet_length(purpose) BETWEEN 1 AND 64
                                                    AND purpose COLLATE "C" !~ '[^a-z0-9._-]'),
  CONSTRAINT outbox_receipt_status_check     CHECK (status BETWEEN 2 AND 5),
  CONSTRAINT outbox_receipt_attempts_check   CHECK (attempts >= 0),
  CONSTRAINT outbox_receipt_generation_check CHECK (claim_generation >= 0),
  CONSTRAINT outbox_receipt_next_check       CHECK (next_attempt_at <> 'infinity' OR status = 3)
) WITH (fillfactor = 70); -- room for the updates of a claim on the row's page
-- The purge walks the first; whatever waits for a time or a person has next_attempt_at set, as in the outbox. No index
-- may mention status: no update would be HOT then.
CREATE INDEX IF NOT EXISTS outbox_receipt_created_at_idx ON "{{schema}}".outbox_receipt (created_at);
CREATE INDEX IF NOT EXISTS outbox_receipt_next_attempt_idx ON "{{schema}}".outbox_receipt (next_attempt_at)
  WHERE next_attempt_at IS NOT NULL;
COMMENT ON TABLE "{{schema}}".outbox_receipt IS
  'What consumers know of events: one row for each event and purpose. To be kept longer than a record can come again.';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.purpose IS 'what the consumer does with the event, such as welcome-mail';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.status IS '2 waits for next_attempt_at, 3 FAILED, 4 done, 5 in progress';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.attempts IS 'attempts that failed or were abandoned';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.next_attempt_at IS
  'NULL: waits for nothing; a time: to be tried again then; infinity: waits for a person';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.effect_at IS
  'since when the call of the effect may have left the process; a definite refusal clears it';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.request_digest IS 'of the request of that call';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.provider_ref IS 'what the receiver of the effect calls it';
COMMENT ON COLUMN "{{schema}}".outbox_receipt.finished_at IS 'done, or FAILED and waived, since';

-- Records that could not be handled and have no row or receipt to say so. Open until a person has resolved them:
--   resolution NULL                            open
--   resolution retry, resolved_at NULL         a person asks for another try; the consumer runs the stored record
--   resolution retried, resolved_at            that had its outcome
--   resolution dropped, resolved_at            a person gave the record up
-- resolved_by and resolved_reason are the person's. A retry that fails makes the row open again.
CREATE TABLE IF NOT EXISTS "{{schema}}".outbox_quarantine (
  id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer        text        NOT NULL,
  topic           text        NOT NULL,
  partition       integer     NOT NULL,
  "offset"        bigint      NOT NULL,
  digest          bytea       NOT NULL,
  record_time     timestamptz,
  event_id        uuid,
  outbox_id       bigint,
  reason          text        NOT NULL,
  message         text        NOT NULL,
  record_key      bytea,
  record_value    bytea,
  record_headers  bytea       NOT NULL,
  seen            integer     NOT NULL DEFAULT 1,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  resolution      text,
  resolved_at     timestamptz,
  resolved_by     text,
  resolved_reason text,
  UNIQUE (consumer, topic, partition, "offset", digest),
  CONSTRAINT outbox_quarantine_seen_check       CHECK (seen > 0),
  CONSTRAINT outbox_quarantine_resolution_check CHECK (resolution IN ('retry', 'retried', 'dropped')),
  CONSTRAINT outbox_quarantine_resolved_check   CHECK ((resolved_at IS NOT NULL)
                                                       = (resolution IS NOT NULL AND resolution <> 'retry'))
);
CREATE INDEX IF NOT EXISTS outbox_quarantine_open_idx ON "{{schema}}".outbox_quarantine (consumer, id)
  WHERE resolved_at IS NULL;
COMMENT ON TABLE "{{schema}}".outbox_quarantine IS
  'Records that consumers could not handle, with their bytes. Each is open until it is retried or dropped by a person.';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.consumer IS 'the consumer group, or group/purpose where receipts are used';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.digest IS
  'SHA-256 of key, value and headers: a topic that is made anew repeats offsets';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.outbox_id IS 'the outbox row that the record names, if it names one';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.reason IS
  'NO_EVENT_ID, BAD_HEADERS, MISSING, STATE_CONFLICT, BEYOND_HORIZON or SKIPPED_RANGE';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.record_headers IS
  'the number of headers, then of each the lengths of name and value with their bytes; 4 bytes a number, big-endian';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.seen IS 'how often the record came';
COMMENT ON COLUMN "{{schema}}".outbox_quarantine.resolution IS
  'NULL: open; retry: a person asks for another try; retried: that succeeded; dropped: a person gave it up';
