package relayproc

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Config is a configuration by dotted keys, such as "kafka.brokers".
type Config map[string]any

// With returns a copy in which the keys of others are added or replaced.
func (c Config) With(others ...Config) Config {
	merged := maps.Clone(c)
	for _, o := range others {
		maps.Copy(merged, o)
	}
	return merged
}

// Write writes the configuration as a YAML file. A key whose value is nil is
// left out.
func (c Config) Write(path string) error {
	tree := map[string]any{}
	for key, value := range c {
		if value == nil {
			continue
		}
		at := tree
		parts := strings.Split(key, ".")
		for _, p := range parts[:len(parts)-1] {
			next, ok := at[p].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[p] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = value
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
}
