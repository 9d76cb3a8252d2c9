package cli_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/client/clienttest"
	"github.com/cayhq/cay/internal/cli"
)

// TestMain of a child process: see asTerminalUser.
const childArgs = "CAY_CLI_TEST_ARGS"

func init() {
	if args := os.Getenv(childArgs); args != "" {
		os.Exit(cli.Execute(context.Background(), cli.New(cli.Deps{}), strings.Split(args, "\x1f")))
	}
}

// user is somebody at a terminal on which cay runs.
type user struct {
	t      *testing.T
	pty    *os.File
	tty    *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	screen strings.Builder // guarded by mu
	read   chan struct{}
}

func asTerminalUser(t *testing.T, server *clienttest.Server, args ...string) *user {
	t.Helper()
	p, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(p, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{childArgs + "=" + strings.Join(args, "\x1f"), "CAY_URL=" + server.URL, "CAY_API_KEY=" + clienttest.Key}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u := &user{t: t, pty: p, tty: tty, cmd: cmd, read: make(chan struct{})}
	go func() {
		defer close(u.read)
		buf := make([]byte, 4096)
		for {
			n, err := p.Read(buf)
			u.mu.Lock()
			u.screen.Write(buf[:n])
			u.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		tty.Close()
		<-u.read
		p.Close()
	})
	return u
}

func (u *user) sees(text string) {
	u.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		u.mu.Lock()
		screen := u.screen.String()
		u.mu.Unlock()
		if strings.Contains(screen, text) {
			return
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("never saw %q; the screen is %q", text, screen)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (u *user) types(text string) {
	u.t.Helper()
	if _, err := u.pty.WriteString(text); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) exitCode() int {
	u.t.Helper()
	done := make(chan struct{})
	go func() { u.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		u.t.Fatal("cay did not end")
	}
	return u.cmd.ProcessState.ExitCode()
}

// modes are the terminal's settings.
func (u *user) modes() unix.Termios {
	u.t.Helper()
	m, err := unix.IoctlGetTermios(int(u.tty.Fd()), unix.TCGETS)
	if err != nil {
		u.t.Fatal(err)
	}
	return *m
}

func TestATerminalFeelsLocalAndIsRestored(t *testing.T) {
	server := clienttest.New()
	defer server.Close()
	u := asTerminalUser(t, server, "run", "-i", "-t", "tty")
	cooked := u.modes()
	u.sees("size 100x30")
	if raw := u.modes(); raw.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 {
		t.Errorf("the terminal is not raw: %x", raw.Lflag)
	}
	if err := pty.Setsize(u.pty, &pty.Winsize{Cols: 132, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	u.sees("size 132x50")
	u.types("a\x03b\r") // Ctrl-C is the program's own
	u.sees(`line "a\x03b"`)
	server.Break()
	u.sees("connection lost")
	u.sees("attached again")
	u.types("still here\r")
	u.sees(`line "still here"`)
	u.types("exit 5\r")
	if code := u.exitCode(); code != 5 {
		t.Errorf("exit code %d", code)
	}
	if now := u.modes(); now.Lflag != cooked.Lflag || now.Iflag != cooked.Iflag || now.Oflag != cooked.Oflag {
		t.Errorf("the terminal was not restored: %+v, then %+v", cooked, now)
	}
	if left := server.Sandboxes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestATerminalIsRestoredAfterTERMAndAfterCtrlCWithoutAServer(t *testing.T) {
	for name, end := range map[string]func(*user, *clienttest.Server){
		"TERM twice": func(u *user, _ *clienttest.Server) {
			u.cmd.Process.Signal(syscall.SIGTERM)
			u.cmd.Process.Signal(syscall.SIGTERM)
		},
		"Ctrl-C while the connection is lost": func(u *user, s *clienttest.Server) {
			for range 200 {
				s.Refuse("GET", "/exec", 503, "unavailable", 5)
			}
			s.Break()
			u.sees("connection lost")
			u.types("\x03")
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := clienttest.New()
			defer server.Close()
			u := asTerminalUser(t, server, "run", "-i", "-t", "tty")
			cooked := u.modes()
			u.sees("size 100x30")
			end(u, server)
			if code := u.exitCode(); code != 130 && code != 143 {
				t.Errorf("exit code %d", code)
			}
			if now := u.modes(); now.Lflag != cooked.Lflag {
				t.Errorf("the terminal was not restored: %x, then %x", cooked.Lflag, now.Lflag)
			}
			if left := server.Sandboxes(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestCtrlCWithoutATerminalInsideGoesToTheCommand(t *testing.T) {
	server := clienttest.New()
	defer server.Close()
	u := asTerminalUser(t, server, "run", "trap")
	u.sees("trapping")
	u.types("\x03")
	u.sees("got INT")
	u.types("\x03")
	if code := u.exitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}
