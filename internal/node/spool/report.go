package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	reportFile = "report"
	// MaxReport bounds a report, in bytes.
	MaxReport = 16 << 20
	// lazyReport is up to which size a report waits in memory for Save, which is on nobody's path.
	lazyReport = 32 << 10
)

// report is what a program left behind beside its output, encoded by whoever keeps it here. Guarded by the Log's mu.
type report struct {
	kept    bool
	size    int64  // counted as bytes on disk; 0 once it was dropped
	pending []byte // not on disk yet
}

// Scratch is an unnamed file beside the output, for a report that is being fetched. Whoever asks for it closes it.
func (l *Log) Scratch() (*os.File, error) {
	l.mu.Lock()
	err := l.makeDir()
	if l.removed {
		err = os.ErrNotExist
	}
	l.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("make a file for a report: %w", err)
	}
	f, err := os.CreateTemp(l.dir, reportFile+".*")
	if err != nil {
		return nil, fmt.Errorf("make a file for a report: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file for a report: %w", err)
	}
	return f, nil
}

// KeepReport keeps the report of a process that is about to end; the first one counts. It is durable once Save has returned. A report
// that cannot be kept is as one that was dropped.
func (l *Log) KeepReport(b []byte) error {
	l.mu.Lock()
	if l.report.kept || l.removed || l.meta.Exit != nil {
		l.mu.Unlock()
		return nil
	}
	l.report.kept = true
	var err error
	if len(b) > lazyReport {
		err = l.makeDir()
		if err == nil {
			err = os.WriteFile(l.reportPath(), b, 0o600)
		}
	} else {
		l.report.pending = append([]byte{}, b...) // not nil, also when it is empty
	}
	if err == nil {
		l.report.size = int64(len(b))
	}
	grown := l.report.size
	l.mu.Unlock()
	l.spool.grow(grown, l)
	if err != nil {
		return fmt.Errorf("keep a report: %w", err)
	}
	return nil
}

func (l *Log) reportPath() string { return filepath.Join(l.dir, reportFile) }

// Report is the report of a process. ok is false when there is none, or when it was dropped for room.
func (l *Log) Report() (b []byte, ok bool, err error) {
	l.mu.Lock()
	r := l.report
	l.mu.Unlock()
	switch {
	case r.pending != nil:
		return r.pending, true, nil
	case r.size == 0:
		return nil, r.kept, nil
	}
	f, err := os.Open(l.reportPath())
	if errors.Is(err, os.ErrNotExist) { // dropped meanwhile
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	if b, err = io.ReadAll(io.LimitReader(f, MaxReport)); err != nil {
		return nil, false, err
	}
	return b, true, nil
}

// saveReport writes a report that is in memory. With metaMu.
func (l *Log) saveReport() error {
	l.mu.Lock()
	b := l.report.pending
	l.mu.Unlock()
	if b == nil {
		return nil
	}
	if err := os.WriteFile(l.reportPath(), b, 0o600); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report.pending == nil { // dropped meanwhile
		os.Remove(l.reportPath())
	}
	l.report.pending = nil
	return nil
}

// dropReport frees what a report takes. With l.mu.
func (l *Log) dropReport() {
	if l.report.size == 0 {
		return
	}
	os.Remove(l.reportPath())
	l.report.size, l.report.pending, l.report.kept = 0, nil, false
}

// recoverReport finds the report that an earlier node kept.
func (l *Log) recoverReport() {
	fi, err := os.Stat(l.reportPath())
	if err == nil && fi.Mode().IsRegular() && fi.Size() <= MaxReport {
		l.report.kept, l.report.size = true, fi.Size()
	}
}
