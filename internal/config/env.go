package config

import (
	"strings"
)

const (
	originDefault = "default"
	originFlag    = "flag"

	envPrefix = "CDC_RELAY_"
	envConfig = envPrefix + "CONFIG"
	envLevel  = "__" // between levels of a path
)

// EnvName returns the environment variable of a key.
func EnvName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", envLevel))
}

// lookupEnv returns the last value of name in a list of NAME=value.
func lookupEnv(environ []string, name string) string {
	found := ""
	for _, e := range environ {
		if n, v, _ := strings.Cut(e, "="); n == name {
			found = v
		}
	}
	return found
}

// readEnv returns the settings among environ. A name without a level mark that
// is no key only earns a warning: orchestrators inject such names.
func readEnv(environ []string) (settings map[string]any, warnings []string, problems []Problem) {
	settings = map[string]any{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || name == envConfig {
			continue
		}
		path := strings.ToLower(strings.ReplaceAll(rest, envLevel, "."))
		switch {
		case isKnown(path):
			settings[path] = setting{Text: value, Origin: "env " + name}
		case strings.Contains(rest, envLevel):
			problems = append(problems, unknown(path, EnvName).at(name, ""))
		default:
			warnings = append(warnings, "config: "+name+": is no key and is ignored")
		}
	}
	return settings, warnings, problems
}

// readFlags returns the settings of a list of key=value. Secrets are refused:
// every user of a machine can read the arguments of a process.
func readFlags(assignments []string) (settings map[string]any, problems []Problem) {
	settings = map[string]any{}
	for _, a := range assignments {
		path, value, found := strings.Cut(a, "=")
		switch k := findKey(path); {
		case !found:
			problems = append(problems, Problem{"--set", "an argument has no =", "write --set key=value"})
		case !isKnown(path):
			problems = append(problems, unknown(path, asIs).at(path, originFlag))
		case k != nil && k.isSecret():
			problems = append(problems, Problem{path, "is a secret, and other users of this machine can read arguments",
				"set it in the file, as " + EnvName(path) + ", or name a file with --set " + path + fileSuffix + "=..."})
		default:
			settings[path] = setting{Text: value, Origin: originFlag}
		}
	}
	return settings, problems
}
