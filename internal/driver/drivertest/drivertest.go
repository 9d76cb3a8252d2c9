// Package drivertest is the suite that every driver passes. It boots real sandboxes, with an agent of its own in them, and looks
// at the host for what they leave. It judges a driver by its contract and by nothing else.
package drivertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
)

// Part is a part of a sandbox on the host.
type Part string

const (
	Kernel Part = "kernel" // what enforces the isolation
	Files  Part = "files"  // what serves it the host's files, if that is apart
)

// Installation is one installation of a driver on this host, on which the suite runs.
type Installation struct {
	// Open opens the driver, as a node does when it starts. The suite closes what it opens.
	Open func(t *testing.T) driver.Driver
	// Residue lists what is on the host of sandboxes of this installation: processes, mounts, control groups, sockets, files.
	Residue func(t *testing.T) []string
	// Processes lists the pids of a sandbox's part.
	Processes func(t *testing.T, h driver.Handle, p Part) []int
	Shape     driver.Shape
	// ChildSetup is what Child's open needs in a process of its own, as JSON; nil: it cannot.
	ChildSetup any
}

// BuildAgent builds the suite's agent, static, and returns its path; CAY_DRIVERTEST_AGENT names one that is built already.
func BuildAgent(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CAY_DRIVERTEST_AGENT"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "fakeagent")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/cayhq/cay/internal/driver/drivertest/fakeagent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v: %s", err, out)
	}
	return path
}

const patience = 30 * time.Second

var counter atomic.Int64

// residue is what is left on the host. The kernel closes a dead process's sockets a moment after it has stopped to list the process,
// which without control groups is all that a driver can wait for.
func (s *suite) residue() []string {
	s.Helper()
	left := s.in.Residue(s.T)
	for deadline := time.Now().Add(patience); len(left) > 0 && time.Now().Before(deadline); left = s.in.Residue(s.T) {
		<-time.After(20 * time.Millisecond)
	}
	return left
}

func newHandle() driver.Handle {
	return driver.Handle(fmt.Sprintf("box_%d", counter.Add(1)))
}

// suite is a test with a driver that is open.
type suite struct {
	*testing.T
	in    *Installation
	drv   driver.Driver
	conns []net.Conn // control connections; used by the test's own goroutine
}

// Run runs the suite. fresh makes an installation of its own for each test.
func Run(t *testing.T, fresh func(t *testing.T) *Installation) {
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"a sandbox boots, answers, is claimed once and leaves nothing", aLife},
		{"preparing and destroying are idempotent", idempotent},
		{"what cannot be is refused and leaves nothing", refused},
		{"a cancelled boot leaves nothing", cancelled},
		{"a restarted node takes over what runs", takeOver},
		{"a claim outlives the node", claimOutlives},
		{"the end of the kernel is told", kernelEnds},
		{"the end of any part is the end of the sandbox", partEnds},
		{"remnants of a killed start are found and destroyed", remnants},
		{"sandboxes come and go at the same time", concurrent},
		{"the agent may come again", reconnect},
		{"bulk connections go to those who wait for them", bulk},
		{"floods and garbage do not shut the agent out", flood},
		{"a frozen sandbox stands still, and can be destroyed", freeze},
		{"too much memory is told", memory},
		{"the disk has an end, in bytes and in files", disk},
		{"what is shown inside is the shape", shown},
		{"use is measured", stats},
		{"volumes are shown, to those who claimed them alone, and let go", volumes},
		{"only one watches", watchers},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := fresh(t)
			s := &suite{T: t, in: in}
			s.open()
			t.Cleanup(func() {
				for _, c := range s.conns {
					c.Close()
				}
				s.purge()
				s.close()
				if left := s.residue(); len(left) > 0 {
					t.Errorf("left on the host:\n%s", strings.Join(left, "\n"))
				}
			})
			test.run(s)
		})
	}
}

func (s *suite) open() {
	s.Helper()
	s.drv = s.in.Open(s.T)
}

func (s *suite) close() {
	s.Helper()
	if err := s.drv.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
}

// restart is what happens to the driver when the node is replaced. The agents' connections end with the node.
func (s *suite) restart() {
	s.Helper()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.close()
	s.open()
}

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
	s.Cleanup(cancel)
	return ctx
}

// purge destroys whatever the test left.
func (s *suite) purge() {
	s.Helper()
	list, err := s.drv.List(s.ctx())
	if err != nil {
		s.Errorf("list: %v", err)
	}
	for _, st := range list {
		if err := s.drv.Destroy(s.ctx(), st.Handle); err != nil {
			s.Errorf("destroy %s: %v", st.Handle, err)
		}
	}
}

// up boots a sandbox and meets its agent.
func (s *suite) up() (driver.Handle, *agent) {
	s.Helper()
	h := newHandle()
	if err := s.drv.Prepare(s.ctx(), h, s.in.Shape); err != nil {
		s.Fatalf("prepare: %v", err)
	}
	return h, s.meet(h)
}

func (s *suite) destroy(h driver.Handle) {
	s.Helper()
	if err := s.drv.Destroy(s.ctx(), h); err != nil {
		s.Fatalf("destroy: %v", err)
	}
}

func (s *suite) status(h driver.Handle) (driver.Status, bool) {
	s.Helper()
	list, err := s.drv.List(s.ctx())
	if err != nil {
		s.Fatalf("list: %v", err)
	}
	for _, st := range list {
		if st.Handle == h {
			return st, true
		}
	}
	return driver.Status{}, false
}

// until polls for what comes by itself.
func (s *suite) until(what string, ok func() bool) {
	s.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("never: %s", what)
		}
	}
}

// events watches until the test ends.
func (s *suite) events() <-chan driver.Event {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	in, err := s.drv.Watch(ctx)
	if err != nil {
		s.Fatalf("watch: %v", err)
	}
	out := make(chan driver.Event, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range in {
			select {
			case out <- e:
			default:
			}
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	return out
}

func (s *suite) await(events <-chan driver.Event, h driver.Handle, want driver.EventType) driver.Event {
	s.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case e := <-events:
			if e.Handle == h && e.Type == want {
				return e
			}
		case <-deadline.C:
			s.Fatalf("no event %q of %s", want, h)
		}
	}
}

// agent is the control connection to a fakeagent.
type agent struct {
	s    *suite
	conn net.Conn
	in   *bufio.Reader
}

func (s *suite) meet(h driver.Handle) *agent {
	s.Helper()
	conn, err := s.drv.Dial(s.ctx(), h, driver.Purpose{Kind: wire.ConnControl})
	if err != nil {
		s.Fatalf("dial: %v", err)
	}
	s.conns = append(s.conns, conn)
	a := &agent{s: s, conn: conn, in: bufio.NewReader(conn)}
	if got := a.ask(request{Op: "echo", Text: "hello"}); got.Text != "hello" {
		s.Fatalf("the agent said %+v", got)
	}
	return a
}

type request struct {
	Op    string
	Text  string
	Token string
	N     int
}

type answer struct {
	Text  string
	Error string
	N     int
}

func (a *agent) try(r request) (answer, error) {
	if err := a.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	if _, err := a.conn.Write(append(b, '\n')); err != nil {
		return answer{}, err
	}
	line, err := a.in.ReadBytes('\n')
	if err != nil {
		return answer{}, err
	}
	var got answer
	return got, json.Unmarshal(line, &got)
}

func (a *agent) ask(r request) answer {
	a.s.Helper()
	got, err := a.try(r)
	if err != nil {
		a.s.Fatalf("ask the agent to %s: %v", r.Op, err)
	}
	return got
}

// sh runs a command as root inside; it must succeed.
func (a *agent) sh(command string) string {
	a.s.Helper()
	got := a.ask(request{Op: "sh", Text: command})
	if got.Error != "" {
		a.s.Fatalf("%s: %s: %s", command, got.Error, got.Text)
	}
	return strings.TrimSpace(got.Text)
}

func isConflict(err error) bool { return errors.Is(err, &cay.Error{Reason: cay.Conflict}) }
