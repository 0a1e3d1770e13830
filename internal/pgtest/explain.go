package pgtest

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Plan is a step of a statement that was run, with those below it.
type Plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`            // of one run
	Removed  float64 `json:"Rows Removed by Filter"` // of one run
	Runs     float64 `json:"Actual Loops"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Below    []Plan  `json:"Plans"`
}

// Explain runs a statement, or EXECUTE of a prepared one, and returns its plan
// with what each step has done.
func Explain(t testing.TB, conn *pgx.Conn, sql string, args ...any) Plan {
	t.Helper()
	var text []byte
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		t.Fatalf("explaining %.100s: %v", sql, err)
	}
	var plans []struct{ Plan Plan }
	if err := json.Unmarshal(text, &plans); err != nil || len(plans) != 1 {
		t.Fatalf("reading the plan of %.100s: %d of them, %v", sql, len(plans), err)
	}
	return plans[0].Plan
}

// Reads is how many rows of a relation were looked at by each index; those that
// were read without one are under "".
func (p Plan) Reads(relation string) map[string]int {
	reads := map[string]int{}
	p.each(func(step Plan) {
		if step.Relation == relation && step.Runs > 0 && step.Node != "ModifyTable" {
			reads[step.Index] += int(step.Runs * (step.Rows + step.Removed))
		}
	})
	return reads
}

// Buffers is how many pages were looked at.
func (p Plan) Buffers() int { return p.Hit + p.Read }

func (p Plan) each(f func(Plan)) {
	f(p)
	for _, below := range p.Below {
		below.each(f)
	}
}
