package main

import (
	"errors"
	"fmt"
	"os/user"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// consentFlags are those of all commands that change rows: a person has to say
// how many are meant, and why.
type consentFlags struct {
	confirm int
	dryRun  bool
	reason  string
}

func (f *consentFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.IntVar(&f.confirm, "confirm", 0, "with a filter: the `number` of rows that it picks, at most --limit")
	s.BoolVar(&f.dryRun, "dry-run", false, "show what would happen, change nothing")
	s.StringVar(&f.reason, "reason", "", "why, for the audit trail")
}

// ask decides about n rows that were picked of total ones. Those that are named
// may be changed at once, those of a filter when their number is confirmed;
// else dry asks for a preview, and a refusal says that nothing was done.
func (f *consentFlags) ask(cmd *cobra.Command, n int, total int64, named bool) (dry bool, refusal error) {
	confirmed := cmd.Flags().Changed("confirm")
	switch {
	case f.dryRun:
		return true, nil
	case confirmed && f.confirm != n && total > int64(n):
		return false, refused("%d rows match and --limit takes the first %d of them, not %d: nothing was changed; give another --limit, or --confirm %[2]d", total, n, f.confirm)
	case confirmed && f.confirm != n:
		return false, refused("the number of rows is %d, not %d: nothing was changed; look at them with --dry-run", n, f.confirm)
	case !confirmed && !named && n == 0:
		return true, refused("nothing was changed: no row matches")
	case !confirmed && !named:
		return true, refused("nothing was changed; to do it, add --confirm %d", n)
	}
	return false, nil
}

// person is who runs this command, as the operating system names him; "" if it
// does not.
func person() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

// maxReason is how long a reason may be, in bytes.
const maxReason = 1000

// checkReason judges the text of --reason.
func checkReason(reason string, required bool) error {
	switch {
	case required && strings.TrimSpace(reason) == "":
		return usageError(errors.New("--reason is required: say why, for the audit trail"))
	case len(reason) > maxReason:
		return usageError(fmt.Errorf("--reason is longer than %d bytes", maxReason))
	case !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return usageError(errors.New("--reason is not UTF-8 text"))
	}
	return nil
}

// refused says that nothing was done because it was not confirmed.
func refused(format string, args ...any) error {
	return &exitError{exitRefused, fmt.Errorf(format, args...)}
}

// notFound says that what was asked about is not there.
func notFound(format string, args ...any) error {
	return &exitError{exitNotFound, fmt.Errorf(format, args...)}
}
