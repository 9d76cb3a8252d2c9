package cay

import "time"

// Stream is a channel of a process's output. On a TTY everything is [Stdout].
type Stream uint8

const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// ExitReason says how a process ended.
type ExitReason string

const (
	ExitExited       ExitReason = "exited"
	ExitSignaled     ExitReason = "signaled"
	ExitTimeout      ExitReason = "timeout"
	ExitOOM          ExitReason = "oom"
	ExitKilled       ExitReason = "killed" // by the platform or a client
	ExitStartFailed  ExitReason = "start_failed"
	ExitSandboxEnded ExitReason = "sandbox_ended"
)

// Limits of what one request may carry.
const (
	MaxStdinInline    = 64 << 20 // bytes of stdin in a JSON body
	MaxJSONBody       = 1 << 20
	MaxExecBody       = 64 << 20
	MaxEnvBytes       = 1 << 20
	DefaultMaxOutput  = 10 << 20 // bytes kept per stream
	MaxMaxOutput      = 256 << 20
	DefaultExecPeriod = 60 * time.Second // the default timeout of an exec
)

// ProcessSpec is what to run. Argv nil means that Shell is run by the sandbox's shell.
type ProcessSpec struct {
	Argv      []string
	Shell     string
	Env       map[string]string // on top of the sandbox's
	Cwd       string            // "": the sandbox's workdir
	User      string            // "": the sandbox's user; a name or uid[:gid] of the sandbox
	Timeout   time.Duration     // zero: none
	MaxOutput int64             // bytes kept per stream; zero: DefaultMaxOutput
	TTY       bool
	Cols      uint16
	Rows      uint16
	StdinOpen bool // stdin stays open until it is closed; else it ends after what was sent with the start
	Login     bool // argv[0] of the shell gets a leading dash
	Name      string
	Code      *Code // to run instead of Argv and Shell; nil: none
}

// Code is a program to run, rather than a command.
type Code struct {
	Language  string
	Argv      []string // what runs it; the program's file follows. Of no meaning with a context
	Source    []byte
	ContextID string // the context that it runs in; "": none
	Directory string // where its file lies while it runs, for everybody to read and nobody but root to change; "": in a private place
}

// ProcessExit is how a process ended. Codes follow the shell's custom: 128+N for signal N, 127 not found, 126 not executable.
type ProcessExit struct {
	Code      int        `json:"exit_code"`
	Signal    string     `json:"signal,omitempty"` // without SIG
	Reason    ExitReason `json:"reason"`
	TimedOut  bool       `json:"timed_out"`
	Killed    bool       `json:"killed"`
	OOM       bool       `json:"oom"`
	Duration  time.Duration
	Detail    string // for start_failed: why
	StdoutLen int64  // true sizes in bytes
	StderrLen int64

	// What the process used with the children that it waited for: the word of the sandbox's agent, within what its limits allow.
	CPU          time.Duration `json:"cpu_ns,omitempty"`
	PeakMemoryMB int64         `json:"peak_memory_mb,omitempty"` // of the largest of them
}

// OK reports exit code 0 without a timeout.
func (e ProcessExit) OK() bool { return e.Code == 0 && !e.TimedOut && e.Reason == ExitExited }

// Gap is a run of output that was not kept.
type Gap struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}
