package lease

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements is the SQL of one schema. $1 is the slot in all of
// them; $2 and $3 are owner and epoch where they decide.
type statements struct {
	ensureSlot, ensureLease, observe, takeLease, takeSlot, renew, release string
}

func newStatements(schema string) statements {
	names := strings.NewReplacer(
		"{slot}", pgx.Identifier{schema, "cdc_relay_slot"}.Sanitize(),
		"{lease}", pgx.Identifier{schema, "cdc_relay_lease"}.Sanitize(),
	)
	return statements{
		ensureSlot:  names.Replace(ensureSlotSQL),
		ensureLease: names.Replace(ensureLeaseSQL),
		observe:     names.Replace(observeSQL),
		takeLease:   names.Replace(takeLeaseSQL),
		takeSlot:    names.Replace(takeSlotSQL),
		renew:       names.Replace(renewSQL),
		release:     names.Replace(releaseSQL),
	}
}

const ensureSlotSQL = `
INSERT INTO {slot} (slot, epoch, owner) VALUES ($1, 0, '00000000-0000-0000-0000-000000000000')
    ON CONFLICT (slot) DO NOTHING`

const ensureLeaseSQL = `
INSERT INTO {lease} (slot, epoch) VALUES ($1, 0) ON CONFLICT (slot) DO NOTHING`

const observeSQL = `
SELECT f.epoch, l.epoch, l.owner, coalesce(l.instance, ''), l.renewed_at, l.system_identifier, l.timeline,
       l.saved_lsn::text, l.lease_until IS NULL, coalesce(l.lease_until <= clock_timestamp(), false),
       coalesce(extract(epoch FROM clock_timestamp() - l.renewed_at)::float8, 0),
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = l.slot AND s.active)
  FROM {slot} f JOIN {lease} l USING (slot)
 WHERE slot = $1`

// The timeline stays as it is: it belongs to saved_lsn and changes with it,
// else a crash right after a failover would hide the failover.
const takeLeaseSQL = `
UPDATE {lease}
   SET owner = $2, epoch = $3, instance = $4, renewed_at = clock_timestamp(),
       lease_until = clock_timestamp() + $5::interval, system_identifier = $6
 WHERE slot = $1 AND epoch IS NOT DISTINCT FROM $7 AND owner IS NOT DISTINCT FROM $8
   AND renewed_at IS NOT DISTINCT FROM $9`

const takeSlotSQL = `
UPDATE {slot} SET epoch = $3, owner = $2 WHERE slot = $1 AND epoch = $4`

const renewSQL = `
UPDATE {lease}
   SET renewed_at = clock_timestamp(), lease_until = clock_timestamp() + $6::interval,
       saved_lsn = greatest(saved_lsn, $4::pg_lsn),
       timeline = CASE WHEN $4::pg_lsn IS NULL THEN timeline ELSE $5::integer END
 WHERE slot = $1 AND owner = $2 AND epoch = $3
   AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND owner = $2 AND epoch = $3)`

const releaseSQL = `
UPDATE {lease}
   SET lease_until = NULL,
       saved_lsn = greatest(saved_lsn, $4::pg_lsn),
       timeline = CASE WHEN $4::pg_lsn IS NULL THEN timeline ELSE $5::integer END
 WHERE slot = $1 AND owner = $2 AND epoch = $3
   AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND owner = $2 AND epoch = $3)`
