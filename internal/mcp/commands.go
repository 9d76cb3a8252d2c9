package mcp

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	maxSeconds = 3600 // that a call may run
	noOutput   = "[exit code 0, no output]"
)

type runCommandInput struct {
	Command        string            `json:"command" jsonschema:"The command line for the sandbox's shell (sh), such as: ls -la | head"`
	SandboxID      string            `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Cwd            string            `json:"cwd,omitempty" jsonschema:"Absolute path of the working directory; /workspace when left out"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables, on top of the sandbox's"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"Text for standard input, which ends after it; none when left out"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"Seconds after which the command and all it started is killed"`
}

// ended is what results say of a program that has ended.
type ended struct {
	SandboxID       string  `json:"sandbox_id" jsonschema:"The sandbox that it ran in"`
	ProcessID       string  `json:"process_id" jsonschema:"For process_output, which has the whole output"`
	ExitCode        int     `json:"exit_code" jsonschema:"128+N when signal N ended it; 127: not found; 126: not executable"`
	OK              bool    `json:"ok" jsonschema:"Exit code 0, and in time"`
	Reason          string  `json:"reason" jsonschema:"exited, signaled, timeout, oom, killed, start_failed or sandbox_ended"`
	TimedOut        bool    `json:"timed_out"`
	DurationMS      float64 `json:"duration_ms"`
	Stdout          string  `json:"stdout" jsonschema:"Standard output: all of it, or its head and tail when stdout_truncated"`
	Stderr          string  `json:"stderr" jsonschema:"Standard error: all of it, or its head and tail when stderr_truncated"`
	StdoutBytes     int64   `json:"stdout_bytes" jsonschema:"True size of standard output"`
	StderrBytes     int64   `json:"stderr_bytes" jsonschema:"True size of standard error"`
	StdoutTruncated bool    `json:"stdout_truncated"`
	StderrTruncated bool    `json:"stderr_truncated"`
	Lossy           bool    `json:"lossy" jsonschema:"Some output was not UTF-8 and is shown as U+FFFD"`
}

func (r *run) ended(sandbox string) ended {
	e := ended{
		SandboxID: sandbox, ProcessID: r.processID, ExitCode: r.exit.ExitCode, OK: r.exit.OK, Reason: r.exit.Reason, TimedOut: r.exit.TimedOut,
		DurationMS: float64(r.exit.Duration) / float64(time.Millisecond), StdoutBytes: r.stdout.size, StderrBytes: r.stderr.size,
	}
	var lossyOut, lossyErr bool
	e.Stdout, e.StdoutTruncated, lossyOut = r.stdout.text()
	e.Stderr, e.StderrTruncated, lossyErr = r.stderr.text()
	e.Lossy = lossyOut || lossyErr
	return e
}

// text is for readers without structured content.
func (e *ended) text() string {
	var lines []string
	if e.Stdout != "" {
		lines = append(lines, strings.TrimSuffix(e.Stdout, "\n"))
	}
	if e.Stderr != "" {
		lines = append(lines, "[stderr]", strings.TrimSuffix(e.Stderr, "\n"))
	}
	switch {
	case e.TimedOut:
		lines = append(lines, fmt.Sprintf("[killed: it ran longer than its timeout; exit code %d]", e.ExitCode))
	case e.Reason != "exited" && e.Reason != "":
		lines = append(lines, fmt.Sprintf("[%s; exit code %d]", e.Reason, e.ExitCode))
	case e.ExitCode != 0:
		lines = append(lines, fmt.Sprintf("[exit code %d]", e.ExitCode))
	case len(lines) == 0:
		lines = append(lines, noOutput)
	}
	if e.StdoutTruncated || e.StderrTruncated {
		lines = append(lines, fmt.Sprintf("[output was shortened: process_output with process_id %s and sandbox_id %s has all of it]", e.ProcessID, e.SandboxID))
	}
	if e.Lossy {
		lines = append(lines, "[some output was not UTF-8; \uFFFD stands for it]")
	}
	return strings.Join(lines, "\n")
}

func (s *server) commandTools(to *sdk.Server) {
	add(s, to, "run_command", "Run a shell command in a sandbox and wait for its end. Use it for files, compilers, git and tests; use run_code for code "+
		"in a language, and start_process for servers and whatever should go on after the call. Each call is a process of its own: a cd or an export does not last. "+
		"A command that fails is a result with its exit code. Of long output the head and the tail are shown.",
		hints{title: "Run a command", destructive: true},
		limits{"command": upTo(256 << 10), "stdin": atMost(1 << 20), "timeout_seconds": by("60", between(0.1, maxSeconds))}, runCommand)
}

func runCommand(ctx context.Context, c *call, in runCommandInput) (answer[ended], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[ended]{}, err
	}
	request := client.Shell(in.Command)
	request.Cwd, request.Env, request.Timeout = in.Cwd, in.Env, inSeconds(in.TimeoutSeconds)
	if in.Stdin != "" {
		request.Stdin = []byte(in.Stdin)
	}
	r, err := c.follow(ctx, sandbox, false, func(ctx context.Context) iter.Seq2[client.Event, error] { return c.Stream(ctx, sandbox, request) })
	if err != nil {
		return answer[ended]{}, err
	}
	e := r.ended(sandbox)
	return answer[ended]{out: e, text: e.text()}, nil
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
