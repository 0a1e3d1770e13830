package doctor

import (
	"strings"
	"testing"
)

func TestSyncStandby(t *testing.T) {
	t.Parallel()
	const us = "cdc-relay/cdc_relay"
	long := strings.Repeat("x", 63)
	for name, tc := range map[string]struct {
		setting     string
		application string
		want        bool
	}{
		"none":                          {"", us, false},
		"blank":                         {"  ", us, false},
		"everybody":                     {"*", us, true},
		"everybody, with spaces":        {" * ", us, true},
		"everybody in quotes":           {`"*"`, us, true},
		"everybody, first two":          {"FIRST 2 (*)", us, true},
		"everybody, any one":            {"ANY 1 (*)", us, true},
		"everybody, after a name":       {"FIRST 1 (s1, *)", us, true},
		"others":                        {"s1, s2", us, false},
		"others, first":                 {"FIRST 1 (s1, s2)", us, false},
		"others, in quotes":             {`ANY 2 ("s 1", "s,2", "s(3")`, us, false},
		"us in quotes":                  {`"cdc-relay/cdc_relay"`, us, true},
		"us among others":               {`2 (s1, "cdc-relay/cdc_relay", s2)`, us, true},
		"us in capitals":                {`"CDC-Relay/CDC_RELAY"`, us, true},
		"us without quotes":             {"relay", "relay", true},
		"us, no space before the list":  {"ANY 1(relay,s1)", "relay", true},
		"a part of our name":            {`"cdc-relay"`, us, false},
		"our name with more":            {`"cdc-relay/cdc_relay2"`, us, false},
		"called like the keyword":       {"FIRST 1 (s1)", "first", false},
		"called like the number":        {"2 (s1)", "2", false},
		"a list of numbers":             {"1, 2", "2", true},
		"called any, in the list":       {`ANY 1 ("any")`, "any", true},
		"quotes within":                 {`"a""b"`, `a"b`, true},
		"cut to what the server keeps":  {long, long + "yz", true},
		"a bracket in quotes before us": {`"a(b", relay`, "relay", true},
		"a bracket in quotes after us":  {`relay, "a(b"`, "relay", true},
		"a quote that is not closed":    {`"relay`, "other", false},
		"several lines":                 {"FIRST 1 (s1,\n\trelay)", "relay", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := syncStandby(tc.setting, tc.application); got != tc.want {
				t.Errorf("syncStandby(%q, %q) = %v, want %v", tc.setting, tc.application, got, tc.want)
			}
		})
	}
}
