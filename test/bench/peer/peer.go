// Package peer holds what Cay is measured against: the ways in which a user of this machine could run a command in isolation
// instead, each behind the same small interface, and the bare parts that Cay itself is made of. It brings each one up and takes it
// away without a trace; it measures nothing and judges nothing.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Peer is one way of running commands.
type Peer interface {
	Name() string
	// Version names what was measured; it is known once Start has succeeded.
	Version() string
	// Start brings up what is needed: a daemon, an image, for an [Execer] one sandbox that runs. An [Absent] error says that it is
	// not on this machine. After an error nothing is left and Stop need not be called.
	Start(ctx context.Context) error
	// Stop removes everything again.
	Stop() error
}

// Runner is a peer that runs a command in a sandbox made for it.
type Runner interface {
	Peer
	// Run makes a sandbox, runs argv in it and removes it again. It returns the time from the call to the first byte of output.
	Run(ctx context.Context, argv ...string) (first time.Duration, err error)
}

// Execer is a peer that runs commands in a sandbox that is up.
type Execer interface {
	Peer
	// Exec runs argv to its end and gives its output to stdout.
	Exec(ctx context.Context, stdout io.Writer, argv ...string) error
}

// Absent says why a peer is not on this machine.
type Absent struct{ Why string }

func (a Absent) Error() string { return a.Why }

// lookPath is exec.LookPath with an Absent error.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", Absent{program + " is not installed"}
	}
	return path, nil
}

// killGrace is what a command is given to end, and its output to be closed, once its context has ended.
const killGrace = 5 * time.Second

// command makes a command that is killed when ctx ends.
func command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = killGrace
	return cmd
}

// firstByte notes when the first byte was written to it.
type firstByte struct {
	begin time.Time
	at    time.Duration // zero: none yet
}

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at == 0 && len(p) > 0 {
		f.at = time.Since(f.begin)
	}
	return len(p), nil
}

// run runs cmd to its end and returns the time from its start to its first byte of output.
func run(cmd *exec.Cmd) (time.Duration, error) {
	out := &firstByte{begin: time.Now()}
	if err := execute(cmd, out); err != nil {
		return 0, err
	}
	if out.at == 0 {
		return 0, fmt.Errorf("%s: no output", strings.Join(cmd.Args, " "))
	}
	return out.at, nil
}

// execute runs cmd to its end; what it says on stderr becomes part of the error.
func execute(cmd *exec.Cmd, stdout io.Writer) error {
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// output runs cmd to its end and returns what it printed.
func output(cmd *exec.Cmd) (string, error) {
	var b strings.Builder
	err := execute(cmd, &b)
	return strings.TrimSpace(b.String()), err
}

// versionLine asks a program for its version and keeps the first line.
func versionLine(program string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := output(command(ctx, program, "--version"))
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(out, "\n")
	return line
}

// poll calls cond until it returns nil, ctx ends or timeout has passed; then it returns cond's last error.
func poll(ctx context.Context, timeout time.Duration, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", timeout, errors.Join(err, context.Cause(ctx)))
		}
	}
}
