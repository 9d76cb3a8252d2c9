package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const (
	codeUsage       = 2
	codeFailed      = 125
	codeInterrupted = 130
)

// codedError is an error that decides the exit code. Without a message nothing is printed.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}
func (e *codedError) Unwrap() error { return e.err }
func (e *codedError) ExitCode() int { return e.code }

// exitWith is the command's own exit code, which needs no explanation.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &codedError{code: code}
}

var errInterrupted = &codedError{codeInterrupted, errors.New("interrupted")}

func usagef(format string, args ...any) error {
	return &codedError{codeUsage, fmt.Errorf(format, args...)}
}

func explain(err error) string {
	var coded *codedError
	if errors.As(err, &coded) && coded.err == nil {
		return ""
	}
	return strings.TrimSpace(err.Error())
}

// advisedError adds what to do next.
type advisedError struct {
	err    error
	advice string
}

func (e *advisedError) Error() string { return e.err.Error() + "\n" + e.advice }
func (e *advisedError) Unwrap() error { return e.err }

// advise adds to err what the user can do about it.
func (a *app) advise(err error) error {
	if known := (*advisedError)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	if advice := a.adviceFor(err); advice != "" {
		return &advisedError{err, "     " + advice}
	}
	return err
}

func (a *app) adviceFor(err error) string {
	var e *client.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		if a.found.URLFrom == "CAY_URL" {
			return fmt.Sprintf("nothing listens at %s, which CAY_URL names; is the server running?", a.found.URL)
		}
		return "the server is not running; start it with: cay up"
	case isDNS(err):
		return fmt.Sprintf("the address %s comes from %s", a.found.URL, a.found.URLFrom)
	case !errors.As(err, &e):
		return ""
	}
	switch e.Reason {
	case client.ReasonUnauthorized:
		return a.keyAdvice()
	case client.ReasonForbidden:
		if e.Status == 403 {
			return "the key does not have the scope for this, or the sandbox's policy forbids it"
		}
	case client.ReasonConflict:
		if e.SandboxID != "" {
			return fmt.Sprintf("end that sandbox first: cay rm %s; or let all that use the session share it: --session-shared", e.SandboxID)
		}
	case client.ReasonPaused:
		return "resume it with: cay resume SBX"
	case client.ReasonGone:
		return "it has ended; see the others with: cay ps"
	case client.ReasonNoCapacity:
		return "remove a sandbox (cay ps, cay rm) or ask for less cpu, memory or disk"
	case client.ReasonQuotaExceeded:
		return "remove a sandbox: cay ps, cay rm"
	case client.ReasonUnavailable:
		return "look at the server with: cay doctor"
	}
	if e.Reason == "" && e.Status >= 400 {
		return fmt.Sprintf("is %s (from %s) a Cay server?", a.found.URL, a.found.URLFrom)
	}
	return ""
}

// keyAdvice says where the key was looked for.
func (a *app) keyAdvice() string {
	switch {
	case a.found.KeyErr != nil && errors.Is(a.found.KeyErr, fs.ErrPermission):
		return fmt.Sprintf("the local server's key cannot be read (%v); set CAY_API_KEY, or run as the user that runs cay up", a.found.KeyErr)
	case a.found.KeyFrom == "":
		return fmt.Sprintf("no key was found; set CAY_API_KEY (a local server's own key is in %s/key)", a.found.DataDir)
	}
	return fmt.Sprintf("the key from %s is not one of this server's; CAY_API_KEY sets another", a.found.KeyFrom)
}

func isDNS(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns)
}

// interrupted reports whether err is ctx's end.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx)))
}

// exactly, atLeast and between check the number of arguments as cobra's do, with the exit code of a wrong command line.
func exactly(n int) cobra.PositionalArgs { return checked(cobra.ExactArgs(n)) }
func atLeast(n int) cobra.PositionalArgs { return checked(cobra.MinimumNArgs(n)) }
func between(n, m int) cobra.PositionalArgs {
	return checked(cobra.RangeArgs(n, m))
}

func checked(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%s; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}
