package main

import (
	"io"
	"log/slog"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// newLogger returns the logger that the configuration asks for; times are UTC.
func newLogger(w io.Writer, c config.Log) *slog.Logger {
	options := &slog.HandlerOptions{
		Level: logLevels[c.Level],
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && attr.Key == slog.TimeKey {
				attr.Value = slog.TimeValue(attr.Value.Time().UTC())
			}
			return attr
		},
	}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
