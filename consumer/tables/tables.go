// Package tables holds the tables of the consumer kit: outbox_receipt and
// outbox_quarantine. Where the outbox is, the migrations of cdc-relay make
// them; for a consumer with a database of its own, [SQL] is the script.
package tables

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// The names of the tables, in any schema.
const (
	Receipt    = "outbox_receipt"
	Quarantine = "outbox_quarantine"
	Audit      = "cdc_relay_audit"
)

var (
	//go:embed sql/consumer.sql
	consumer string
	//go:embed sql/audit.sql
	audit string
)

// Consumer returns the statements that make the tables of the kit where they
// are missing, with [Placeholder] for the schema's name.
func Consumer() string { return consumer }

// AuditLog returns those of the audit log.
func AuditLog() string { return audit }

// Placeholder stands for the name of the schema.
const Placeholder = "{{schema}}"

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// CheckSchema returns an error unless schema is a name that the tables can
// have: lower case, digits and underscores, at most 63 bytes.
func CheckSchema(schema string) error {
	if !schemaName.MatchString(schema) {
		return fmt.Errorf("schema name %q: want lower case letters, digits and underscores, not starting with a digit, at most 63", schema)
	}
	return nil
}

// SQL returns the script that makes the tables in a consumer's own database,
// with the audit log that the commands of cdc-relay write to. The schema must
// be there. Tables that are there already are left as they are, so the script
// can be run again; it must not be run twice at the same time.
func SQL(schema string) (string, error) {
	if err := CheckSchema(schema); err != nil {
		return "", err
	}
	return strings.ReplaceAll(consumer+"\n"+audit, Placeholder, schema), nil
}
