package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// NoTimeout lets a command run until it ends or its sandbox does.
const NoTimeout time.Duration = -1

// ExecRequest is a command to run in a sandbox. Give Argv, or Shell for the sandbox's shell to interpret.
type ExecRequest struct {
	Argv  []string
	Shell string

	Stdin   []byte        // all of the input; nil: none. A session's input goes through [Session.Stdin] instead
	Timeout time.Duration // 0: the server's default of 60 s; NoTimeout: none
	Env     map[string]string
	Cwd     string // "": the sandbox's workdir
	User    string // "": the sandbox's user; a name or uid[:gid] of the sandbox

	// MaxOutputBytes bounds what is kept of each stream (head and tail), not what is delivered live; 0: the server's 10 MiB.
	MaxOutputBytes int64

	// KillOnDisconnect ends the process when the connection that started it ends. Streams don't survive a broken connection then.
	KillOnDisconnect bool

	// Text asks the server to answer output as text (what is not UTF-8 is lost) rather than in base64; it shows in ExecResult.Raw.
	Text bool

	// IdempotencyKey makes a repeated request attach to the first one's process; one is made where it is empty.
	IdempotencyKey string
}

// Command is an ExecRequest for a program and its arguments, without a shell.
func Command(name string, args ...string) ExecRequest {
	return ExecRequest{Argv: append([]string{name}, args...)}
}

// Shell is an ExecRequest for a line that the sandbox's shell interprets.
func Shell(line string) ExecRequest { return ExecRequest{Shell: line} }

func (r ExecRequest) members() (map[string]any, error) {
	m := map[string]any{}
	switch {
	case len(r.Argv) > 0 && r.Shell != "":
		return nil, errors.New("exec: give Argv or Shell, not both")
	case len(r.Argv) > 0:
		m["command"] = r.Argv
	case r.Shell != "":
		m["command"] = r.Shell
	default:
		return nil, errors.New("exec: there is no command")
	}
	if r.Stdin != nil {
		m["stdin_base64"] = base64.StdEncoding.EncodeToString(r.Stdin)
	}
	setLimits(m, r.Timeout, r.MaxOutputBytes, r.KillOnDisconnect)
	setPlace(m, r.Env, r.Cwd, r.User)
	return m, nil
}

// setLimits adds what bounds a process, where it was said.
func setLimits(m map[string]any, timeout time.Duration, maxOutput int64, killOnDisconnect bool) {
	switch {
	case timeout < 0:
		m["timeout_seconds"] = nil
	case timeout > 0:
		m["timeout_seconds"] = inSeconds(timeout)
	}
	if maxOutput > 0 {
		m["max_output_bytes"] = maxOutput
	}
	if killOnDisconnect {
		m["kill_on_disconnect"] = true
	}
}

// setPlace adds where and as whom a process runs, where it was said.
func setPlace(m map[string]any, env map[string]string, cwd, user string) {
	if len(env) > 0 {
		m["env"] = env
	}
	if cwd != "" {
		m["cwd"] = cwd
	}
	if user != "" {
		m["user"] = user
	}
}

func (r ExecRequest) call(sandbox string) (*call, error) {
	members, err := r.members()
	if err != nil {
		return nil, err
	}
	return startCall(sandboxPath(sandbox, "exec"), members, r.Text, r.IdempotencyKey)
}

// startCall posts what starts a process. Its key makes a repeated request find the first one's.
func startCall(path []string, members map[string]any, text bool, key string) (*call, error) {
	if members["encoding"] = "base64"; text {
		members["encoding"] = "utf8"
	}
	return keyedPost(path, members, key)
}

// keyedPost is a POST that is safe to repeat: with the caller's idempotency key or, where that is empty, one of its own.
func keyedPost(path []string, body any, key string) (*call, error) {
	r := &call{method: http.MethodPost, path: path}
	if body != nil {
		if _, err := r.withJSON(body); err != nil {
			return nil, err
		}
	}
	if key == "" {
		key = newIdempotencyKey()
	}
	return r.set("Idempotency-Key", key), nil
}

// Exit is how a process ended. Codes follow the shell's custom: 128+N for signal N, 127 not found, 126 not executable.
type Exit struct {
	ProcessID string        `json:"process_id"`
	ExitCode  int           `json:"exit_code"`
	Signal    string        `json:"signal"` // without SIG; "" when it exited by itself
	OK        bool          `json:"ok"`     // exit code 0 and not timed out
	Reason    string        `json:"reason"` // exited, signaled, timeout, oom, killed, start_failed, sandbox_ended
	TimedOut  bool          `json:"timed_out"`
	Killed    bool          `json:"killed"` // by the platform or a client
	OOM       bool          `json:"oom"`
	Duration  time.Duration `json:"-"`

	StdoutSize int64 `json:"stdout_size"` // true sizes in bytes, whatever was kept
	StderrSize int64 `json:"stderr_size"`
}

// UnmarshalJSON reads duration_ms.
func (e *Exit) UnmarshalJSON(data []byte) error {
	type plain Exit
	doc := struct {
		*plain
		Duration float64 `json:"duration_ms"`
	}{plain: (*plain)(e)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	e.Duration = time.Duration(doc.Duration * float64(time.Millisecond))
	return nil
}

// Gap is a run of output that was not kept, or that a slow reader missed.
type Gap struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// ExecResult is a command that has ended, with its output, byte for byte. A command that failed is a result, not an error.
type ExecResult struct {
	Exit
	Stdout    []byte
	Stderr    []byte
	StdoutGap *Gap // what is missing of a stream that exceeded MaxOutputBytes
	StderrGap *Gap

	// Raw is the answer as it came.
	Raw json.RawMessage
}

// UnmarshalJSON takes output as text or in base64.
func (r *ExecResult) UnmarshalJSON(data []byte) error {
	var doc struct {
		Stdout       string `json:"stdout"`
		Stderr       string `json:"stderr"`
		StdoutBase64 []byte `json:"stdout_base64"`
		StderrBase64 []byte `json:"stderr_base64"`
		StdoutGap    *Gap   `json:"stdout_gap"`
		StderrGap    *Gap   `json:"stderr_gap"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &r.Exit); err != nil {
		return err
	}
	r.Stdout, r.Stderr = append([]byte(doc.Stdout), doc.StdoutBase64...), append([]byte(doc.Stderr), doc.StderrBase64...)
	r.StdoutGap, r.StderrGap = doc.StdoutGap, doc.StderrGap
	r.Raw = append(r.Raw[:0:0], data...)
	return nil
}

// Exec runs a command to its end and answers its output. A broken connection is mended: the repeated request attaches to the same
// process. Nothing is tried again while the sandbox is not READY.
func (c *Client) Exec(ctx context.Context, sandbox string, r ExecRequest) (*ExecResult, error) {
	call, err := r.call(sandbox)
	if err != nil {
		return nil, err
	}
	res := new(ExecResult)
	_, err = c.json(ctx, call, res)
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", sandbox, err)
	}
	return res, nil
}
