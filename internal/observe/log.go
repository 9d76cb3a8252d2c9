// Package observe sets up what operators look at: the log, and the registry of metrics. It defines no metric of a part; those stand
// with the part.
package observe

import (
	"io"
	"log"
	"log/slog"
)

// Logger writes to w. level is debug, info, warn or error; format is text or json. Values are checked by package config.
func Logger(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// TakeStandardLog makes what libraries say by package log entries of the level debug. net/http tells there, in its own words, what
// servers inside sandboxes did wrong: as often as they like.
func TakeStandardLog(l *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(l.Handler(), slog.LevelDebug).Writer())
}
