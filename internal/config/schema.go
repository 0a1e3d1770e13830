package config

import "strings"

// fileSuffix makes the twin of a secret key, which names a file.
const fileSuffix = "_file"

func findKey(path string) *key {
	for i := range keys {
		if keys[i].path == path {
			return &keys[i]
		}
	}
	return nil
}

// secretOf returns the secret whose file path names, nil if it is no such key.
func secretOf(path string) *key {
	base, ok := strings.CutSuffix(path, fileSuffix)
	if !ok {
		return nil
	}
	if k := findKey(base); k != nil && k.isSecret() {
		return k
	}
	return nil
}

// takesMaps reports whether the value of the key at path is a map of maps.
func takesMaps(path string) bool {
	k := findKey(path)
	if k == nil {
		return false
	}
	_, ok := k.field(new(Config)).(*map[string]RetryOverride)
	return ok
}

func isKnown(path string) bool { return findKey(path) != nil || secretOf(path) != nil }

func isSection(path string) bool {
	for i := range keys {
		if strings.HasPrefix(keys[i].path, path+".") {
			return true
		}
	}
	return false
}

// isLater reports whether path, or a section around it, is for a later version.
func isLater(path string) bool {
	for _, l := range later {
		if path == l || strings.HasPrefix(path, l+".") {
			return true
		}
	}
	return false
}

// unknown says what is wrong with a path that is no key. spell writes a path
// the way its source does.
func unknown(path string, spell func(string) string) defect {
	switch {
	case isLater(path):
		return defect{"is not in this version", "remove it"}
	case isSection(path):
		return defect{"is a section, not a key", "set the keys below it"}
	}
	return defect{"is unknown", "did you mean " + spell(nearestKey(path)) + "?"}
}

func asIs(path string) string { return path }
