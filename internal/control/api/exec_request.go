package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// ExecRequest is the body of an exec. It is exported, as TerminalSize is, since huma looks into embedded types only then.
type ExecRequest struct {
	Command command `json:"command"`
	RunFields
}

// RunFields are what commands and programs have in common.
type RunFields struct {
	Stdin            *string           `json:"stdin,omitzero" doc:"All of the input; absent: end of file at once. At most 64 MiB with the rest of the body"`
	StdinBase64      []byte            `json:"stdin_base64,omitzero" doc:"The same for input that is no text; at most one of both"`
	TimeoutSeconds   optional[float64] `json:"timeout_seconds,omitzero" doc:"Default 60; null: none. Then the whole tree is killed"`
	Env              map[string]string `json:"env,omitzero" doc:"On top of the sandbox's; at most 1 MiB"`
	Cwd              string            `json:"cwd,omitzero" doc:"Default: the sandbox's workdir"`
	User             string            `json:"user,omitzero" doc:"A name or uid[:gid] of the sandbox"`
	MaxOutputBytes   *int64            `json:"max_output_bytes,omitzero" doc:"Bounds what is kept of each stream, head and tail, not what is delivered live; 1 to 268435456, default 10485760"`
	Encoding         streams.Encoding  `json:"encoding,omitzero" enum:"utf8,base64" doc:"Default utf8"`
	KillOnDisconnect bool              `json:"kill_on_disconnect,omitzero" doc:"End the process when the connection that started it ends. Otherwise it runs on, whichever form of exec started it"`
}

func (e *ExecRequest) validate() error {
	if len(e.Command.argv) == 0 && e.Command.shell == "" {
		return cay.Errorf(cay.InvalidRequest, "`command` is needed: a string for the shell, or a list of a program and its arguments").On("command")
	}
	return e.RunFields.validate()
}

func (e *RunFields) validate() error {
	if e.Stdin != nil && e.StdinBase64 != nil {
		return cay.Errorf(cay.InvalidRequest, "give at most one of `stdin` and `stdin_base64`").On("stdin_base64")
	}
	if e.MaxOutputBytes != nil && (*e.MaxOutputBytes < 1 || *e.MaxOutputBytes > cay.MaxMaxOutput) {
		return cay.Errorf(cay.InvalidRequest, "`max_output_bytes` must be from 1 to %d", int64(cay.MaxMaxOutput)).On("max_output_bytes")
	}
	if err := checkEncoding(e.Encoding); err != nil {
		return err
	}
	if _, err := e.timeout(); err != nil {
		return err
	}
	for _, err := range []error{checkEnv(e.Env), plain("cwd", e.Cwd), plain("user", e.User)} {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkEncoding(e streams.Encoding) error {
	if e != "" && e != streams.UTF8 && e != streams.Base64 {
		return cay.Errorf(cay.InvalidRequest, "`encoding` must be utf8 or base64").On("encoding")
	}
	return nil
}

// timeout is zero for none.
func (e *RunFields) timeout() (time.Duration, error) {
	switch {
	case !e.TimeoutSeconds.set:
		return cay.DefaultExecPeriod, nil
	case e.TimeoutSeconds.null:
		return 0, nil
	}
	return seconds("timeout_seconds", e.TimeoutSeconds.v)
}

func (e *RunFields) maxOutput() int64 {
	if e.MaxOutputBytes != nil {
		return *e.MaxOutputBytes
	}
	return cay.DefaultMaxOutput
}

// input is what goes to stdin; ok is false when there is none.
func (e *RunFields) input() (data []byte, ok bool) {
	if e.Stdin != nil {
		return []byte(*e.Stdin), true
	}
	return e.StdinBase64, e.StdinBase64 != nil
}

// spec is the process as the node takes it. The request has been validated.
func (e *ExecRequest) spec() *nodev1.ProcessSpec {
	spec := e.RunFields.spec()
	spec.Argv, spec.Shell = e.Command.argv, e.Command.shell
	return spec
}

func (e *RunFields) spec() *nodev1.ProcessSpec {
	timeout, _ := e.timeout()
	return &nodev1.ProcessSpec{Env: e.Env, Cwd: e.Cwd, User: e.User, TimeoutMs: timeout.Milliseconds(), MaxOutputBytes: e.maxOutput()}
}

// command is a string for the sandbox's shell, or a program and its arguments.
type command struct {
	shell string
	argv  []string
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (c *command) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	switch d.PeekKind() {
	case '"':
		if err := json.UnmarshalDecode(d, &c.shell); err != nil {
			return err
		}
		return plain("command", c.shell)
	case '[':
		if err := json.UnmarshalDecode(d, &c.argv); err != nil {
			return err
		}
		if len(c.argv) > 0 && c.argv[0] == "" {
			return cay.Errorf(cay.InvalidRequest, "`command` names no program").On("command")
		}
		for _, arg := range c.argv {
			if err := plain("command", arg); err != nil {
				return err
			}
		}
		return nil
	}
	if err := d.SkipValue(); err != nil {
		return err
	}
	return cay.Errorf(cay.InvalidRequest, "`command` must be a string for the shell, or a list of strings").On("command")
}

// Schema implements huma.SchemaProvider.
func (command) Schema(huma.Registry) *huma.Schema {
	one := 1
	return &huma.Schema{
		Description: "A string is run by the sandbox's shell; a list is a program and its arguments",
		OneOf: []*huma.Schema{
			{Type: "string", MinLength: &one},
			{Type: "array", MinItems: &one, Items: &huma.Schema{Type: "string"}},
		},
	}
}
