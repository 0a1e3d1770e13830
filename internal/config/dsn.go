package config

import (
	"errors"
	"net/url"
	"strings"
)

// dsn is what the checks need to know of a connection string. The driver reads
// the rest, with service files and PG* variables.
type dsn struct {
	host        string
	port        string
	hasPassword bool
	// hasKeyPassword: that of a client certificate's key is in it.
	hasKeyPassword bool
}

// CheckDSN says what is wrong with a connection string that is given on a
// command line, where others can see it.
func CheckDSN(text string) error {
	d, ok := parseDSN(text)
	switch {
	case !ok:
		return errors.New("is not a connection string; write postgres://user@host:5432/database, or keywords: host, user, dbname")
	case d.hasPassword || d.hasKeyPassword:
		return errors.New("holds a password, which others can see there; use $PGPASSWORD, a password file or a service file")
	}
	return nil
}

// parseDSN understands both forms; ok is false when neither fits.
func parseDSN(text string) (d dsn, ok bool) {
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		return parseURLDSN(text)
	}
	return parseKeywordDSN(text)
}

func parseURLDSN(text string) (d dsn, ok bool) {
	// Several hosts, h1:1,h2:2, are no URL to net/url: the first stands for all.
	scheme, rest, _ := strings.Cut(text, "://")
	authority, tail := rest, ""
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		authority, tail = rest[:end], rest[end:]
	}
	userinfo := ""
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		userinfo, authority = authority[:at+1], authority[at+1:]
	}
	first, _, _ := strings.Cut(authority, ",")
	u, err := url.Parse(scheme + "://" + userinfo + first + tail)
	if err != nil {
		return dsn{}, false
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return dsn{}, false
	}
	password, has := u.User.Password()
	return dsn{
		host:        firstOf(u.Hostname(), query.Get("host")),
		port:        firstOf(u.Port(), query.Get("port")),
		hasPassword: has && password != "" || query.Get("password") != "",

		hasKeyPassword: query.Get("sslpassword") != "",
	}, true
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseKeywordDSN reads key=value pairs; values may be quoted with ' and
// escaped with \.
func parseKeywordDSN(text string) (d dsn, ok bool) {
	rest := strings.TrimSpace(text)
	for rest != "" {
		name, tail, found := strings.Cut(rest, "=")
		name = strings.TrimSpace(name)
		if !found || name == "" || strings.ContainsAny(name, " \t\n") {
			return dsn{}, false
		}
		var value string
		value, rest, ok = keywordValue(strings.TrimSpace(tail))
		if !ok {
			return dsn{}, false
		}
		switch name {
		case "host":
			d.host = value
		case "port":
			d.port = value
		case "password":
			d.hasPassword = value != ""
		case "sslpassword":
			d.hasKeyPassword = value != ""
		}
	}
	return d, true
}

func keywordValue(text string) (value, rest string, ok bool) {
	quoted := strings.HasPrefix(text, "'")
	if quoted {
		text = text[1:]
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case quoted && c == '\'':
			return b.String(), strings.TrimSpace(text[i+1:]), true
		case !quoted && (c == ' ' || c == '\t' || c == '\n'):
			return b.String(), strings.TrimSpace(text[i:]), true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", !quoted
}
