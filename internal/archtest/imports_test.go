// Package archtest holds checks of the shape of this module: who may import whom.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cdc-relay/cdc-relay"

// External modules, as the table names them. A name covers the packages below it.
const (
	pgx       = "github.com/jackc/pgx/v5"
	pglogrepl = "github.com/jackc/pglogrepl" // its LSN type in the pure packages, the protocol in wal
	kafkaGo   = "github.com/segmentio/kafka-go"
	compress  = "github.com/klauspost/compress"
	lz4       = "github.com/pierrec/lz4/v4"
	backoff   = "github.com/cenkalti/backoff/v4"
	koanf     = "github.com/knadh/koanf"
	yaml      = "go.yaml.in/yaml/v3"
	goose     = "github.com/pressly/goose/v3"
	errgroup  = "golang.org/x/sync/errgroup"
	metrics   = "github.com/prometheus/client_golang/prometheus"
	model     = "github.com/prometheus/client_model/go" // what a registry yields when it is gathered
)

// anything is the one entry of a package that may import what it likes.
const anything = "*"

// table says what the non-test files of each package may import besides the standard library. Packages of this module
// are written without the module path. Test files are free.
//
// The pure core (event, fault, ledger, decoder) does no I/O; the edges (wal, sink, statusback, retrysched, lease,
// recovery) know one external system each and never each other; relay sees them through its own interfaces.
var table = map[string][]string{
	"cmd/cdc-relay": {anything},

	"internal/event":   {"outbox", pglogrepl},
	"internal/fault":   {},
	"internal/ledger":  {"internal/event", pglogrepl},
	"internal/decoder": {"internal/event", "internal/fault", pglogrepl},

	"internal/relay": {"internal/decoder", "internal/ledger", "internal/event", "internal/fault", "internal/pulse", pglogrepl, backoff, errgroup, metrics},

	"internal/wal": {"internal/event", "internal/fault", "internal/pg", "internal/pulse", pglogrepl, pgx, errgroup, metrics},
	"internal/sink": {"internal/event", "internal/fault", "internal/kafkaconn", "internal/pulse", "internal/sink/record", kafkaGo, backoff,
		compress, lz4, errgroup, metrics},
	"internal/sink/record": {"internal/event", kafkaGo, compress, lz4},
	"internal/statusback":  {"internal/event", "internal/fault", "internal/pg", "internal/pulse", "outbox", pglogrepl, pgx, backoff, metrics},
	"internal/retrysched":  {"internal/event", "internal/fault", "internal/pg", "internal/pulse", "outbox", pglogrepl, pgx, backoff, metrics},
	"internal/lease":       {"internal/event", "internal/fault", "internal/pg", "internal/pulse", pglogrepl, pgx, backoff, metrics},
	"internal/recovery":    {"internal/decoder", "internal/event", "internal/fault", "internal/pg", "outbox", pglogrepl, pgx, metrics},
	"internal/retention":   {"internal/fault", "internal/pg", "outbox", pgx, metrics},
	"internal/doctor":      {"internal/event", "internal/fault", "internal/pg", "migrations", "outbox", pglogrepl, pgx, kafkaGo},

	"internal/operate": {"consumer/tables", "internal/event", "internal/fault", "internal/pg", "internal/sink/record", "outbox", pgx, kafkaGo},
	"internal/slot":    {"internal/pg", pglogrepl, pgx},

	"internal/pg":        {"internal/event", "internal/fault", pgx},
	"internal/kafkaconn": {kafkaGo}, // part of what applications import
	"internal/pulse":     {},
	"internal/monitor":   {"internal/pulse", "internal/event", "internal/fault", "internal/pg", pglogrepl, pgx, metrics, model},
	"internal/sampler":   {"internal/fault", "internal/pg", "internal/pulse", "outbox", pglogrepl, pgx, metrics},
	"internal/config":    {"internal/fault", koanf, yaml},

	"internal/archtest":  {},
	"internal/kafkatest": {anything},
	"internal/modeltest": {anything},
	"internal/nettest":   {anything},
	"internal/pgtest":    {anything},
	"internal/waltest":   {anything},
	"internal/sinktest":  {anything},

	// public: applications import these, so they stay light
	"outbox":                  {pgx},
	"consumer":                {"consumer/internal", "consumer/tables", "outbox", pgx, kafkaGo},
	"consumer/internal/store": {"consumer/tables", "outbox", pgx},
	"consumer/internal/group": {"internal/kafkaconn", kafkaGo},
	"consumer/tables":         {}, // what the kit needs in a database, for its users and for migrations
	"migrations":              {"consumer/tables", "internal/fault", "internal/pg", pgx, goose},

	"examples":           {anything},
	"e2e":                {anything},
	"bench":              {anything},
	"internal/demo":      {anything},
	"scripts/testreport": {},
}

// importers says who may import a package at all, where that is not for the importer's row alone to say.
var importers = map[string][]string{
	"internal/config": {"cmd/cdc-relay"},
	"internal/relay":  {"cmd/cdc-relay"},
	"internal/doctor": {"cmd/cdc-relay"},
}

// free packages are test code as a whole, in files of any name.
func free(pkg string) bool {
	return pkg == "e2e" || pkg == "bench" || pkg == "internal/demo" || isTestKit(pkg) ||
		strings.HasPrefix(pkg, "e2e/") || strings.HasPrefix(pkg, "bench/")
}

func isTestKit(pkg string) bool {
	return strings.HasPrefix(pkg, "internal/") && strings.HasSuffix(pkg, "test")
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, p := range packages(t) {
		for _, problem := range check(p) {
			t.Error(problem)
		}
	}
}

// goPackage is what this check needs of the output of go list.
type goPackage struct {
	ImportPath string
	Imports    []string // of the non-test files
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing the module's packages: %v\n%s", err, stderr.String())
	}
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("reading the output of go list: %v", err)
		}
		list = append(list, p)
	}
}

// check returns one sentence for each import that the table does not allow.
func check(p goPackage) []string {
	pkg := strings.TrimPrefix(p.ImportPath, module+"/")
	allowed, ok := row(pkg)
	if !ok {
		return []string{pkg + " is not in the import table: give it a row in internal/archtest/imports_test.go that says " +
			"what it may import"}
	}
	var problems []string
	for _, path := range p.Imports {
		own, isOwn := strings.CutPrefix(path, module+"/")
		switch {
		case !isOwn && isStandard(path):
		case isOwn && isTestKit(own) && !free(pkg):
			problems = append(problems, pkg+" imports "+own+": a test kit, for tests only")
		case isOwn && importers[own] != nil && !slices.Contains(importers[own], pkg) && !free(pkg):
			problems = append(problems, pkg+" imports "+own+": only "+strings.Join(importers[own], ", ")+" may")
		case !covers(allowed, own):
			problems = append(problems, pkg+" imports "+own+": the import table does not allow it "+
				"(internal/archtest/imports_test.go)")
		}
	}
	return problems
}

// row finds the entry of a package: its own, or the one of the nearest folder above that may import anything.
func row(pkg string) ([]string, bool) {
	if allowed, ok := table[pkg]; ok {
		return allowed, true
	}
	for dir := pkg; strings.Contains(dir, "/"); {
		dir = dir[:strings.LastIndex(dir, "/")]
		if allowed := table[dir]; slices.Contains(allowed, anything) {
			return allowed, true
		}
	}
	return nil, false
}

func covers(allowed []string, path string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == anything || a == path || strings.HasPrefix(path, a+"/")
	})
}

// isStandard: the first element of any other import path has a dot in it.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		pkg     string
		imports []string
		want    string // a part of the one problem; empty if there is none
	}{
		"standard library":         {"internal/fault", []string{"fmt", "net/http"}, ""},
		"allowed":                  {"internal/wal", []string{module + "/internal/event", pglogrepl, pgx + "/pgconn"}, ""},
		"an edge imports an edge":  {"internal/wal", []string{module + "/internal/sink"}, "does not allow"},
		"an edge imports relay":    {"internal/lease", []string{module + "/internal/relay"}, "only cmd/cdc-relay"},
		"relay imports an edge":    {"internal/relay", []string{module + "/internal/wal"}, "does not allow"},
		"pure code imports pgx":    {"internal/decoder", []string{pgx}, "does not allow"},
		"config outside cmd":       {"internal/wal", []string{module + "/internal/config"}, "only cmd/cdc-relay"},
		"test kit in product code": {"cmd/cdc-relay", []string{module + "/internal/pgtest"}, "for tests only"},
		"test kit in e2e":          {"e2e", []string{module + "/internal/pgtest"}, ""},
		"below e2e":                {"e2e/checker", []string{module + "/internal/wal"}, ""},
		"name with the same start": {"outbox", []string{pgx + "extra"}, "does not allow"},
		"unknown package":          {"internal/util", nil, "not in the import table"},
	} {
		t.Run(name, func(t *testing.T) {
			got := check(goPackage{ImportPath: module + "/" + tc.pkg, Imports: tc.imports})
			if tc.want == "" {
				if len(got) > 0 {
					t.Fatalf("unexpected: %q", got)
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Fatalf("got %q, want one problem with %q in it", got, tc.want)
			}
		})
	}
}
