package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/migrations"
)

// build is what the program knows of itself.
type build struct {
	Version   string `json:"version"`
	Revision  string `json:"revision"`
	Go        string `json:"go"`
	SchemaMin int64  `json:"schema_min"`
	SchemaMax int64  `json:"schema_max"`
}

// thisBuild reads what the Go toolchain stored in the program; what it did not
// store is "unknown".
func thisBuild() build {
	b := build{
		Version: "unknown", Revision: "unknown", Go: runtime.Version(),
		SchemaMin: migrations.MinVersion, SchemaMax: migrations.MaxVersion,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and the database schemas it works with",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			return a.print(b, func(w io.Writer) {
				fmt.Fprintf(w, "cdc-relay %s, revision %s, %s, schema %d to %d\n", b.Version, b.Revision, b.Go, b.SchemaMin, b.SchemaMax)
			})
		},
	}
}
