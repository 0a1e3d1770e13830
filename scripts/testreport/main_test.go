package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want string
		ok   bool
	}{
		"passed tests are silent, slow ones named": {
			in: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:1: noise\n"}
{"Action":"pass","Package":"m/a","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"m/a","Test":"TestB","Elapsed":7.25}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t8.000s\n"}
{"Action":"pass","Package":"m/a","Elapsed":8}
`,
			want: "    \tm/a\tTestB 7.2s\nok  \tm/a\t8.000s\nall: 2 passed, 0 failed, 0 skipped\n",
			ok:   true,
		},
		"a failed test shows its output without its passed subtests": {
			in: `{"Action":"output","Package":"m/a","Test":"TestA/good","Output":"    good says\n"}
{"Action":"pass","Package":"m/a","Test":"TestA/good"}
{"Action":"output","Package":"m/a","Test":"TestA/bad","Output":"    bad says\n"}
{"Action":"fail","Package":"m/a","Test":"TestA/bad"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`,
			want: "    bad says\n--- FAIL: TestA (0.00s)\nFAIL\tm/a\t0.1s\nfailed: m/a TestA/bad\nall: 1 passed, 2 failed, 0 skipped\n",
		},
		"skipped tests are listed by reason": {
			in: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:1: no server\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"    a_test.go:9: no server\n"}
{"Action":"skip","Package":"m/a","Test":"TestB"}
{"Action":"output","Package":"m/a","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestC"}
`,
			want: "skipped 2 tests: no server\nskipped m/a TestC: no reason given\nall: 0 passed, 0 failed, 3 skipped\n",
			ok:   true,
		},
		"a package that does not build counts as a failure": {
			in: `{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1:1: oops\n"}
{"ImportPath":"m/a","Action":"build-fail"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}
{"Action":"fail","Package":"m/a","FailedBuild":"m/a"}
`,
			want: "a.go:1:1: oops\nFAIL\tm/a [build failed]\nfailed: m/a\nall: 0 passed, 1 failed, 0 skipped\n",
		},
		"out of time, which go test says in the name of a test that passed": {
			in: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:1: begins\n"}
{"Action":"pause","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestB"}
{"Action":"pause","Package":"m/a","Test":"TestB"}
{"Action":"run","Package":"m/a","Test":"TestC"}
{"Action":"pause","Package":"m/a","Test":"TestC"}
{"Action":"cont","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestA/sub"}
{"Action":"cont","Package":"m/a","Test":"TestB"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"--- PASS: TestB (0.10s)\n"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"panic: test timed out after 2s\n"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"goroutine 3 [running]:\n"}
{"Action":"pass","Package":"m/a","Test":"TestB","Elapsed":0.1}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t2.016s\n"}
{"Action":"fail","Package":"m/a","Elapsed":2.017}
`,
			want: "panic: test timed out after 2s\ngoroutine 3 [running]:\nFAIL\tm/a\t2.016s\n    a_test.go:1: begins\n" +
				"failed: m/a TestA/sub did not end\nall: 1 passed, 2 failed, 0 skipped\n",
		},
		"other lines pass through": {
			in:   "go: no such tool\n",
			want: "go: no such tool\nall: 0 passed, 0 failed, 0 skipped\n",
			ok:   true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out, "all", 5)
			if err := r.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			ok := r.finish()
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
			if ok != tc.ok {
				t.Errorf("finish() = %v, want %v", ok, tc.ok)
			}
		})
	}
}
