package interpreter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/guest/process"
	"golang.org/x/sys/unix"
)

// kernel is the interpreter of a context.
type kernel struct {
	*process.Kernel
	in     *bufio.Reader
	ready  bool // it said so; serve's alone
	ended  chan struct{}
	fate   process.Fate   // once ended
	killed syscall.Signal // what it is killed with; guarded by the context's lock
	unsure bool           // a shell may have lost what it was told; guarded by the context's lock
	asked  bool           // who uses the context asked for its end; guarded by the context's lock
}

// ensure returns the kernel, which it starts where there is none. It expects x.mu.
func (x *codeContext) ensure() (*kernel, error) {
	if x.kernel != nil {
		return x.kernel, nil
	}
	k := &kernel{ended: make(chan struct{})}
	p, err := x.startKernel(func(p *process.Kernel, f process.Fate) {
		k.fate = f
		close(k.ended)
		_ = p.Control.SetReadDeadline(time.Unix(1, 0)) // descendants may hold the other end
		x.rouse()
	})
	if err != nil {
		return nil, err
	}
	k.Kernel, k.in = p, newControlReader(&control{p.Control})
	if l := languages[x.language]; l.shell() {
		_ = k.write(shellReady(0, l.control)) // one that does not take it is not ready either
	}
	x.kernel = k
	return k, nil
}

// control reads a control socket. Once its read deadline has passed it returns what is there and then the end.
type control struct{ file *os.File }

func (c *control) Read(b []byte) (int, error) {
	n, err := c.file.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := c.file.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if err := raw.Read(func(fd uintptr) bool { n, err = unix.Read(int(fd), b); return true }); err != nil {
		return 0, err
	}
	if err := c.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return 0, err
	}
	if err != nil || n <= 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (k *kernel) gone() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

// bury ends what is left of a kernel and frees it. Nobody asked for it to end: the next run is told.
func (x *codeContext) bury(k *kernel) {
	if err := k.Kill(); err != nil {
		x.contexts.config.Notable("processes of a context are left", "context", x.id, "error", err)
	}
	select {
	case <-k.ended:
	case <-time.After(endDeadline):
	}
	k.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.kernel == k {
		x.kernel = nil
		x.lost = x.lost || !k.asked
	}
	if !k.asked {
		x.contexts.config.Notable("the interpreter of a context ended", "context", x.id, "language", x.language, "fate", k.fateText())
	}
}

// replace starts another kernel after k where that is what was asked for. Should it fail, the next run says so.
func (x *codeContext) replace(k *kernel) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.asked && !x.closing {
		_, _ = x.ensure()
	}
}

// fateText is for who reads it; the kernel has ended.
func (k *kernel) fateText() string {
	if !k.gone() {
		return "unknown"
	}
	if k.fate.Signal != 0 {
		return "signal " + unix.SignalName(syscall.Signal(k.fate.Signal))
	}
	return fmt.Sprintf("exit code %d", k.fate.Code)
}

// await waits until the interpreter takes programs. A shell that was interrupted is asked thrice: the first of the lines may be taken
// for the end of another.
func (x *codeContext) await(k *kernel, number int64) error {
	want := int64(0)
	x.mu.Lock()
	if k.unsure {
		k.unsure, k.ready, want = false, false, number
	}
	x.mu.Unlock()
	if k.ready {
		return nil
	}
	if want != 0 {
		ask := "\n" + strings.Repeat(shellReady(want, languages[x.language].control), 3)
		if err := k.write(ask); err != nil {
			return err
		}
		answered, told := make(chan struct{}), make(chan struct{})
		x.contexts.running.Go(func() {
			defer close(told)
			insist(answered, func() error { return errors.Join(k.Signal(unix.SIGINT), k.write(ask)) })
		})
		defer func() { close(answered); <-told }()
	}
	for {
		m, err := readMessage(k.in)
		if err != nil {
			return err
		}
		if m.kind == "ready" && m.run == want {
			k.ready = true
			return nil
		}
		if _, err := io.CopyN(io.Discard, k.in, int64(m.size)); err != nil {
			return err
		}
	}
}

// say tells the driver to run source. file is to be removed after the run.
func (x *codeContext) say(k *kernel, number int64, source []byte) (file string, err error) {
	l := languages[x.language]
	if l.shell() || len(source) > inlineSource {
		x.mu.Lock()
		account := x.account
		x.mu.Unlock()
		if file, err = x.contexts.store(source, extensions[x.language], account); err != nil {
			return "", err
		}
	}
	var message string
	switch {
	case l.shell():
		message = shellCommands(number, file, l.control)
	case file != "":
		message = fmt.Sprintf("file %d %d\n%s", number, len(file), file)
	default:
		message = fmt.Sprintf("run %d %d\n%s", number, len(source), source)
	}
	return file, k.write(message)
}

func (k *kernel) write(s string) error {
	if err := k.Control.SetWriteDeadline(time.Now().Add(sayDeadline)); err != nil {
		return err
	}
	_, err := io.WriteString(k.Control, s)
	return err
}

// lose ends a kernel that ended, broke the protocol or does not listen, and returns the fate of its run.
func (x *codeContext) lose(k *kernel, r *run, cause error) process.Fate {
	if errors.Is(cause, errControl) {
		x.contexts.config.Notable("the interpreter of a context broke its protocol and is ended", "context", x.id, "error", cause)
		r.process.Print("cay: the program wrote to the interpreter's control socket; the context was restarted\n")
	}
	x.bury(k)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lost = false // this run is told
	switch {
	case k.killed != 0:
		return process.Killed(k.killed)
	case k.gone():
		return k.fate
	}
	return process.Killed(unix.SIGKILL)
}

// interruptKernel expects x.mu. A shell that reads its commands in blocks drops what it has read of them when it is interrupted: it is
// asked for the status again, which does no harm when it still knew.
func (x *codeContext) interruptKernel(k *kernel, r *run) error {
	if err := k.Signal(unix.SIGINT); err != nil {
		return err
	}
	l := languages[x.language]
	if !l.deaf || r.insisting {
		return nil
	}
	r.insisting, k.unsure = true, l.shell()
	ask := ""
	if l.shell() {
		ask = shellDone(x.count, l.control)
	}
	x.contexts.running.Go(func() {
		insist(r.over, func() error {
			x.mu.Lock()
			defer x.mu.Unlock()
			if x.current != r {
				return os.ErrProcessDone
			}
			return errors.Join(k.Signal(unix.SIGINT), k.write(ask))
		})
	})
	return k.write(ask)
}

// insist calls again from time to time until over is closed, or again fails.
func insist(over <-chan struct{}, again func() error) {
	pause := time.NewTicker(insistAgain)
	defer pause.Stop()
	for range maxInsist {
		select {
		case <-over:
			return
		case <-pause.C:
		}
		if again() != nil {
			return
		}
	}
}
