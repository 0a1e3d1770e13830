package main

import (
	"testing"

	"github.com/spf13/cobra"
)

// Where nothing matches there is nothing to confirm: the advice was "to do it,
// add --confirm 0".
func TestNothingToConfirm(t *testing.T) {
	t.Parallel()
	var f consentFlags
	cmd := &cobra.Command{}
	f.add(cmd)
	dry, refusal := f.ask(cmd, 0, 0, false)
	if want := "nothing was changed: no row matches"; !dry || refusal == nil || refusal.Error() != want || exitCode(refusal) != exitRefused {
		t.Errorf("dry %v, %v; want a preview and %q", dry, refusal, want)
	}
}
