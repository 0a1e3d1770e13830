// Package config turns defaults, a YAML file, the environment and flags into
// one validated Config.
//
// One table, keys, holds every key with its type, default and meaning; parsing,
// "config show", the nearest-key hint and the validation of single values all
// work from it. Rules that span keys are in checks.go.
//
// Later sources win: defaults < file < environment < flags. Each source only
// yields text with its origin; koanf merges the sources; the text is parsed
// once, after the merge, so a duration means the same wherever it was written.
//
// The package owns no state and starts nothing. Load returns all problems of a
// configuration at once as *Error; no problem, warning or listing shows the
// value of a secret. Values are safe for concurrent reading.
package config
