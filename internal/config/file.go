package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"go.yaml.in/yaml/v3"
)

const originFile = "file"

// DefaultFile is read from the working directory when no file is named.
const DefaultFile = "cdc-relay.yaml"

// readFile returns the settings of the file called name. A missing file is a
// problem only when it was asked for.
func readFile(name string, asked bool) (map[string]any, []Problem) {
	data, err := readBounded(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return nil, nil
	}
	if err != nil {
		return nil, []Problem{{name, "cannot be read: " + reason(err), "name a readable file with --config or " + envConfig}}
	}
	return parseYAML(data)
}

// reason is the cause of a file error without the path, which the message has.
func reason(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}

func parseYAML(data []byte) (map[string]any, []Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, []Problem{badYAML(err)}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, []Problem{{originFile, "holds more than one YAML document", "keep one, without a second ---"}}
	}
	r := yamlReader{settings: map[string]any{}}
	for _, root := range document.Content {
		r.section("", root)
	}
	return r.settings, r.problems
}

// badYAML tells the line only: the parser's own text repeats pieces of the
// file, and a password that starts with * is a piece like any other.
func badYAML(err error) Problem {
	where := ""
	var line int
	if _, scanErr := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); scanErr == nil {
		where = fmt.Sprintf(" near line %d", line)
	}
	return Problem{originFile, "is not valid YAML" + where, "check indentation and colons, and quote values with special characters (* & ! % @ ` { [)"}
}

// yamlReader walks the nodes of one document.
type yamlReader struct {
	settings map[string]any // path -> setting
	problems []Problem
}

func (r *yamlReader) report(path string, d defect) {
	if path == "" {
		path = originFile
	}
	r.problems = append(r.problems, d.at(path, originFile))
}

func (r *yamlReader) section(path string, node *yaml.Node) {
	if isNull(node) {
		return
	}
	if node.Kind != yaml.MappingNode {
		r.report(path, defect{"is not a mapping of keys", "write keys below it, as key: value"})
		return
	}
	for name, value := range r.pairs(path, node) {
		full := joinPath(path, name)
		switch {
		case isKnown(full):
			r.value(full, value)
		case isSection(full):
			r.section(full, value)
		default:
			r.report(full, unknown(full, asIs))
		}
	}
}

// pairs yields the entries of a mapping, each name once.
func (r *yamlReader) pairs(path string, node *yaml.Node) func(yield func(string, *yaml.Node) bool) {
	return func(yield func(string, *yaml.Node) bool) {
		lines := map[string]int{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			name, value := node.Content[i], node.Content[i+1]
			if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
				r.report(path, defect{fmt.Sprintf("has a key that is not a plain name on line %d", name.Line), "write key: value"})
				continue
			}
			if first, twice := lines[name.Value]; twice {
				r.report(joinPath(path, name.Value), defect{fmt.Sprintf("is given twice, on lines %d and %d", first, name.Line), "keep one"})
				continue
			}
			lines[name.Value] = name.Line
			if !yield(name.Value, value) {
				return
			}
		}
	}
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (r *yamlReader) value(path string, node *yaml.Node) {
	if isNull(node) {
		return // a key without a value is left at its default
	}
	s := setting{Origin: originFile}
	switch node.Kind {
	case yaml.ScalarNode:
		s.Text = node.Value
	case yaml.SequenceNode:
		s.Form = formList
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				r.report(path, defect{"has an entry that is not a single value", "write a list of single values"})
				return
			}
			s.List = append(s.List, item.Value)
		}
	case yaml.MappingNode:
		s.Form = formMap
		if takesMaps(path) {
			s.Maps = r.mappings(path, node)
		} else {
			s.Map = r.mapping(path, node)
		}
	default:
		r.report(path, defect{"is an alias", "write the value itself"})
		return
	}
	r.settings[path] = s
}

func (r *yamlReader) mapping(path string, node *yaml.Node) map[string]string {
	entries := map[string]string{}
	for name, value := range r.pairs(path, node) {
		if isNull(value) {
			continue
		}
		if value.Kind != yaml.ScalarNode {
			r.report(joinPath(path, name), defect{"is not a single value", "write name: value"})
			continue
		}
		entries[name] = value.Value
	}
	return entries
}

// mappings reads a mapping of mappings.
func (r *yamlReader) mappings(path string, node *yaml.Node) map[string]map[string]string {
	entries := map[string]map[string]string{}
	for name, value := range r.pairs(path, node) {
		switch {
		case isNull(value):
		case value.Kind == yaml.MappingNode:
			entries[name] = r.mapping(joinPath(path, name), value)
		default:
			r.report(joinPath(path, name), defect{"is not a mapping of keys", "write keys below it, as key: value"})
		}
	}
	return entries
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }
