package supervisor

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the child: it says its pid, its uid and its configuration on descriptor 4, then waits.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		config, _ := io.ReadAll(os.NewFile(3, "config"))
		out := os.NewFile(4, "out")
		term := make(chan os.Signal, 1)
		signal.Notify(term, unix.SIGTERM)
		out.WriteString(strconv.Itoa(os.Getpid()) + " " + strconv.Itoa(os.Getuid()) + " " + string(config) + "\n")
		if len(os.Args) > 2 && os.Args[2] == "die" {
			os.Exit(7)
		}
		<-term
		out.WriteString("bye\n")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type running struct {
	lines  *bufio.Scanner
	cancel context.CancelFunc
	done   chan error
}

func supervise(t *testing.T, ready <-chan struct{}, c *Child) running {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Files = []*os.File{w}
	ctx, cancel := context.WithCancel(t.Context())
	s := &Supervisor{Log: slog.New(slog.DiscardHandler), Children: []*Child{c}, Ready: ready}
	out := running{lines: bufio.NewScanner(r), cancel: cancel, done: make(chan error, 1)}
	go func() { out.done <- s.Run(ctx); w.Close() }()
	t.Cleanup(func() { cancel(); r.Close() })
	return out
}

func TestAKilledChildIsStartedAgainWithTheSameFilesAndConfig(t *testing.T) {
	ready := make(chan struct{})
	close(ready)
	run := supervise(t, ready, &Child{Name: "child", Args: []string{"child"}, UID: -1, Config: []byte("settings")})
	seen := map[string]bool{}
	for range 4 {
		if !run.lines.Scan() {
			t.Fatal("the child said nothing")
		}
		f := strings.Fields(run.lines.Text())
		if len(f) != 3 || f[2] != "settings" || seen[f[0]] {
			t.Fatalf("the child said %q", run.lines.Text())
		}
		seen[f[0]] = true
		pid, _ := strconv.Atoi(f[0])
		unix.Kill(pid, unix.SIGKILL)
	}
	run.cancel()
	if err := <-run.done; err != nil {
		t.Error(err)
	}
}

func TestStopLetsAChildSayGoodbye(t *testing.T) {
	run := supervise(t, nil, &Child{Name: "child", Args: []string{"child"}, UID: -1})
	run.lines.Scan()
	run.cancel()
	if err := <-run.done; err != nil {
		t.Error(err)
	}
	if !run.lines.Scan() || run.lines.Text() != "bye" {
		t.Errorf("got %q", run.lines.Text())
	}
}

func TestAChildThatNeverLivesEndsTheSupervision(t *testing.T) {
	run := supervise(t, make(chan struct{}), &Child{Name: "child", Args: []string{"child", "die"}, UID: -1})
	select {
	case err := <-run.done:
		if err == nil || !strings.Contains(err.Error(), "does not stay up") {
			t.Errorf("got %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is tried for ever")
	}
}

func TestAChildGivesUpItsPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	run := supervise(t, nil, &Child{Name: "child", Args: []string{"child"}, UID: 61999, GID: 61999})
	if !run.lines.Scan() || strings.Fields(run.lines.Text())[1] != "61999" {
		t.Errorf("the child said %q", run.lines.Text())
	}
	run.cancel()
	<-run.done
}
