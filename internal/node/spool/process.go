package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

const (
	processFile    = "process.json"
	maxProcessFile = 1 << 20
	// maxCommand bounds the command that is kept of each of thousands of processes, arguments added up, bytes: clients may start some
	// of megabytes.
	maxCommand = 1 << 10
)

// boundCommand shortens a command to maxCommand. An ellipsis says so.
func boundCommand(argv []string) []string {
	left := maxCommand
	for i, arg := range argv {
		if len(arg) < left {
			left -= len(arg) + 1 // empty arguments are not for nothing
			continue
		}
		kept := arg[:min(left, len(arg))]
		for kept != "" && !utf8.ValidString(kept) { // cut within a character
			kept = kept[:len(kept)-1]
		}
		return append(slices.Clone(argv[:i]), strings.Clone(kept)+"…")
	}
	return argv
}

// Process is what is kept of a process beside its output, in process.json. Its environment is not: nobody needs it after the start,
// and it may hold secrets.
type Process struct {
	ID        cay.ID    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Command   []string  `json:"command,omitempty"` // shortened when it is long
	User      string    `json:"user,omitempty"`
	Cwd       string    `json:"cwd,omitempty"`
	TTY       bool      `json:"tty,omitempty"`
	Cols      uint16    `json:"cols,omitempty"` // of the terminal
	Rows      uint16    `json:"rows,omitempty"`
	StdinOpen bool      `json:"stdin_open,omitempty"`
	MaxOutput int64     `json:"max_output_bytes"`
	Stream    uint64    `json:"stream"` // the number of its frames on the guest hop
	PID       int64     `json:"pid"`    // inside
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`

	Deadline  time.Time     `json:"deadline,omitzero"`     // zero: none, or the sandbox is frozen
	Remaining time.Duration `json:"remaining_ns,omitzero"` // of the timeout, while frozen

	StdinClosed bool          `json:"stdin_closed,omitempty"` // since the start
	Code        *Code         `json:"code,omitempty"`         // of a program
	Origin      *Origin       `json:"origin,omitempty"`       // nil: its end leaves no record
	Waits       time.Duration `json:"waits_ns,omitzero"`      // the timeout of a program whose turn in its context has not come

	KillOnDisconnect   bool `json:"kill_on_disconnect,omitempty"`
	HangupOnDisconnect bool `json:"hangup_on_disconnect,omitempty"`

	Traceparent string `json:"traceparent,omitempty"` // W3C Trace Context of its start; "": not traced

	Exit       *cay.ProcessExit `json:"exit,omitempty"`
	StdoutSize int64            `json:"stdout_size"`
	StderrSize int64            `json:"stderr_size"`
}

// Code is what is kept of a program that a process ran.
type Code struct {
	Language  string `json:"language"`
	ContextID string `json:"context_id,omitempty"`
	User      string `json:"user,omitempty"` // of the context
}

// Origin is what the record of a process's end says of its start.
type Origin struct {
	Kind    string `json:"kind"`
	Actor   string `json:"actor,omitempty"`
	Command string `json:"command,omitempty"` // for people, clipped
	TraceID string `json:"trace_id,omitempty"`
}

// writeProcess writes p over what is there, in one write: a file of its own and a rename would cost every exec twice as much. Should
// the node die before the file is cut to its new length, what follows the record is ignored.
func writeProcess(path string, p Process) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if len(b) > maxProcessFile {
		p.Command = nil
		if b, err = json.Marshal(p); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	return errors.Join(err, f.Close())
}

func readProcess(dir string) (Process, error) {
	f, err := os.Open(filepath.Join(dir, processFile))
	if err != nil {
		return Process{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProcessFile+1))
	if err != nil {
		return Process{}, err
	}
	return parseProcess(b)
}

func parseProcess(b []byte) (Process, error) {
	var p Process
	if len(b) > maxProcessFile {
		return p, fmt.Errorf("process record of more than %d bytes", maxProcessFile)
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&p); err != nil {
		return p, err
	}
	p.MaxOutput = boundMaxOutput(p.MaxOutput)
	return p, nil
}
