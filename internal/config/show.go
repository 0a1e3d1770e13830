package config

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Setting is an effective value as it is shown.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // *** for a secret
	Origin string `json:"origin"`
	Help   string `json:"help"`
}

// Show returns every key with its effective value and its origin: "default",
// "file", "env NAME" or "flag". A secret that is read from a file is shown as
// the key that names the file.
func (l *Loaded) Show() []Setting {
	shown := make([]Setting, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		path, value := k.path, format(k.field(&l.Config))
		if twin := l.settings[k.path+fileSuffix]; twin.Text != "" {
			path, value = k.path+fileSuffix, twin.Text
		}
		shown = append(shown, Setting{Key: path, Value: value, Origin: l.settings[path].Origin, Help: k.help})
	}
	return shown
}

func format(target any) string {
	switch t := target.(type) {
	case *string:
		return *t
	case *Secret:
		return t.String()
	case *bool:
		return strconv.FormatBool(*t)
	case *int:
		return strconv.Itoa(*t)
	case *float64:
		return strconv.FormatFloat(*t, 'g', -1, 64)
	case *time.Duration:
		return formatDuration(*t)
	case *Size:
		return t.String()
	case *Table:
		return t.String()
	case *[]string:
		return strings.Join(*t, ",")
	case *map[string]string:
		return formatMap(*t)
	case *map[string]RetryOverride:
		return formatOverrides(*t)
	}
	return ""
}

// formatMap writes a map the way the environment takes it.
func formatMap[V any](m map[string]V) string {
	if len(m) == 0 {
		return ""
	}
	text, err := json.Marshal(m)
	if err != nil {
		return "unprintable"
	}
	return string(text)
}
