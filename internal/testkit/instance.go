package testkit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Times that no healthy server exceeds, even on a slow machine under load.
const (
	readyTimeout = 90 * time.Second
	stopTimeout  = 60 * time.Second
)

// Options say how a server of one's own differs from the usual.
type Options struct {
	Env     []string            // on top of the few variables that every server gets
	Cred    *syscall.Credential // run as another user; nil: as this one
	NoKey   bool                // let the server make its own bootstrap key
	DataDir string              // an existing parent; "" makes a temporary one
}

// Instance is one `cay up` with a data directory of its own. It can be killed and started again; the data stay.
type Instance struct {
	*Client
	DataDir string
	Listen  string // host:port, the same after every restart

	bin     string
	tempDir string // removed by Close
	env     []string
	cred    *syscall.Credential
	started int // how often; names the log files

	cmd  *exec.Cmd
	done chan struct{} // closed once cmd has ended; its state is in cmd.ProcessState
}

// NewInstance prepares a server without starting it.
func NewInstance(opts Options) (*Instance, error) {
	bin, err := Binary()
	if err != nil {
		return nil, err
	}
	// Short, because paths of unix sockets must stay below 108 bytes.
	dir, err := os.MkdirTemp("/tmp", "cay")
	if err != nil {
		return nil, err
	}
	// The server's user must be able to reach its own directory below.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	inst := &Instance{DataDir: filepath.Join(dir, "d"), bin: bin, tempDir: dir, cred: opts.Cred}
	if opts.Cred != nil {
		if err := os.Chown(dir, int(opts.Cred.Uid), int(opts.Cred.Gid)); err != nil {
			return nil, err
		}
		// The repository may lie where the other user cannot reach.
		inst.bin = filepath.Join(dir, "cay")
		if err := copyExecutable(bin, inst.bin); err != nil {
			return nil, err
		}
	}
	if inst.Listen, err = FreePort(); err != nil {
		return nil, err
	}
	inst.Client = NewClient("http://"+inst.Listen, "")
	inst.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "CAY_CONFIG=" + filepath.Join(dir, "cay.yaml"),
		"CAY_DATA_DIR=" + inst.DataDir, "CAY_LISTEN=" + inst.Listen,
		"CAY_DISK_GB=1000", // what a test promises and does not fill must not depend on what the machine has free
	}
	if err := os.WriteFile(filepath.Join(dir, "cay.yaml"), []byte("{}\n"), 0o644); err != nil {
		return nil, err
	}
	if !opts.NoKey {
		inst.Key = NewKey()
		inst.env = append(inst.env, "CAY_BOOTSTRAP_KEY="+inst.Key)
	}
	inst.env = append(inst.env, opts.Env...)
	return inst, nil
}

// NewKey makes a well-formed API key.
func NewKey() string {
	var b [32]byte
	rand.Read(b[:])
	return "cay_" + hex.EncodeToString(b[:])
}

// FreePort finds a port below the range from which the kernel takes those of outgoing connections: no client's can come upon it while
// the server is down.
func FreePort() (string, error) {
	const lowest, count = 20_000, 12_000
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+mathrand.IntN(count))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", errors.New("no free port was found")
}

func copyExecutable(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return WriteProgram(to, data)
}

// Command prepares a run of the binary with this instance's environment.
func (i *Instance) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(i.bin, args...)
	cmd.Env = i.env
	cmd.Dir = i.tempDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: i.cred}
	return cmd
}

// CLI prepares a run of the binary as a client of this instance.
func (i *Instance) CLI(args ...string) *exec.Cmd {
	cmd := i.Command(args...)
	cmd.Env = append([]string{"CAY_URL=" + i.URL, "CAY_API_KEY=" + i.Key}, i.env...)
	return cmd
}

// Start runs `cay up` and returns once it has said that it is ready.
func (i *Instance) Start() error {
	i.started++
	// Files and not pipes: children that outlive their parent keep them open without holding anybody up.
	stdout, err := os.Create(i.logPath("out"))
	if err != nil {
		return err
	}
	defer stdout.Close()
	stderr, err := os.Create(i.logPath("err"))
	if err != nil {
		return err
	}
	defer stderr.Close()

	cmd := i.Command("up")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A group of its own, so that a Ctrl-C at the tests' terminal does not reach it before the tests' clean-up.
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start cay up: %w", err)
	}
	done := make(chan struct{})
	i.cmd, i.done = cmd, done
	go func() { // ends with the process, which Stop or Close awaits
		defer close(done)
		_ = cmd.Wait() // the state is read from cmd.ProcessState
	}()

	err = Until(readyTimeout, func() error {
		url, ok := readyLine(i.logPath("out"))
		if ok {
			i.URL = url
			return nil
		}
		if !i.Running() {
			return nil // looked at below
		}
		return errors.New("no line `ready URL` on stdout")
	})
	if err == nil && i.Running() {
		if i.Key == "" {
			i.Key, err = i.readKey()
		}
		return err
	}
	if err == nil {
		err = fmt.Errorf("ended with %v", i.cmd.ProcessState)
	}
	_ = cmd.Process.Kill()
	<-done
	return fmt.Errorf("cay up: %w\n%s", err, i.Logs())
}

func readyLine(path string) (url string, ok bool) {
	out, err := os.ReadFile(path)
	if err != nil {
		return "", false
	}
	for line := range bytes.Lines(out) {
		if rest, ok := bytes.CutPrefix(line, []byte("ready ")); ok && bytes.HasSuffix(line, []byte("\n")) {
			return strings.TrimSpace(string(rest)), true
		}
	}
	return "", false
}

func (i *Instance) readKey() (string, error) {
	key, err := os.ReadFile(filepath.Join(i.DataDir, "key"))
	return strings.TrimSpace(string(key)), err
}

func (i *Instance) logPath(kind string) string {
	return filepath.Join(i.tempDir, fmt.Sprintf("up-%d.%s", i.started, kind))
}

// Running reports whether `cay up` itself still runs.
func (i *Instance) Running() bool {
	if i.cmd == nil {
		return false
	}
	select {
	case <-i.done:
		return false
	default:
		return true
	}
}

// Logs is what all runs of this instance printed, each cut to its last 64 KiB.
func (i *Instance) Logs() string {
	var b strings.Builder
	for n := 1; n <= i.started; n++ {
		for _, kind := range []string{"out", "err"} {
			path := filepath.Join(i.tempDir, fmt.Sprintf("up-%d.%s", n, kind))
			text, _ := os.ReadFile(path)
			const most = 64 << 10
			if len(text) > most {
				text = text[len(text)-most:]
			}
			if len(text) > 0 {
				fmt.Fprintf(&b, "--- run %d, %s\n%s", n, kind, text)
			}
		}
	}
	return b.String()
}

// Stop ends `cay up` as a service manager does, with SIGTERM, and waits. Sandboxes live on.
func (i *Instance) Stop() error {
	if !i.Running() {
		return nil
	}
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-i.done:
		return nil
	case <-time.After(stopTimeout):
		_ = i.cmd.Process.Kill()
		<-i.done
		return fmt.Errorf("cay up did not end within %v of SIGTERM\n%s", stopTimeout, i.Logs())
	}
}

// ExitCode waits for `cay up` to end by itself.
func (i *Instance) ExitCode(timeout time.Duration) (int, error) {
	select {
	case <-i.done:
		return i.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, fmt.Errorf("cay up still runs after %v", timeout)
	}
}

// Close deletes every sandbox, stops the server, reports what is left of it on the machine, and removes that by force.
func (i *Instance) Close() error {
	var faults []error
	if i.Running() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		faults = append(faults, i.DeleteAll(ctx))
		cancel()
	}
	faults = append(faults, i.Stop())
	// What is asked to end needs a moment to be gone from /proc.
	if err := Until(30*time.Second, func() error { return i.Residue().err() }); err != nil {
		faults = append(faults, fmt.Errorf("left behind after the end of cay up: %w", err))
	}
	i.purge()
	faults = append(faults, os.RemoveAll(i.tempDir))
	return errors.Join(faults...)
}

// StartServer starts a server of the test's own. At the end of the test its sandboxes are deleted, it is stopped, and whatever it
// left behind fails the test.
func StartServer(t testing.TB, opts Options) *Instance {
	t.Helper()
	inst, err := NewInstance(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server log:\n%s", inst.Logs())
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := inst.Start(); err != nil {
		t.Fatal(err)
	}
	return inst
}
