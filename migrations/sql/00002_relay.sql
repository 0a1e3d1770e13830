-- What the relay keeps beside the outbox.

-- +goose Up
-- The fence: a write-back locks the row of its slot FOR SHARE and names epoch and owner. The tables of one hot row have
-- room on its page, so that its updates stay there.
CREATE TABLE "{{schema}}".cdc_relay_slot (
  slot  text   PRIMARY KEY,
  epoch bigint NOT NULL,
  owner uuid   NOT NULL
) WITH (fillfactor = 10);
COMMENT ON TABLE "{{schema}}".cdc_relay_slot IS 'Who leads each replication slot: epoch and owner fence all write-backs.';

-- The lease is a table of its own: write-backs hold the fence row nearly all the time and would starve its renewal.
CREATE TABLE "{{schema}}".cdc_relay_lease (
  slot                  text PRIMARY KEY,
  owner                 uuid,
  epoch                 bigint,
  instance              text,
  renewed_at            timestamptz,
  lease_until           timestamptz,
  saved_lsn             pg_lsn,
  system_identifier     bigint,
  timeline              integer,
  low_water_id          bigint,
  consumer_low_water_id bigint
) WITH (fillfactor = 10);
COMMENT ON TABLE "{{schema}}".cdc_relay_lease IS
  'The lease of each slot''s leader, and the position below which everything is resolved.';

CREATE TABLE "{{schema}}".cdc_relay_topic (
  topic      text        PRIMARY KEY,
  partitions integer     NOT NULL CONSTRAINT cdc_relay_topic_partitions_check CHECK (partitions > 0),
  wanted     integer     CONSTRAINT cdc_relay_topic_wanted_check CHECK (wanted > 0),
  changed_at timestamptz NOT NULL
);
COMMENT ON TABLE "{{schema}}".cdc_relay_topic IS
  'Pinned partition counts: a key stays in its partition until a person repins the topic.';

-- The audit log, which consumers with a database of their own have too: see package consumer/tables.
{{audit}}
