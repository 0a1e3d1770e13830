package sampler

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// queries are the statements for one table.
type queries struct {
	lease, attention, fresh, consume string

	hasCreatedAt  bool
	hasLeaseUntil bool
}

// newQueries names the columns that the table has; those that it may lack are
// read as NULL then.
func newQueries(cfg Config, columns map[string]bool) queries {
	mapped := pg.Columns(cfg.Columns)
	column := func(design string) string { return "o." + mapped.Ident(design) }
	optional := func(design string) string {
		if !columns[mapped.Name(design)] {
			return "NULL::timestamptz"
		}
		return column(design)
	}
	names := strings.NewReplacer(
		"{table}", cfg.Table.Ident(),
		"{lease}", cfg.Table.Sibling("cdc_relay_lease").Ident(),
		"{id}", column("id"),
		"{status}", column("send_status"),
		"{attempts}", column("attempts"),
		"{next}", column("next_attempt_at"),
		"{commit_lsn}", column("commit_lsn"),
		"{sent_at}", column("sent_at"),
		"{created}", optional("created_at"),
		"{lease_until}", optional("lease_until"),
	)
	return queries{
		lease:         names.Replace(leaseSQL),
		attention:     names.Replace(attentionSQL),
		fresh:         names.Replace(freshSQL),
		consume:       names.Replace(consumeSQL),
		hasCreatedAt:  columns[mapped.Name("created_at")],
		hasLeaseUntil: columns[mapped.Name("lease_until")],
	}
}

// slotSQL looks at the slot and then, and only then, at the end of WAL: two
// statements, or the other order, could show a slot that is ahead of the
// server. A lost slot has no safe size, and neither has one without a limit.
const slotSQL = `
SELECT s.now::text, s.slot_name IS NOT NULL, coalesce(s.active, false), coalesce(s.wal_status, 'unknown'),
       coalesce(s.restart_lsn, '0/0')::text, coalesce(s.confirmed_flush_lsn, '0/0')::text,
       pg_wal_lsn_diff(s.now, s.restart_lsn)::bigint, pg_wal_lsn_diff(s.now, s.confirmed_flush_lsn)::bigint,
       CASE WHEN s.wal_status = 'lost' OR s.safe_wal_size < 0 THEN 0 ELSE s.safe_wal_size END, age(s.catalog_xmin)::bigint
  FROM (SELECT r.*, pg_current_wal_lsn() AS now
          FROM (VALUES (1)) one LEFT JOIN pg_replication_slots r ON r.slot_name = $1 OFFSET 0) s`

// leaseSQL has one row, whether or not there was ever a leader. $2 is an id
// below all others.
const leaseSQL = `
SELECT coalesce(l.instance, ''), coalesce(l.epoch, 0), coalesce(l.lease_until > clock_timestamp(), false),
       greatest(coalesce(extract(epoch FROM clock_timestamp() - l.renewed_at), 0), 0)::float8,
       coalesce(l.saved_lsn, '0/0')::text, coalesce(l.low_water_id, $2), coalesce(l.consumer_low_water_id, $2),
       coalesce((SELECT max({id}) FROM {table} o), $2)::bigint
  FROM (VALUES (1)) one LEFT JOIN {lease} l ON l.slot = $1`

// The statements on the outbox are cut by rows walked: the LIMIT stands before
// any condition that no index knows. Times that are not finite have no age.

// attentionSQL takes what waits for a person, at infinity, first.
const attentionSQL = `
SELECT a.status, a.kind, count(*), extract(epoch FROM clock_timestamp() - min(a.created) FILTER (WHERE isfinite(a.created)))::float8
  FROM (SELECT {status}::smallint AS status, {created}::timestamptz AS created,
               CASE WHEN {status} = 3 AND {sent_at} IS NULL THEN 'publish'
                    WHEN {status} = 3 THEN 'consume'
                    WHEN {status} <> 0 THEN 'other'
                    WHEN {next} = 'infinity' THEN 'held'
                    WHEN {attempts} = 0 AND {commit_lsn} IS NULL THEN 'delayed'
                    ELSE 'retrying' END AS kind
          FROM {table} o WHERE {next} IS NOT NULL ORDER BY {next} DESC LIMIT $1) a
 GROUP BY a.status, a.kind`

const freshSQL = `
SELECT count(*), coalesce(max(p.id), $1), coalesce(min(p.id) FILTER (WHERE p.fresh), 0), count(*) FILTER (WHERE p.fresh),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       extract(epoch FROM clock_timestamp() - min(p.created) FILTER (WHERE p.fresh AND isfinite(p.created)))::float8
  FROM (SELECT {id}::bigint AS id, {created}::timestamptz AS created, {status} = 0 AND {next} IS NULL AS fresh
          FROM {table} o WHERE {id} > $1::bigint ORDER BY {id} LIMIT $2) p`

// consumeSQL finds of interest whatever will still come by: READY rows, too.
const consumeSQL = `
SELECT count(*), coalesce(max(p.id), $1), coalesce(min(p.id) FILTER (WHERE p.status NOT IN (3, 4)), 0),
       count(*) FILTER (WHERE p.status NOT IN (3, 4)),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       count(*) FILTER (WHERE p.status = 1),
       extract(epoch FROM clock_timestamp() - min(p.created) FILTER (WHERE p.status = 1 AND isfinite(p.created)))::float8,
       count(*) FILTER (WHERE p.status = 2),
       extract(epoch FROM clock_timestamp() - min(p.created) FILTER (WHERE p.status = 2 AND isfinite(p.created)))::float8,
       count(*) FILTER (WHERE p.status = 5),
       extract(epoch FROM clock_timestamp() - min(p.created) FILTER (WHERE p.status = 5 AND isfinite(p.created)))::float8,
       count(*) FILTER (WHERE p.status IN (1, 5) AND p.lease_until < clock_timestamp())
  FROM (SELECT {id}::bigint AS id, {status} AS status, {created}::timestamptz AS created, {lease_until} AS lease_until
          FROM {table} o WHERE {id} > $1::bigint ORDER BY {id} LIMIT $2) p`
