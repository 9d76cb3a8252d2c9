package agent_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/cayhq/cay/internal/guest/agent" // what the binary is made of: a change runs the tests again
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const patience = time.Minute

// buildDir is what agentBinary made; "" when no test asked for it.
var buildDir string

var agentBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cay-agent-test")
	if err != nil {
		return "", err
	}
	buildDir = dir
	file := filepath.Join(dir, "cay-agent")
	build := exec.Command("go", "build", "-o", file, "github.com/cayhq/cay/cmd/cay-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return file, os.Chmod(dir, 0o755)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// node is the host's end of the hop: it takes one control connection at a time and keeps all output.
type node struct {
	t        *testing.T
	listener *net.UnixListener
	sandbox  bool // the agent is PID 1 in gVisor
	dir      string
	hellos   chan *guestv1.Hello
	mute     atomic.Bool // acknowledges nothing

	ids     atomic.Uint64
	streams atomic.Uint64

	mu      sync.Mutex
	conn    *net.UnixConn // guarded by mu, also for writing
	logs    []*guestv1.Log
	calls   map[uint64]chan *guestv1.ToNode
	procs   map[uint64]*proc
	bulk    map[[wire.TokenLen]byte]chan *net.UnixConn
	serving sync.WaitGroup
}

// proc is a started process as the node sees it.
type proc struct {
	n      *node
	id     string
	stream uint64
	pid    int64
	done   chan struct{}

	mu        sync.Mutex
	changed   *sync.Cond
	out, err  bytes.Buffer
	next      int64 // offset expected
	stdinAck  int64
	exit      *guestv1.Exited
	afterExit bool // output came behind the exit
	runs      int
	unkept    bool // keep nothing of the output
}

func listen(t *testing.T) *node {
	dir, err := os.MkdirTemp("/tmp", "cayt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(dir+"/s", 0o700)); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s/a.sock"})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, listener: l, dir: dir, hellos: make(chan *guestv1.Hello, 64),
		calls: map[uint64]chan *guestv1.ToNode{}, procs: map[uint64]*proc{}, bulk: map[[wire.TokenLen]byte]chan *net.UnixConn{},
	}
	n.serving.Go(n.accept)
	t.Cleanup(func() {
		l.Close()
		n.cut()
		n.serving.Wait()
	})
	return n
}

// native runs the agent as a process of this machine, without a sandbox around it.
func native(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the agent runs as root")
	}
	n := listen(t)
	file, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "-socket", n.dir+"/s/a.sock", "-cgroup=", "-sandbox=false", "-scratch", n.dir+"/code")
	cmd.Stderr = os.Stderr
	cmd.Env = []string{}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.killRest()
		cmd.Process.Kill()
		cmd.Wait()
	})
	n.hello()
	work := n.dir + "/work"
	if err := errors.Join(os.Mkdir(work, 0o755), os.Chown(work, 2000, 2000)); err != nil {
		t.Fatal(err)
	}
	n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Claim{Claim: &guestv1.Claim{
		SandboxId: "sbx_1", Workdir: work, Env: map[string]string{"FROM_CLAIM": "yes"}}}}))
	return n
}

// killRest ends what tests left running, so that nothing outlives the agent.
func (n *node) killRest() {
	n.mu.Lock()
	all := make([]*proc, 0, len(n.procs))
	for _, p := range n.procs {
		all = append(all, p)
	}
	n.mu.Unlock()
	for _, p := range all {
		n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Signal{Signal: &guestv1.Signal{ProcessId: p.id, Signal: 9, Tree: true}}})
	}
}

// gvisor boots the agent as PID 1 of a sandbox; the test is skipped without CAY_TEST_RUNSC.
func gvisor(t *testing.T) *node {
	t.Helper()
	runsc := os.Getenv("CAY_TEST_RUNSC")
	if runsc == "" {
		t.Skip("CAY_TEST_RUNSC names no runsc")
	}
	file, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	n := listen(t)
	n.sandbox = true
	root := n.dir + "/rootfs"
	for _, d := range []string{"usr", "etc", "proc", "dev", "sys", "tmp", "root", "run", "home", "var", ".cay/bin", ".cay/s"} {
		if err := os.MkdirAll(root+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		os.Symlink("usr/"+d, root+"/"+d)
	}
	copyFile(t, file, root+"/.cay/bin/cay-agent", 0o755)
	copyFile(t, "/etc/ld.so.cache", root+"/etc/ld.so.cache", 0o644)
	writeFile(t, root+"/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nother:x:3000:3000::/home/other:/bin/sh\n")
	writeFile(t, root+"/etc/group", "root:x:0:\nextra:x:4000:sandbox,other\n")

	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_FSETID", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYS_PTRACE", "CAP_SYS_BOOT"}
	spec := map[string]any{
		"ociVersion": "1.0.0", "hostname": "prepared", "root": map[string]any{"path": root},
		"process": map[string]any{
			"args": []string{"/.cay/bin/cay-agent", "-socket", "/.cay/s/a.sock"}, "env": []string{}, "cwd": "/", "noNewPrivileges": true,
			"user": map[string]any{"uid": 0, "gid": 0}, "capabilities": map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
			"rlimits": []any{map[string]any{"type": "RLIMIT_NOFILE", "hard": 20000, "soft": 1024}},
		},
		"mounts": []any{
			map[string]any{"destination": "/proc", "type": "proc", "source": "proc"},
			map[string]any{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			map[string]any{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
			map[string]any{"destination": "/.cay/s", "type": "bind", "source": n.dir + "/s", "options": []string{"bind", "ro"}},
		},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "ipc"}, map[string]any{"type": "uts"},
			map[string]any{"type": "mount"}, map[string]any{"type": "network"}}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, n.dir+"/config.json", string(b))
	if err := errors.Join(os.Mkdir(n.dir+"/overlay", 0o700), os.Mkdir(n.dir+"/state", 0o700)); err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--root=" + n.dir + "/state", "--platform=systrap", "--network=none", "--ignore-cgroups", "--host-uds=open",
		"--overlay2=root:dir=" + n.dir + "/overlay,size=256m", "--in-sandbox-cgroup=v2",
	}
	id := filepath.Base(n.dir)
	cmd := exec.Command(runsc, append(flags, "run", "--bundle="+n.dir, id)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		exec.Command(runsc, append(flags, "kill", id, "KILL")...).Run()
		cmd.Wait()
		exec.Command(runsc, append(flags, "delete", "--force", id)...).Run()
		unix.Unmount(n.dir+"/state/null-netns", unix.MNT_DETACH) // runsc leaves it
	})
	n.hello()
	n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Claim{Claim: &guestv1.Claim{
		SandboxId: "sbx_1", Hostname: "claimed", Pids: 64, Env: map[string]string{"FROM_CLAIM": "yes"}}}}))
	return n
}

// everywhere runs a test natively and in gVisor.
func everywhere(t *testing.T, test func(t *testing.T, n *node)) {
	t.Run("native", func(t *testing.T) { test(t, native(t)) })
	t.Run("gvisor", func(t *testing.T) { test(t, gvisor(t)) })
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (n *node) accept() {
	for {
		conn, err := n.listener.AcceptUnix()
		if err != nil {
			return
		}
		p, err := wire.ReadPreamble(conn)
		if err != nil {
			conn.Close()
			continue
		}
		n.mu.Lock()
		if p.Kind == wire.ConnBulk {
			if waiting := n.bulk[p.Token]; waiting != nil {
				waiting <- conn
			} else {
				conn.Close()
			}
		} else {
			if n.conn != nil {
				n.conn.Close()
			}
			n.conn = conn
			n.serving.Go(func() { n.serve(conn) })
		}
		n.mu.Unlock()
	}
}

func (n *node) serve(conn *net.UnixConn) {
	frames := wire.NewReader(bufio.NewReaderSize(conn, 1<<18))
	for {
		f, err := frames.Read()
		if err != nil {
			conn.Close()
			return
		}
		switch f.Type {
		case wire.FrameStdout, wire.FrameStderr:
			offset, data, err := wire.SplitData(f.Payload)
			if err != nil {
				n.t.Error(err)
				return
			}
			if p := n.process(f.Stream); p != nil {
				p.output(f.Type, offset, data)
			}
		case wire.FrameMessage:
			var m guestv1.ToNode
			if err := proto.Unmarshal(f.Payload, &m); err != nil {
				n.t.Error(err)
				return
			}
			n.message(&m)
		default:
			n.t.Errorf("frame of type %d", f.Type)
		}
	}
}

func (n *node) message(m *guestv1.ToNode) {
	switch say := m.Message.(type) {
	case *guestv1.ToNode_Hello:
		n.hellos <- say.Hello
	case *guestv1.ToNode_Exited:
		if p := n.named(say.Exited.ProcessId); p != nil {
			p.mu.Lock()
			if p.exit == nil {
				p.exit = say.Exited
				close(p.done)
			}
			p.changed.Broadcast()
			p.mu.Unlock()
		}
	case *guestv1.ToNode_StdinAck:
		if p := n.named(say.StdinAck.ProcessId); p != nil {
			p.mu.Lock()
			p.stdinAck = max(p.stdinAck, say.StdinAck.Offset)
			p.changed.Broadcast()
			p.mu.Unlock()
		}
	case *guestv1.ToNode_Log:
		n.mu.Lock()
		n.logs = append(n.logs, say.Log)
		n.mu.Unlock()
	default:
		n.mu.Lock()
		reply := n.calls[m.ReplyTo]
		delete(n.calls, m.ReplyTo)
		n.mu.Unlock()
		if reply == nil {
			n.t.Errorf("a reply to nothing: %v", m)
			return
		}
		reply <- m
	}
}

func (n *node) process(stream uint64) *proc {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.procs[stream]
}

func (n *node) named(id string) *proc {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.procs {
		if p.id == id {
			return p
		}
	}
	return nil
}

func (p *proc) output(stream wire.FrameType, offset int64, data []byte) {
	p.mu.Lock()
	end := offset + int64(len(data))
	switch {
	case offset > p.next:
		p.n.t.Errorf("%s: output at %d, expected %d", p.id, offset, p.next)
	case end <= p.next:
		data = nil
	default:
		data = data[p.next-offset:]
		p.next = end
	}
	if p.exit != nil && len(data) > 0 {
		p.afterExit = true
	}
	p.runs++
	switch {
	case p.unkept:
	case stream == wire.FrameStdout:
		p.out.Write(data)
	default:
		p.err.Write(data)
	}
	p.changed.Broadcast()
	next := p.next
	p.mu.Unlock()
	if !p.n.mute.Load() {
		p.n.send(&guestv1.ToAgent{Message: &guestv1.ToAgent_Ack{Ack: &guestv1.Ack{ProcessId: p.id, Offset: next}}})
	}
}

// send says something that needs no answer.
func (n *node) send(m *guestv1.ToAgent) {
	b, err := proto.Marshal(m)
	if err != nil {
		n.t.Error(err)
		return
	}
	n.write(wire.AppendMessage(nil, b))
}

func (n *node) write(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		n.conn.Write(b)
	}
}

// call asks and waits for the answer; nil when none comes.
func (n *node) call(m *guestv1.ToAgent) *guestv1.ToNode {
	n.t.Helper()
	m.Id = n.ids.Add(1)
	reply := make(chan *guestv1.ToNode, 1)
	n.mu.Lock()
	n.calls[m.Id] = reply
	n.mu.Unlock()
	n.send(m)
	select {
	case r := <-reply:
		return r
	case <-time.After(patience):
		n.t.Errorf("no answer to %v", m)
		return &guestv1.ToNode{}
	}
}

// must fails the test on a problem.
func (n *node) must(r *guestv1.ToNode) *guestv1.ToNode {
	n.t.Helper()
	if p := r.GetProblem(); p != nil {
		n.t.Fatalf("problem %s: %s (%s)", p.Reason, p.Detail, p.Field)
	}
	return r
}

func (n *node) hello() *guestv1.Hello {
	n.t.Helper()
	select {
	case h := <-n.hellos:
		return h
	case <-time.After(patience):
		n.t.Fatal("no hello")
		return nil
	}
}

// cut ends the control connection.
func (n *node) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		n.conn.Close()
		n.conn = nil
	}
}

// try starts a process and returns the answer with it.
func (n *node) try(s *guestv1.Start) (*proc, *guestv1.ToNode) {
	n.t.Helper()
	s.Stream = n.streams.Add(1)
	if s.ProcessId == "" {
		s.ProcessId = fmt.Sprintf("prc_%d", s.Stream)
	}
	p := &proc{n: n, id: s.ProcessId, stream: s.Stream, done: make(chan struct{})}
	p.changed = sync.NewCond(&p.mu)
	n.mu.Lock()
	n.procs[p.stream] = p
	n.mu.Unlock()
	r := n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Start{Start: s}})
	p.pid = r.GetStarted().GetPid()
	return p, r
}

func (n *node) start(s *guestv1.Start) *proc {
	n.t.Helper()
	p, r := n.try(s)
	n.must(r)
	return p
}

func (n *node) shell(command string) *proc {
	n.t.Helper()
	return n.start(&guestv1.Start{Shell: command})
}

// run runs a command to its end and returns its output.
func (n *node) run(s *guestv1.Start) (stdout, stderr string, exit *guestv1.Exited) {
	n.t.Helper()
	p := n.start(s)
	exit = p.wait()
	return p.stdout(), p.stderr(), exit
}

func (n *node) sh(command string) string {
	n.t.Helper()
	out, errs, exit := n.run(&guestv1.Start{Shell: command})
	if exit.Code != 0 {
		n.t.Errorf("%s: exit %d, stderr %q", command, exit.Code, errs)
	}
	return strings.TrimSpace(out)
}

// wait returns the exit, after which the process is forgotten.
func (p *proc) wait() *guestv1.Exited {
	p.n.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.n.t.Fatalf("%s does not end; stdout %.200q, stderr %.200q", p.id, p.stdout(), p.stderr())
	}
	p.n.send(&guestv1.ToAgent{Message: &guestv1.ToAgent_Forget{Forget: &guestv1.Forget{ProcessId: p.id}}})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit.Produced != p.next {
		p.n.t.Errorf("%s: produced %d, arrived %d", p.id, p.exit.Produced, p.next)
	}
	return p.exit
}

func (p *proc) stdout() string { p.mu.Lock(); defer p.mu.Unlock(); return p.out.String() }
func (p *proc) stderr() string { p.mu.Lock(); defer p.mu.Unlock(); return p.err.String() }

// until waits for a condition on the process's state, which it calls with the lock held.
func (p *proc) until(what string, holds func() bool) {
	p.n.t.Helper()
	expired := false
	timer := time.AfterFunc(patience, func() { p.mu.Lock(); expired = true; p.changed.Broadcast(); p.mu.Unlock() })
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !holds() {
		if expired {
			p.n.t.Fatalf("%s: never %s; stdout %.200q", p.id, what, p.out.String())
		}
		p.changed.Wait()
	}
}

func (p *proc) says(text string) {
	p.n.t.Helper()
	p.until("said "+text, func() bool { return strings.Contains(p.out.String(), text) })
}

func (p *proc) signal(sig int32, tree bool) *guestv1.ToNode {
	p.n.t.Helper()
	return p.n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Signal{Signal: &guestv1.Signal{ProcessId: p.id, Signal: sig, Tree: tree}}})
}

func (p *proc) input(offset int64, data []byte) {
	for len(data) > 0 {
		run := min(len(data), wire.MaxDataRun)
		p.n.write(wire.AppendData(nil, wire.FrameStdin, p.stream, offset, data[:run]))
		offset, data = offset+int64(run), data[run:]
	}
}

func (p *proc) closeStdin() {
	p.n.must(p.n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_CloseStdin{CloseStdin: &guestv1.CloseStdin{ProcessId: p.id}}}))
}

// processes lists what runs.
func (n *node) processes() []*guestv1.Process {
	n.t.Helper()
	return n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_ListProcesses{ListProcesses: &guestv1.ListProcesses{}}})).GetProcesses().GetProcesses()
}

// eventually polls until holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// transfer opens a bulk connection.
func (n *node) transfer(b *guestv1.Bulk) *net.UnixConn {
	n.t.Helper()
	var token [wire.TokenLen]byte
	rand.Read(token[:])
	b.Token = token[:]
	waiting := make(chan *net.UnixConn, 1)
	n.mu.Lock()
	n.bulk[token] = waiting
	n.mu.Unlock()
	n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Bulk{Bulk: b}}))
	select {
	case conn := <-waiting:
		conn.SetDeadline(time.Now().Add(patience))
		return conn
	case <-time.After(patience):
		n.t.Fatal("no connection for a transfer")
		return nil
	}
}

func readHeader(t *testing.T, frames *wire.Reader) *guestv1.BulkHeader {
	t.Helper()
	f, err := frames.Read()
	if err != nil || f.Type != wire.FrameHeader {
		t.Fatalf("frame %d, %v instead of a header", f.Type, err)
	}
	var h guestv1.BulkHeader
	if err := proto.Unmarshal(f.Payload, &h); err != nil {
		t.Fatal(err)
	}
	return &h
}

// upload writes a file and returns the header that the agent answers with.
func (n *node) upload(w *guestv1.WriteFile, content io.Reader) *guestv1.BulkHeader {
	n.t.Helper()
	conn := n.transfer(&guestv1.Bulk{Transfer: &guestv1.Bulk_WriteFile{WriteFile: w}})
	defer conn.Close()
	out := bufio.NewWriterSize(conn, 1<<18)
	buf := make([]byte, wire.MaxFrame)
	for {
		run, err := io.ReadFull(content, buf)
		if run > 0 {
			out.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: buf[:run]}))
		}
		if err != nil {
			break
		}
	}
	out.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameCommit}))
	out.Flush()
	return readHeader(n.t, wire.NewReader(conn))
}

// download reads a file; complete is false when its end did not come.
func (n *node) download(r *guestv1.ReadFile, to io.Writer) (h *guestv1.BulkHeader, complete bool) {
	n.t.Helper()
	conn := n.transfer(&guestv1.Bulk{Transfer: &guestv1.Bulk_ReadFile{ReadFile: r}})
	defer conn.Close()
	frames := wire.NewReader(bufio.NewReaderSize(conn, 1<<18))
	if h = readHeader(n.t, frames); h.Problem != nil {
		return h, false
	}
	for {
		f, err := frames.Read()
		switch {
		case err != nil:
			return h, false
		case f.Type == wire.FrameEnd:
			return h, true
		}
		to.Write(f.Payload)
	}
}
