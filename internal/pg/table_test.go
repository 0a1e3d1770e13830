package pg_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

func TestParseTable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, in string
		want     pg.Table
		ident    string // "" for an error
	}{
		{"plain", "public.outbox", pg.Table{Schema: "public", Name: "outbox"}, `"public"."outbox"`},
		{"not folded", "App.OutBox", pg.Table{Schema: "App", Name: "OutBox"}, `"App"."OutBox"`},
		{"quoted", `"my app"."out.box"`, pg.Table{Schema: "my app", Name: "out.box"}, `"my app"."out.box"`},
		{"quote inside", `a."b""c"`, pg.Table{Schema: "a", Name: `b"c`}, `"a"."b""c"`},
		{"no schema", "outbox", pg.Table{}, ""},
		{"empty schema", ".outbox", pg.Table{}, ""},
		{"empty name", "public.", pg.Table{}, ""},
		{"three parts", "db.public.outbox", pg.Table{}, ""},
		{"open quote", `public."outbox`, pg.Table{}, ""},
		{"text after the quote", `public."out"box`, pg.Table{}, ""},
		{"zero byte", "public.out\x00box", pg.Table{}, ""},
		{"too long", "public." + strings.Repeat("a", 64), pg.Table{}, ""},
		{"empty", "", pg.Table{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := pg.ParseTable(test.in)
			if got != test.want || (err == nil) != (test.ident != "") {
				t.Fatalf("got %+v, %v", got, err)
			}
			if err == nil && got.Ident() != test.ident {
				t.Errorf("ident %s, want %s", got.Ident(), test.ident)
			}
		})
	}
}

// What Ident writes, ParseTable reads: any names at all.
func TestIdentReadsBack(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-zA-Z." _-]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		want := pg.Table{Schema: name.Draw(t, "schema"), Name: name.Draw(t, "name")}
		if got, err := pg.ParseTable(want.Ident()); err != nil || got != want {
			t.Fatalf("%s: got %+v, %v", want.Ident(), got, err)
		}
	})
}
