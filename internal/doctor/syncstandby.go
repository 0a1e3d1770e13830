package doctor

import "strings"

// maxApplicationName is what the server keeps of an application_name, in bytes.
const maxApplicationName = 63

// syncStandby reports whether a value of synchronous_standby_names makes a
// connection of that application_name a synchronous standby.
func syncStandby(setting, application string) bool {
	if len(application) > maxApplicationName {
		application = application[:maxApplicationName]
	}
	for _, name := range standbyNames(setting) {
		if name == "*" || strings.EqualFold(name, application) {
			return true
		}
	}
	return false
}

// standbyNames returns the names in a value of synchronous_standby_names: a
// list, or a list in parentheses after a number or FIRST or ANY and a number.
func standbyNames(setting string) []string {
	var names []string
	for rest := strings.TrimLeft(setting, " \t\r\n,"); rest != ""; rest = strings.TrimLeft(rest, " \t\r\n,") {
		switch rest[0] {
		case '(': // what came before was the number
			names, rest = nil, rest[1:]
		case ')':
			rest = rest[1:]
		case '"':
			var name string
			name, rest = quotedName(rest[1:])
			names = append(names, name)
		default:
			end := strings.IndexAny(rest, " \t\r\n,()\"")
			if end < 0 {
				end = len(rest)
			}
			names, rest = append(names, rest[:end]), rest[end:]
		}
	}
	return names
}

// quotedName reads up to the closing quote; two of them are one of the name.
func quotedName(s string) (name, rest string) {
	var b strings.Builder
	for {
		before, after, _ := strings.Cut(s, `"`)
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after
		}
		b.WriteByte('"')
		s = after[1:]
	}
}
