package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	defaultPage = 16 << 10 // bytes of output that process_output answers
	maxPage     = 64 << 10
)

type startProcessInput struct {
	Command        string            `json:"command" jsonschema:"The command line for the sandbox's shell (sh), such as: python3 -m http.server 8000"`
	SandboxID      string            `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Name           string            `json:"name,omitempty" jsonschema:"A name to find it by while it runs, instead of its process_id"`
	Cwd            string            `json:"cwd,omitempty" jsonschema:"Absolute path of the working directory; /workspace when left out"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables, on top of the sandbox's"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"Seconds after which it is killed; none when left out"`
}

type processInfo struct {
	SandboxID string `json:"sandbox_id"`
	ProcessID string `json:"process_id"`
	PID       int64  `json:"pid"`
	Name      string `json:"name,omitempty"`
	Status    string `json:"status" jsonschema:"running, exited or failed (could not be started)"`
	ExitCode  *int   `json:"exit_code,omitempty" jsonschema:"Once it has ended"`
	Signal    string `json:"signal,omitempty" jsonschema:"What ended it, if a signal did"`
	Detail    string `json:"detail,omitempty" jsonschema:"Why it could not be started"`
}

func processOf(sandbox string, p *client.Process) processInfo {
	i := processInfo{SandboxID: sandbox, ProcessID: p.ID, PID: p.PID, Name: p.Name, Status: p.Status, Signal: p.Signal, Detail: p.Detail}
	if !p.Running() {
		i.ExitCode = &p.ExitCode
	}
	return i
}

func (i *processInfo) text() string {
	text := i.ProcessID
	if i.Name != "" {
		text += " (" + i.Name + ")"
	}
	text += " in " + i.SandboxID + ": " + i.Status
	if i.ExitCode != nil {
		text += fmt.Sprintf(", exit code %d", *i.ExitCode)
	}
	if i.Detail != "" {
		text += ", " + i.Detail
	}
	return text
}

type processOutputInput struct {
	ProcessID   string  `json:"process_id" jsonschema:"As start_process, run_command or run_code answered it, or the name it was started with"`
	SandboxID   string  `json:"sandbox_id,omitempty" jsonschema:"The sandbox that it is in. Leave it out for the default sandbox of this conversation"`
	Offset      int64   `json:"offset,omitempty" jsonschema:"Where to begin, in bytes of stdout and stderr together: next_offset of the call before, 0 for the beginning"`
	MaxBytes    int64   `json:"max_bytes,omitempty" jsonschema:"How much to answer at most"`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"How long to wait for output, or for the end, when there is nothing new at offset"`
}

type processOutput struct {
	SandboxID    string `json:"sandbox_id"`
	ProcessID    string `json:"process_id"`
	Status       string `json:"status" jsonschema:"running, exited or failed"`
	ExitCode     *int   `json:"exit_code,omitempty" jsonschema:"Once it has ended"`
	Stdout       string `json:"stdout" jsonschema:"Standard output of this stretch"`
	Stderr       string `json:"stderr" jsonschema:"Standard error of this stretch"`
	Offset       int64  `json:"offset"`
	NextOffset   int64  `json:"next_offset" jsonschema:"The offset to go on from"`
	SizeBytes    int64  `json:"size_bytes" jsonschema:"All output so far"`
	MissingBytes int64  `json:"missing_bytes" jsonschema:"Output of this stretch that was not kept"`
	Complete     bool   `json:"complete" jsonschema:"It has ended and no output follows"`
	Lossy        bool   `json:"lossy" jsonschema:"Some output was not UTF-8 and is shown as U+FFFD"`
}

type stopProcessInput struct {
	ProcessID    string  `json:"process_id" jsonschema:"As start_process answered it, or the name it was started with"`
	SandboxID    string  `json:"sandbox_id,omitempty" jsonschema:"The sandbox that it is in. Leave it out for the default sandbox of this conversation"`
	GraceSeconds float64 `json:"grace_seconds,omitempty" jsonschema:"Seconds between TERM and KILL"`
}

func (s *server) processTools(to *sdk.Server) {
	add(s, to, "start_process", "Start a command in the background, such as a server or a long build, and return at once. It runs until it ends, is stopped, or its sandbox ends. "+
		"Read what it writes with process_output, reach a server with get_port_url, end it with stop_process.",
		hints{title: "Start a process", destructive: true},
		limits{"command": upTo(256 << 10), "name": atMost(64), "timeout_seconds": between(0.1, 30*86400)}, startProcess)
	add(s, to, "process_output", "Read the output of a process or of an earlier run_command or run_code, from an offset on, and whether it still runs. Call again with next_offset for what "+
		"follows. Processes that ended can be read for 15 minutes, and the last 100 as long as the sandbox lives.",
		hints{title: "Read a process's output", readOnly: true, idempotent: true},
		limits{"offset": between(0, 1<<53), "max_bytes": by("16384", between(1, maxPage)), "wait_seconds": between(0, 60)}, readProcess)
	add(s, to, "stop_process", "End a process with all that it started: TERM first, KILL after grace_seconds. Stopping one that has ended is no error.",
		hints{title: "Stop a process", destructive: true, idempotent: true},
		limits{"grace_seconds": by("5", between(0, 60))}, stopProcess)
}

func startProcess(ctx context.Context, c *call, in startProcessInput) (answer[processInfo], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[processInfo]{}, err
	}
	request := client.ProcessRequest{ExecRequest: client.Shell(in.Command), Name: in.Name}
	request.Cwd, request.Env, request.Timeout = in.Cwd, in.Env, inSeconds(in.TimeoutSeconds)
	p, err := c.Processes(sandbox).Start(ctx, request)
	if err != nil {
		return answer[processInfo]{}, err
	}
	i := processOf(sandbox, p)
	return answer[processInfo]{out: i, text: i.text()}, nil
}

func readProcess(ctx context.Context, c *call, in processOutputInput) (answer[processOutput], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[processOutput]{}, err
	}
	which := client.LogsOptions{Offset: in.Offset, Limit: in.MaxBytes}
	logs, err := c.Processes(sandbox).Logs(ctx, in.ProcessID, which)
	if err == nil && in.WaitSeconds > 0 && logs.NextOffset == logs.Offset && !logs.Complete() {
		if err = c.awaitOutput(ctx, sandbox, in.ProcessID, in.Offset, inSeconds(in.WaitSeconds)); err == nil {
			logs, err = c.Processes(sandbox).Logs(ctx, in.ProcessID, which)
		}
	}
	if err != nil {
		return answer[processOutput]{}, err
	}
	out := processOutput{
		SandboxID: sandbox, ProcessID: logs.ProcessID, Status: logs.Status, Offset: logs.Offset, NextOffset: logs.NextOffset, SizeBytes: logs.Size,
	}
	if out.Status != "running" {
		out.ExitCode = &logs.ExitCode
	}
	for _, gap := range logs.Gaps {
		out.MissingBytes += gap.Bytes
	}
	out.NextOffset -= cutOff(logs)
	out.Complete = out.Status != "running" && out.NextOffset >= out.SizeBytes
	var lossyOut, lossyErr bool
	out.Stdout, lossyOut = valid(logs.Stdout)
	out.Stderr, lossyErr = valid(logs.Stderr)
	out.Lossy = lossyOut || lossyErr
	return answer[processOutput]{out: out, text: out.text()}, nil
}

// cutOff takes a character that the page's end cut in two off the page, and answers how long its beginning is, so that the next page
// has the whole of it. Where both streams are in the page its end is not known to be the end of one, and is left as it is.
func cutOff(logs *client.ProcessLogs) int64 {
	if logs.NextOffset >= logs.Size && logs.Status != "running" || len(logs.Gaps) > 0 {
		return 0
	}
	stream := &logs.Stdout
	switch {
	case len(logs.Stdout) > 0 && len(logs.Stderr) > 0:
		return 0
	case len(logs.Stderr) > 0:
		stream = &logs.Stderr
	}
	whole := withoutPartialEnd(*stream)
	n := len(*stream) - len(whole)
	if len(whole) == 0 {
		return 0 // the page is too short for it: better broken than never
	}
	*stream = whole
	return int64(n)
}

// awaitOutput returns once a process has written something beyond offset or has ended, or the time is over.
func (c *call) awaitOutput(ctx context.Context, sandbox, process string, offset int64, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ev, err := range c.Processes(sandbox).Stream(waiting, process, offset) {
		switch {
		case err != nil && ctx.Err() == nil && waiting.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if _, ok := ev.(client.StartEvent); !ok {
			return nil
		}
	}
	return context.Cause(ctx)
}

func (o *processOutput) text() string {
	var lines []string
	if o.Stdout != "" {
		lines = append(lines, strings.TrimSuffix(o.Stdout, "\n"))
	}
	if o.Stderr != "" {
		lines = append(lines, "[stderr]", strings.TrimSuffix(o.Stderr, "\n"))
	}
	if o.MissingBytes > 0 {
		lines = append(lines, fmt.Sprintf("[%d bytes of this stretch were not kept]", o.MissingBytes))
	}
	state := "[" + o.Status
	if o.ExitCode != nil {
		state += fmt.Sprintf(", exit code %d", *o.ExitCode)
	}
	if !o.Complete {
		state += fmt.Sprintf("; go on with offset %d", o.NextOffset)
	}
	return strings.Join(append(lines, state+"]"), "\n")
}

func stopProcess(ctx context.Context, c *call, in stopProcessInput) (answer[processInfo], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[processInfo]{}, err
	}
	p, err := c.stopped(ctx, sandbox, in.ProcessID, inSeconds(in.GraceSeconds))
	if err != nil {
		return answer[processInfo]{}, err
	}
	i := processOf(sandbox, p)
	return answer[processInfo]{out: i, text: i.text()}, nil
}

// stopped ends a process and answers it as it is then.
func (c *call) stopped(ctx context.Context, sandbox, process string, grace time.Duration) (*client.Process, error) {
	processes := c.Processes(sandbox)
	p, err := processes.Get(ctx, process)
	if err != nil || !p.Running() {
		return p, err
	}
	id := cmpOr(p.ID, process) // a name is another's once it has ended
	for _, step := range []struct {
		signal string
		wait   time.Duration
	}{{"TERM", grace}, {"KILL", killPatience}} {
		if step.wait <= 0 {
			continue
		}
		if err := processes.Signal(ctx, id, step.signal, true); err != nil && !endedMeanwhile(err) {
			return nil, err
		}
		if p, err = processes.WaitFor(ctx, id, step.wait); err != nil || !p.Running() {
			return p, err
		}
	}
	return p, nil
}

// endedMeanwhile reports whether a signal was refused because nobody is there any more to take it.
func endedMeanwhile(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && (e.Reason == client.ReasonConflict || e.Reason == client.ReasonGone)
}
