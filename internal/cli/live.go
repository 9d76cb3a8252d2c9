package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/cayhq/cay/client"
)

const (
	killWithin = 5 * time.Second // for a killed command's exit to arrive
	ctrlC      = 0x03
)

// live is a command whose input and output are the user's: one to start, code to run, or a process to join. Without any of these it
// is a login shell.
type live struct {
	c             *client.Client
	sandbox       string
	args          []string
	code          *client.CodeRequest
	process       string
	flags         execFlags
	env           map[string]string
	user, workdir string
	signals       <-chan os.Signal
	outcome       func(context.Context, *client.CodeOutcome) error // shows what code brought; nil: it is not shown
}

func (w live) request() client.ExecRequest {
	return client.ExecRequest{Argv: w.args, Env: w.env, User: w.user, Cwd: w.workdir, Timeout: w.flags.limit()}
}

// catchSignals takes what would end us, and changes of the window's size, from here until stop.
func catchSignals() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}

func isEnding(s os.Signal) bool { return s != syscall.SIGWINCH }

// checkTerminal refuses -i -t without a terminal, before anything is made.
func (a *app) checkTerminal(f execFlags) error {
	if _, ok := terminal(a.Stdin); f.tty && f.interactive && !f.detach && !ok {
		return usagef("standard input is not a terminal; leave out -t")
	}
	if f.tty && a.json() {
		return usagef("-o json and -t do not go together")
	}
	return nil
}

// size is that of the user's terminal; 80×24 when there is none.
func (a *app) size() (cols, rows int) {
	for _, v := range []any{a.Stdout, a.Stdin, a.Stderr} {
		if fd, ok := terminal(v); ok {
			if cols, rows, err := term.GetSize(fd); err == nil && cols > 0 && rows > 0 {
				return cols, rows
			}
		}
	}
	return 80, 24
}

// detach starts the command, leaves it and answers its process's id.
func (a *app) detach(ctx context.Context, w live) (string, error) {
	r := client.SessionRequest{ExecRequest: w.request(), TTY: w.flags.tty}
	if w.flags.tty {
		r.Cols, r.Rows = a.size()
	}
	s, err := w.c.Session(ctx, w.sandbox, r)
	if err != nil {
		return "", err
	}
	if !w.flags.interactive {
		if err := s.CloseStdin(); err != nil {
			s.Detach()
			return "", err
		}
	}
	return s.ProcessID(), s.Detach()
}

// serve runs the command to its end and answers its exit code as an error.
func (a *app) serve(ctx context.Context, w live) error {
	if a.json() {
		return a.collect(ctx, w)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	newline := "\n"
	if fd, ok := terminal(a.Stdin); ok && w.flags.tty && w.flags.interactive {
		state, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("set the terminal raw: %w", err)
		}
		defer term.Restore(fd, state)
		newline = "\r\n"
	}
	var lost, stopped atomic.Bool
	streams := client.SessionIO{
		Stdout: a.Stdout, Stderr: a.Stderr,
		Gap: func(g client.GapEvent) {
			fmt.Fprintf(a.Stderr, "cay: %d bytes of output are missing here%s", g.Bytes, newline)
		},
		Lost: func(err error) {
			lost.Store(true)
			fmt.Fprintf(a.Stderr, "cay: connection lost (%v); attaching again, Ctrl-C leaves%s", err, newline)
		},
		Restored: func() {
			lost.Store(false)
			fmt.Fprintf(a.Stderr, "cay: attached again%s", newline)
		},
	}
	s, err := a.open(ctx, w, streams)
	if err != nil {
		return err
	}
	defer s.Detach()
	var wg sync.WaitGroup
	input, err := newInput(a.Stdin)
	if err != nil {
		return err
	}
	defer input.close()
	defer wg.Wait()
	defer input.stop()
	if w.flags.interactive {
		leave := func() { cancel(errInterrupted) }
		wg.Go(func() { forward(s, input, w.flags.tty, &lost, leave) })
	} else if err := s.CloseStdin(); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	wg.Go(func() { a.passSignals(ctx, cancel, w, s, &lost, &stopped) })
	exit, err := s.Wait()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("%w\n     the process %s may run on; see: cay logs %s %s", err, s.ProcessID(), w.sandbox, s.ProcessID())
	}
	a.tell(exit, newline)
	if stopped.Load() {
		return errInterrupted
	}
	if outcome := s.Outcome(); outcome != nil && w.outcome != nil {
		if err := w.outcome(ctx, outcome); err != nil {
			return err
		}
	}
	return exitWith(exit.ExitCode)
}

func (a *app) open(ctx context.Context, w live, streams client.SessionIO) (*client.Session, error) {
	cols, rows := a.size()
	switch {
	case w.code != nil:
		return w.c.CodeSession(ctx, w.sandbox, client.CodeSessionRequest{CodeRequest: *w.code, SessionIO: streams})
	case w.process != "":
		s, err := w.c.Processes(w.sandbox).Attach(ctx, w.process, 0, streams)
		if err == nil && w.flags.tty {
			err = s.Resize(cols, rows)
		}
		return s, err
	case len(w.args) == 0:
		return w.c.Terminal(ctx, w.sandbox, client.TerminalRequest{SessionIO: streams, Cols: cols, Rows: rows, User: w.user, Cwd: w.workdir})
	}
	return w.c.Session(ctx, w.sandbox, client.SessionRequest{
		ExecRequest: w.request(), SessionIO: streams, TTY: w.flags.tty, Cols: cols, Rows: rows,
	})
}

// collect is the form of -o json: the API's whole answer, after the end.
func (a *app) collect(ctx context.Context, w live) error {
	var in []byte
	if w.flags.interactive {
		var err error
		if in, err = io.ReadAll(a.Stdin); err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case s := <-w.signals:
				if isEnding(s) {
					cancel(errInterrupted)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	res, err := w.whole(ctx, in)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	cancel(nil)
	<-watched
	if err := a.printJSON(res.Raw); err != nil {
		return err
	}
	return exitWith(res.ExitCode)
}

// whole runs the command or code to its end, which comes with the connection's.
func (w live) whole(ctx context.Context, stdin []byte) (*client.ExecResult, error) {
	if w.code != nil {
		r := *w.code
		r.Stdin, r.Text, r.KillOnDisconnect = stdin, true, true
		res, err := w.c.RunCode(ctx, w.sandbox, r)
		if err != nil {
			return nil, err
		}
		return &res.ExecResult, nil
	}
	r := w.request()
	r.Stdin, r.Text, r.KillOnDisconnect = stdin, true, true
	return w.c.Exec(ctx, w.sandbox, r)
}

// interrupt passes on a signal: to the command's whole tree, or to the code that runs in a context and not to its interpreter.
func (w live) interrupt(ctx context.Context, s *client.Session, signal string) error {
	if w.code != nil && w.code.ContextID != "" {
		_, err := w.c.Contexts(w.sandbox).Interrupt(ctx, w.code.ContextID)
		return err
	}
	return s.Signal(ctx, signal, true)
}

// passSignals is on duty until the session ends. The first INT or TERM goes to the command's whole tree, the second kills it; HUP,
// and any while the connection is lost, leaves it.
func (a *app) passSignals(ctx context.Context, cancel context.CancelCauseFunc, w live, s *client.Session, lost, stopped *atomic.Bool) {
	passed := 0
	for {
		var sig os.Signal
		select {
		case sig = <-w.signals:
		case <-s.Done():
			return
		}
		if sig == syscall.SIGWINCH {
			if w.flags.tty {
				cols, rows := a.size()
				s.Resize(cols, rows) // fails only for a size that no terminal has
			}
			continue
		}
		passed++
		if sig == syscall.SIGHUP || lost.Load() || passed > 1 {
			stopped.Store(true) // before the exit can be seen
			if inContext := w.code != nil && w.code.ContextID != ""; passed > 1 && !lost.Load() && !inContext {
				a.kill(ctx, s)
			}
			cancel(errInterrupted)
			return
		}
		name := "INT"
		if sig == syscall.SIGTERM {
			name = "TERM"
		}
		if err := w.interrupt(ctx, s, name); err != nil {
			a.note("%v", err)
		}
	}
}

// kill ends the command's tree if the server can be reached, and waits a little for its last output.
func (a *app) kill(ctx context.Context, s *client.Session) {
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	if s.Signal(ctx, "KILL", true) != nil {
		return
	}
	select {
	case <-s.Done():
	case <-ctx.Done():
	}
}

// tell says of an end what its code does not.
func (a *app) tell(e *client.Exit, newline string) {
	var why string
	switch {
	case e.TimedOut:
		why = "the command was killed at its timeout"
	case e.OOM:
		why = "the command was killed: the sandbox ran out of memory"
	case e.Reason == "sandbox_ended":
		why = "the sandbox ended"
	case e.Reason == "slow_consumer" || e.Reason == "worker_lost":
		why = "the command was lost: " + e.Reason
	default:
		return
	}
	fmt.Fprintf(a.Stderr, "cay: %s%s", why, newline)
}

// forward passes standard input on until its end. While the connection is lost keys are dropped, and Ctrl-C on a terminal leaves.
func forward(s *client.Session, in *input, tty bool, lost *atomic.Bool, leave func()) {
	pieces := make(chan []byte)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			for range pieces { // so that the reader never waits for a writer that has gone
			}
		}()
		for p := range pieces {
			if _, err := s.Stdin().Write(p); err != nil {
				return
			}
		}
		s.CloseStdin() // the session's end is the only other reason to fail, and needs no input
	})
	defer wg.Wait()
	defer close(pieces)
	for {
		buf := make([]byte, 32<<10)
		n, err := in.Read(buf)
		if n > 0 {
			if tty && lost.Load() {
				if bytes.IndexByte(buf[:n], ctrlC) >= 0 {
					leave()
				}
				select {
				case pieces <- buf[:n]:
				default:
				}
			} else {
				select {
				case pieces <- buf[:n]:
				case <-s.Done():
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}
