package pg

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// SQLSTATE codes that the relay tells apart.
const (
	CodeInvalidPassword   = "28P01"
	CodeInvalidAuth       = "28000"
	CodeUnknownDatabase   = "3D000"
	CodeUndefinedSchema   = "3F000"
	CodeReadOnly          = "25006"
	CodeSerialization     = "40001"
	CodeDeadlock          = "40P01"
	CodeNoPrivilege       = "42501"
	CodeUndefinedColumn   = "42703"
	CodeUndefinedFunction = "42883"
	CodeUndefinedTable    = "42P01"
	CodeLockNotAvailable  = "55P03"
	CodeQueryCanceled     = "57014"
)

// Code returns the SQLSTATE of the server's answer in err's chain, "" if the
// server did not answer.
func Code(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// Explain turns an error of connecting into one for people: a *fault.Blocked
// (pg.connect) for a refused login or a missing database, else one line
// without line breaks. Other errors, and those explained before, are returned
// as they are.
func Explain(err error) error {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) || fault.AsBlocked(err) != nil || errors.As(err, new(*connectError)) {
		return err
	}
	conf := connect.Config
	at := fmt.Sprintf("PostgreSQL at %s", hosts(conf))
	refused := func(what, remedy string) error {
		return &fault.Blocked{Reason: "pg.connect", What: at + " " + what, Remedy: remedy, Err: err}
	}
	const who = "correct the user and the password in postgres.dsn and postgres.password, or pg_hba.conf"
	switch code := Code(err); code {
	case CodeInvalidPassword:
		return refused(fmt.Sprintf("refuses the password of user %q (%s)", conf.User, code), who)
	case CodeInvalidAuth:
		return refused(fmt.Sprintf("refuses the login of user %q to database %q (%s)", conf.User, conf.Database, code), who)
	case CodeNoPrivilege:
		return refused(fmt.Sprintf("does not let user %q connect to database %q (%s)", conf.User, conf.Database, code),
			"grant CONNECT on the database, and for replication give the user the REPLICATION attribute")
	case CodeUnknownDatabase:
		return refused(fmt.Sprintf("has no database %q (%s)", conf.Database, code), "correct the database in postgres.dsn")
	}
	return &connectError{text: "connecting to " + at + ": " + cause(connect), err: err}
}

// connectError is a connect that failed, in one line.
type connectError struct {
	text string
	err  error
}

func (e *connectError) Error() string { return e.text }

func (e *connectError) Unwrap() error { return e.err }

// cause is why: the driver repeats user and database, and lists the attempts
// at several hosts on a line each.
func cause(connect *pgconn.ConnectError) string {
	var parts []string
	for line := range strings.Lines(connect.Unwrap().Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// hosts lists where a connect was tried, each address once.
func hosts(conf *pgconn.Config) string {
	list := []string{join(conf.Host, conf.Port)}
	for _, f := range conf.Fallbacks { // other hosts, and the same without TLS
		if at := join(f.Host, f.Port); at != list[len(list)-1] {
			list = append(list, at)
		}
	}
	return strings.Join(list, ", ")
}

func address(conf *pgx.ConnConfig) string { return join(conf.Host, conf.Port) }

func join(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
