package agent_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestOutputOfBothStreamsArrivesSeparatelyWithTheCode(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		out, errs, exit := n.run(&guestv1.Start{Shell: "printf out; printf err >&2; exit 7"})
		if out != "out" || errs != "err" || exit.Code != 7 || exit.Signal != 0 {
			t.Fatalf("stdout %q, stderr %q, exit %v", out, errs, exit)
		}
	})
}

func TestParallelProcessesKeepTheirOwnCodes(t *testing.T) {
	n := native(t)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			p, r := n.try(&guestv1.Start{Argv: []string{"sh", "-c", fmt.Sprintf("exit %d", i)}})
			if r.GetProblem() != nil {
				t.Error(r)
				return
			}
			if exit := p.wait(); exit.Code != int32(i) {
				t.Errorf("exit %d of process %d", exit.Code, i)
			}
		})
	}
	all.Wait()
}

func TestWhatIsNotFoundOrNotExecutableEndsAsInAShell(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		n.sh("echo hello > plain; printf 'echo from a script' > script; chmod +x script")
		for _, c := range []struct {
			argv   []string
			code   int32
			stdout string
		}{
			{[]string{"nosuchcmd"}, 127, ""},
			{[]string{"/no/such/file"}, 127, ""},
			{[]string{dir + "/plain"}, 126, ""},
			{[]string{dir}, 126, ""},
			{[]string{"./script"}, 0, "from a script\n"},
		} {
			out, errs, exit := n.run(&guestv1.Start{Argv: c.argv})
			if exit.Code != c.code || out != c.stdout || (c.code != 0) != (errs != "") {
				t.Errorf("%v: exit %d, stdout %q, stderr %q", c.argv, exit.Code, out, errs)
			}
		}
	})
}

func TestAWrongDirectoryOrUserRunsNothingAndIsNamed(t *testing.T) {
	n := native(t)
	for field, s := range map[string]*guestv1.Start{
		"cwd":  {Shell: "touch ran", Cwd: "/nope"},
		"user": {Shell: "touch ran", User: "nobody-at-all"},
		"env":  {Shell: "touch ran", Env: map[string]string{"A=B": "c"}},
	} {
		_, r := n.try(s)
		if p := r.GetProblem(); p.GetReason() != "unprocessable" || p.GetField() != field {
			t.Errorf("%s: %v", field, r)
		}
	}
	if n.sh("ls") != "" {
		t.Error("something ran")
	}
	n.sh("mkdir closed; chmod 0 closed")
	_, r := n.try(&guestv1.Start{Shell: "true", Cwd: n.sh("pwd") + "/closed"})
	if r.GetProblem().GetField() != "cwd" {
		t.Errorf("a directory that may not be entered: %v", r)
	}
}

func TestAStartSaidTwiceRunsOnce(t *testing.T) {
	n := native(t)
	s := &guestv1.Start{ProcessId: "prc_once", Shell: "echo x >> count; exec sleep 100"}
	p := n.start(s)
	r := n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Start{Start: s}})
	if r.GetStarted().GetPid() != p.pid {
		t.Errorf("second answer %v, first pid %d", r, p.pid)
	}
	eventually(t, "the file is there", func() bool { return n.sh("cat count 2>/dev/null || true") == "x" })
	n.must(p.signal(9, true))
	if exit := p.wait(); exit.Code != 137 || exit.Signal != 9 || exit.Oom {
		t.Errorf("exit %v", exit)
	}
}

func TestAChildThatHoldsThePipesDoesNotHoldBackTheExit(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		p := n.shell("(until [ -e go ]; do sleep .1; done; echo late; echo alive > witness; sleep 100) & echo started")
		exit := p.wait() // it would not come while the child waits
		if exit.Code != 0 || p.stdout() != "started\n" {
			t.Fatalf("exit %v, stdout %q", exit, p.stdout())
		}
		n.sh("touch go")
		eventually(t, "the child outlives its write", func() bool { return n.sh("cat witness 2>/dev/null || true") == "alive" })
		if p.afterExit {
			t.Error("output came behind the exit")
		}
	})
}

func TestAllThatWasWrittenPrecedesTheExit(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		want := strings.Count(strings.Repeat("\n", 20000), "\n")
		for range 10 {
			out, _, _ := n.run(&guestv1.Start{Shell: "seq 1 20000; sleep 50 &"})
			if got := strings.Count(out, "\n"); got != want {
				t.Fatalf("%d lines", got)
			}
		}
	})
}

func TestTinyWritesOnAlternatingStreamsKeepTheirOrderWithinEach(t *testing.T) {
	n := native(t)
	p := n.start(&guestv1.Start{Shell: `for i in $(seq 5000); do echo "$i"; echo "$i" >&2; done`})
	p.wait()
	var want strings.Builder
	for i := range 5000 {
		fmt.Fprintln(&want, i+1)
	}
	if p.stdout() != want.String() || p.stderr() != want.String() {
		t.Errorf("%d and %d bytes, wanted %d", len(p.stdout()), len(p.stderr()), want.Len())
	}
}

func TestWithoutAcknowledgementsTheProgramStopsAndGoesOnWithThem(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		n.mute.Store(true)
		p := n.shell("head -c 5000000 /dev/zero; echo end")
		p.until("filled the window", func() bool { return p.next >= 128<<10 })
		for last, same := int64(-1), 0; same < 10; <-time.After(20 * time.Millisecond) {
			p.mu.Lock()
			if p.next == last {
				same++
			} else {
				last, same = p.next, 0
			}
			p.mu.Unlock()
		}
		if p.mu.Lock(); p.next > 256<<10 {
			t.Errorf("%d bytes without an acknowledgement", p.next)
		}
		p.mu.Unlock()
		n.mute.Store(false)
		n.send(&guestv1.ToAgent{Message: &guestv1.ToAgent_Ack{Ack: &guestv1.Ack{ProcessId: p.id, Offset: p.next}}})
		p.wait()
		if out := p.stdout(); len(out) != 5000004 || !strings.HasSuffix(out, "end\n") {
			t.Errorf("%d bytes", len(out))
		}
	})
}

func TestAfterAReconnectUnacknowledgedOutputAndTheExitComeAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		n.mute.Store(true)
		p := n.shell("echo one; read -t 2 x < /dev/zero; echo two; exit 5")
		q := n.shell("sleep 100")
		<-p.done
		n.mu.Lock() // as a node that has lost everything, while nothing is on the way
		fresh := &proc{n: n, id: p.id, stream: p.stream, done: make(chan struct{})}
		fresh.changed = sync.NewCond(&fresh.mu)
		n.procs[p.stream] = fresh
		n.mu.Unlock()
		n.cut()
		h := n.hello()
		if len(h.Processes) != 2 || !h.Claimed || h.Protocol != 1 {
			t.Fatalf("hello %v", h)
		}
		if r := h.Processes[0]; r.ProcessId != p.id || r.Stream != p.stream || r.Produced != 8 || r.Acknowledged != 0 || r.Pid != p.pid {
			t.Errorf("running %v", r)
		}
		if exit := fresh.wait(); exit.Code != 5 || fresh.stdout() != "one\ntwo\n" {
			t.Errorf("exit %v, stdout %q", exit, fresh.stdout())
		}
		n.must(q.signal(9, true))
		q.wait()
		n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Ping{Ping: &guestv1.Ping{}}}))
		n.cut()
		if h := n.hello(); len(h.Processes) != 0 {
			t.Errorf("forgotten processes are in the hello: %v", h)
		}
	})
}

func TestStdinArrivesWholeAndEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		p := n.start(&guestv1.Start{Shell: "wc -c", Stdin: true})
		block := []byte(strings.Repeat("x", 64<<10))
		for sent := int64(0); sent < 1<<20; sent += int64(len(block)) {
			p.until("took its input", func() bool { return sent+int64(len(block))-p.stdinAck <= 256<<10 })
			p.input(sent, block)
			p.input(sent, block[:100]) // said twice, taken once
		}
		p.closeStdin()
		p.wait()
		if got := strings.TrimSpace(p.stdout()); got != "1048576" {
			t.Errorf("%s bytes", got)
		}
		out, _, _ := n.run(&guestv1.Start{Shell: "cat; echo done"})
		if out != "done\n" {
			t.Errorf("without stdin: %q", out)
		}
	})
}

func TestInputForAProgramThatDoesNotReadIsTakenAndDropped(t *testing.T) {
	n := native(t)
	p := n.start(&guestv1.Start{Shell: "exec 0<&-; echo closed; sleep 100", Stdin: true})
	p.says("closed")
	p.input(0, make([]byte, 200<<10))
	p.until("took it", func() bool { return p.stdinAck == 200<<10 })
	n.must(p.signal(15, true))
	if exit := p.wait(); exit.Signal != 15 || exit.Code != 143 {
		t.Errorf("exit %v", exit)
	}
}

func TestATerminalHasASizeEchoesAndEndsOnCtrlD(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		p := n.start(&guestv1.Start{Tty: true, Login: true, Cols: 91, Rows: 17})
		offset := int64(0)
		keys := func(s string) {
			p.input(offset, []byte(s))
			offset += int64(len(s))
		}
		keys("PS1='<\\#> '; echo $0; stty size; tty\n")
		p.says("17 91")
		p.says("/dev/pts/")
		p.says("-bash")
		n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Resize{Resize: &guestv1.Resize{ProcessId: p.id, Cols: 100, Rows: 50}}}))
		keys("stty size\n")
		p.says("50 100")
		keys("sh -c 'echo a\"\"sleep; exec sleep 100'\n") // in the foreground when it says so
		p.says("asleep")
		keys("\x03")
		p.says("<4> ")
		keys("echo int$((40+2))errupted\n")
		p.says("int42errupted")
		p.says("<5> ")
		p.closeStdin()
		if exit := p.wait(); p.stderr() != "" {
			t.Errorf("exit %v, stderr %q", exit, p.stderr())
		}
	})
}

func TestAResizeInterruptsTheProgram(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		p := n.start(&guestv1.Start{Tty: true, Shell: "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep .1; done"})
		p.says("ready")
		n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Resize{Resize: &guestv1.Resize{ProcessId: p.id, Cols: 10, Rows: 5}}}))
		if exit := p.wait(); exit.Code != 3 || p.stdout() != "ready\r\n5 10\r\n" {
			t.Errorf("exit %v, stdout %q", exit, p.stdout())
		}
	})
}

func TestAnswersAfterAReconnectSayAgainHowMuchStdinWasTaken(t *testing.T) {
	n := native(t)
	p := n.start(&guestv1.Start{Shell: "cat >/dev/null", Stdin: true})
	p.input(0, make([]byte, 1000))
	p.until("took it", func() bool { return p.stdinAck == 1000 })
	p.mu.Lock()
	p.stdinAck = 0
	p.mu.Unlock()
	n.cut()
	if h := n.hello(); h.Processes[0].StdinOffset != 1000 {
		t.Errorf("hello %v", h)
	}
	p.until("said it again", func() bool { return p.stdinAck == 1000 })
	p.closeStdin()
	p.wait()
}

func TestUsersHaveTheirIdentityAndEnvironment(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		probe := `echo "$(id -u):$(id -g):$(id -G) $HOME $USER $SHELL $LANG $FROM_CLAIM $MINE"`
		for name, want := range map[string]string{
			"":          "2000:2000:2000 /home/sandbox sandbox",
			"root":      "0:0:0 /root root",
			"12345:678": "12345:678:678 /",
		} {
			out, errs, _ := n.run(&guestv1.Start{Shell: probe, User: name, Cwd: "/", Env: map[string]string{"MINE": "a\nb=c"}})
			if n.sandbox && name == "" {
				want = "2000:2000:2000 4000 /home/sandbox sandbox"
			}
			if !strings.HasPrefix(out, want) || !strings.Contains(out, "/bin/bash C.UTF-8 yes a\nb=c") {
				t.Errorf("user %q: %q, %q", name, out, errs)
			}
		}
	})
}

func TestAMegabyteOfEnvironmentArrives(t *testing.T) {
	n := native(t)
	env := map[string]string{}
	for i := range 8 {
		env[fmt.Sprintf("BIG%d", i)] = strings.Repeat("v", 100_000)
	}
	out, _, _ := n.run(&guestv1.Start{Shell: "env | wc -c", Env: env})
	if len(strings.TrimSpace(out)) != 6 {
		t.Errorf("env has %s bytes", out)
	}
	env["BIG8"] = strings.Repeat("v", 400_000)
	if _, r := n.try(&guestv1.Start{Shell: "true", Env: env}); r.GetProblem().GetField() != "env" {
		t.Errorf("too much: %v", r)
	}
}

func TestNoDescriptorOfTheAgentReachesAProgram(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		n.shell("sleep 100")
		if fds := n.sh("ls /proc/self/fd | tr '\\n' ' '"); fds != "0 1 2 3" { // 3 is ls's own
			t.Errorf("descriptors %s", fds)
		}
	})
}

func TestOrphansLeaveNoZombies(t *testing.T) {
	n := native(t)
	for range 100 {
		n.sh("for i in 1 2 3 4 5; do (sleep .05 &) ; done")
	}
	eventually(t, "no zombie is left", func() bool {
		for _, p := range n.processes() {
			if p.State == "Z" {
				return false
			}
		}
		return true
	})
}

func TestAKilledTreeIsGoneWhenTheAnswerComes(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		p := n.shell("setsid sh -c 'sleep 301 & sleep 302' & (sleep 303 | cat) & sleep 304 & echo up; wait; sleep 305") // a shell that outlives its children, should those be killed before it
		p.says("up")
		eventually(t, "all run", func() bool { return len(n.owned(p.id)) >= 6 })
		n.must(p.signal(9, true))
		if left := n.owned(p.id); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if exit := p.wait(); exit.Signal != 9 {
			t.Errorf("exit %v", exit)
		}
	})
}

// owned are the living processes that belong to a start.
func (n *node) owned(id string) (list []string) {
	for _, p := range n.processes() {
		if p.ProcessId == id && p.State != "Z" {
			list = append(list, strings.Join(p.Command, " "))
		}
	}
	return list
}
