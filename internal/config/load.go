package config

import (
	"fmt"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
)

// Use tells which keys a command cannot do without.
type Use uint8

const (
	// UseAll is for the relay itself.
	UseAll Use = iota
	// UseDatabase is for commands that never reach Kafka.
	UseDatabase
	// UseNone asks for no key: what is set must be right.
	UseNone
)

// Input is where a configuration comes from.
type Input struct {
	// File is read; "" means $CDC_RELAY_CONFIG, else DefaultFile if it exists.
	File string
	// Environ is a list of NAME=value, as of os.Environ.
	Environ []string
	// Flags is a list of key=value.
	Flags []string
	Use   Use
}

// Loaded is a valid configuration and where its values came from.
type Loaded struct {
	Config Config
	// Warnings are lines to show; nothing is wrong, but something looks odd.
	Warnings []string
	settings map[string]setting
}

// Load reads, merges and validates. The error is always an *Error with every
// problem found.
func Load(in Input) (*Loaded, error) {
	l := &Loaded{}
	problems, fileRead := l.merge(in)
	problems = append(problems, l.parse()...)
	if fileRead {
		problems = append(problems, l.missing(in.Use)...)
	}
	// Rules that span keys would only repeat what is wrong with one of them.
	if len(problems) == 0 {
		problems = l.crossCheck()
	}
	if len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	l.Warnings = append(l.Warnings, l.oddities()...)
	if l.Config.Pipeline == "" {
		l.Config.Pipeline = l.Config.Slot.Name
	}
	return l, nil
}

// Defaults returns what applies where nothing is set.
func Defaults() *Loaded {
	l := &Loaded{settings: map[string]setting{}}
	for path, s := range defaultSettings() {
		l.settings[path] = s.(setting)
	}
	l.parse()
	return l
}

// merge lays the sources over each other, the last one on top. fileRead is
// false when a file is there and cannot be used: what is missing then is not
// known.
func (l *Loaded) merge(in Input) (problems []Problem, fileRead bool) {
	name, asked := in.File, true
	if name == "" {
		name = lookupEnv(in.Environ, envConfig)
	}
	if name == "" {
		name, asked = DefaultFile, false
	}
	file, problems := readFile(name, asked)
	fileRead = file != nil || len(problems) == 0
	env, warnings, envProblems := readEnv(in.Environ)
	flags, flagProblems := readFlags(in.Flags)
	l.Warnings = warnings
	problems = append(append(problems, envProblems...), flagProblems...)

	k := koanf.New(".")
	for _, layer := range []map[string]any{defaultSettings(), file, env, flags} {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			problems = append(problems, Problem{originFile, fmt.Sprintf("cannot be merged: %v", err), "report this as a defect"})
		}
	}
	l.settings = map[string]setting{}
	for path, v := range k.All() {
		if s, ok := v.(setting); ok {
			l.settings[path] = s
		}
	}
	return problems, fileRead
}

func defaultSettings() map[string]any {
	settings := map[string]any{}
	for _, k := range keys {
		settings[k.path] = setting{Text: k.def, Origin: originDefault}
	}
	return settings
}

// parse fills the Config from the settings.
func (l *Loaded) parse() []Problem {
	var problems []Problem
	for i := range keys {
		k := &keys[i]
		s := l.settings[k.path]
		d := parse(k.field(&l.Config), s)
		if d == fine {
			d = k.check(&l.Config)
		}
		if d != fine {
			problems = append(problems, d.at(k.path, s.Origin))
		}
		if k.isSecret() {
			problems = append(problems, l.parseTwin(k)...)
		}
	}
	return problems
}

// parseTwin takes a secret from its file, if that is set.
func (l *Loaded) parseTwin(k *key) []Problem {
	path := k.path + fileSuffix
	s, ok := l.settings[path]
	if !ok || s.Form == formText && s.Text == "" {
		return nil
	}
	target := k.field(&l.Config).(*Secret)
	if target.IsSet() {
		return []Problem{{path, "is set as well as " + k.path, "keep one of the two"}}
	}
	if s.Form != formText {
		return []Problem{defect{"is " + s.Form.String(), "write the name of a file"}.at(path, s.Origin)}
	}
	*target = NewSecretFile(s.Text)
	value, err := target.Read()
	switch {
	case err != nil:
		return []Problem{defect{"cannot be read: " + reason(err), "name a file that this process may read"}.at(path, s.Origin)}
	case value == "":
		return []Problem{defect{"names an empty file", "write the secret into it"}.at(path, s.Origin)}
	}
	return nil
}

// missing finds required keys that are empty.
func (l *Loaded) missing(use Use) []Problem {
	var problems []Problem
	for i := range keys {
		k := &keys[i]
		if !k.required || use == UseNone || use == UseDatabase && !k.database || !isEmpty(k.field(&l.Config)) {
			continue
		}
		hint := "write " + k.path + " in the file or set " + EnvName(k.path)
		if k.isSecret() {
			hint += " (or " + k.path + fileSuffix + " to read it from a file)"
		}
		problems = append(problems, Problem{k.path, "is required", hint})
	}
	if r := l.Config.Record; use == UseAll && r.Headers == "cloudevents" && r.Source == "" {
		problems = append(problems, Problem{"record.source", "is required with record.headers cloudevents",
			"write a URI that names your service in the file or set " + EnvName("record.source") + ", or choose record.headers plain"})
	}
	return problems
}

func isEmpty(target any) bool {
	switch t := target.(type) {
	case *Secret:
		return !t.IsSet()
	case *[]string:
		return len(*t) == 0
	}
	return false
}
