// Package supervisor starts the processes of `cay up`, watches them and starts them again. It parses nothing that a client or a
// guest has said, because it keeps the privileges that the server gives up.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a process to keep alive.
type Child struct {
	Name string
	Args []string // without argv[0]
	Env  []string
	UID  int // -1: as it is
	GID  int
	// Files become the descriptors 3, 4, … of the child; they stay open here, so that a restarted child finds them again.
	Files []*os.File
	// Config is what the child reads from its descriptor 3, to the end, before the Files follow from 4 on.
	Config []byte

	pid       int
	status    string // how it last ended
	startedAt time.Time
	backoff   time.Duration
	restartAt time.Time
}

// Backoff between restarts: doubled while a child dies young, forgotten once it has lived for healthyAfter.
const (
	minBackoff   = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	healthyAfter = 10 * time.Second
)

// StopGrace is how long a child may take to end after SIGTERM before it is killed.
const StopGrace = 20 * time.Second

// maxYoungDeaths ends the supervision when a child cannot live before everything was ready once.
const maxYoungDeaths = 3

// self is this executable, also when its path is not to be reached by a child's user, or is a newer build by now.
const self = "/proc/self/exe"

// Supervisor runs children until it is told to stop.
type Supervisor struct {
	Log      *slog.Logger
	Children []*Child
	Ready    <-chan struct{} // closed once the whole is ready: from then on a child is started again for ever
}

// Run starts the children in order and returns when ctx ends and all of them are gone, stopped in reverse order, or with an error
// when one cannot be kept alive. It must have the main thread: the kernel ties a child's death to the thread that started it.
//
// The process becomes a subreaper, so that sandboxes whose starter has ended have a parent that reaps them.
func (s *Supervisor) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)

	for _, c := range s.Children {
		if err := s.start(c); err != nil {
			return errors.Join(err, s.stop(died))
		}
	}
	deaths := 0
	for {
		var wake <-chan time.Time
		if next := s.nextRestart(); !next.IsZero() {
			wake = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return s.stop(died)
		case <-died:
			for _, c := range s.reap() {
				c.schedule()
				s.Log.Warn("a process ended", "process", c.Name, "status", c.status, "restart_in", c.backoff)
				select {
				case <-s.Ready:
				default:
					if deaths++; deaths >= maxYoungDeaths {
						return errors.Join(fmt.Errorf("the %s does not stay up; its last words are above", c.Name), s.stop(died))
					}
				}
			}
		case <-wake:
			for _, c := range s.Children {
				if c.pid == 0 && !c.restartAt.IsZero() && !time.Now().Before(c.restartAt) {
					c.restartAt = time.Time{}
					if err := s.start(c); err != nil {
						s.Log.Error("start failed", "process", c.Name, "error", err)
						c.schedule()
					}
				}
			}
		}
	}
}

func (s *Supervisor) nextRestart() time.Time {
	var next time.Time
	for _, c := range s.Children {
		if !c.restartAt.IsZero() && (next.IsZero() || c.restartAt.Before(next)) {
			next = c.restartAt
		}
	}
	return next
}

func (c *Child) schedule() {
	if time.Since(c.startedAt) > healthyAfter {
		c.backoff = 0
	}
	c.backoff = min(max(2*c.backoff, minBackoff), maxBackoff)
	c.restartAt = time.Now().Add(c.backoff)
}

func (s *Supervisor) start(c *Child) error {
	config, err := configPipe(c.Config)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer config.Close()
	files := []uintptr{0, 1, 2, config.Fd()}
	for _, f := range c.Files {
		files = append(files, f.Fd())
	}
	attr := &syscall.ProcAttr{Env: c.Env, Files: files, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}}
	if c.UID >= 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)}
	}
	pid, err := syscall.ForkExec(self, append([]string{"cay"}, c.Args...), attr)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	c.pid, c.startedAt = pid, time.Now()
	s.Log.Debug("started", "process", c.Name, "pid", pid)
	return nil
}

// configPipe is a file that holds b and is read from its beginning by whoever gets it: memory only, no name.
func configPipe(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("cay-config", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make the configuration file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "cay-config")
	if _, err := f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return f, nil
}

// reap collects every dead child, also those that were only inherited, and returns the supervised ones among them.
func (s *Supervisor) reap() []*Child {
	var ours []*Child
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return ours
		}
		for _, c := range s.Children {
			if c.pid != pid {
				continue
			}
			c.pid = 0
			ours = append(ours, c)
			c.status = describe(status)
		}
	}
}

func describe(w unix.WaitStatus) string {
	if w.Signaled() {
		return "signal " + unix.SignalName(w.Signal())
	}
	return fmt.Sprintf("exit code %d", w.ExitStatus())
}

// stop ends the children in reverse order, each with SIGTERM and after StopGrace with SIGKILL.
func (s *Supervisor) stop(died <-chan os.Signal) error {
	var errs []error
	for _, c := range slices.Backward(s.Children) {
		if c.pid == 0 {
			continue
		}
		name, pid := c.Name, c.pid
		unix.Kill(pid, unix.SIGTERM)
		deadline := time.After(StopGrace)
		for c.pid != 0 {
			select {
			case <-died:
				s.reap()
			case <-deadline:
				errs = append(errs, fmt.Errorf("the %s did not end within %v and was killed", name, StopGrace))
				unix.Kill(pid, unix.SIGKILL)
				deadline = nil
			}
		}
	}
	return errors.Join(errs...)
}
