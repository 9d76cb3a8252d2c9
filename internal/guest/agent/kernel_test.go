package agent_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

func (n *node) contexts() []*guestv1.Context {
	n.t.Helper()
	return n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_ListContexts{ListContexts: &guestv1.ListContexts{}}})).GetContexts().GetItems()
}

func (c *cells) close() *guestv1.ToNode {
	return c.n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_CloseContext{CloseContext: &guestv1.CloseContext{ContextId: c.id}}})
}

func (c *cells) restart() *guestv1.ToNode {
	return c.n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_RestartContext{RestartContext: &guestv1.RestartContext{ContextId: c.id}}})
}

func (c *cells) interrupt() *guestv1.ToNode {
	return c.n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_InterruptContext{InterruptContext: &guestv1.InterruptContext{ContextId: c.id}}})
}

func TestContextsAreOpenedOnceListedAndClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		again := n.must(n.tryOpen(&guestv1.OpenContext{ContextId: c.id, Language: "python", Argv: []string{"python3"}})).GetContext()
		if again.GetContextId() != c.id || len(n.contexts()) != 1 || n.contexts()[0].Pid != again.Pid {
			t.Errorf("opened again: %v, %v", again, n.contexts())
		}
		c.run("import subprocess; subprocess.Popen(['sleep', '7011'], start_new_session=True)")
		if l := n.contexts()[0]; l.ExecutionCount != 1 || l.Status != "idle" || l.Language != "python" || l.LastUsedUnixMs < l.CreatedUnixMs {
			t.Errorf("listed %v", l)
		}
		p := c.begin("while True: pass")
		eventually(t, "the context is busy", func() bool { return n.contexts()[0].Status == "busy" })
		q := c.begin("1")
		n.must(c.close())
		for _, p := range []*proc{p, q} {
			if o := p.ended(); o.exit.Code != 137 || o.exit.Signal != 9 || !o.ContextLost {
				t.Errorf("a run of a closed context: %v %v", o.exit, o.CodeReport)
			}
		}
		for _, left := range n.processes() {
			if command := strings.Join(left.Command, " "); strings.Contains(command, "driver") || n.sandbox && strings.Contains(command, "7011") {
				t.Errorf("left: %v", left)
			}
		}
		if _, r := n.try(&guestv1.Start{Code: &guestv1.Code{ContextId: c.id, Source: []byte("1")}}); r.GetProblem().GetReason() != "not_found" {
			t.Errorf("a run in a closed context: %v", r)
		}
		for _, r := range []*guestv1.ToNode{c.close(), c.restart(), c.interrupt()} {
			if r.GetProblem().GetReason() != "not_found" {
				t.Errorf("a closed context: %v", r)
			}
		}
		if len(n.contexts()) != 0 {
			t.Errorf("listed: %v", n.contexts())
		}
	})
}

func TestWhatCannotBecomeAContextIsNamed(t *testing.T) {
	n := native(t)
	for field, c := range map[string]*guestv1.OpenContext{
		"language": {Language: "cobol", Argv: []string{"cobol"}}, "cwd": {Language: "python", Argv: []string{"/usr/bin/python3"}, Cwd: "/nope"},
		"user": {Language: "python", Argv: []string{"/usr/bin/python3"}, User: "nobody-at-all"},
		"env":  {Language: "python", Argv: []string{"/usr/bin/python3"}, Env: map[string]string{"A=B": "c"}},
	} {
		c.ContextId = "ctx_" + field
		if p := n.tryOpen(c).GetProblem(); p.GetReason() != "unprocessable" || p.Field != field {
			t.Errorf("%s: %v", field, p)
		}
	}
	if p := n.tryOpen(&guestv1.OpenContext{ContextId: "ctx_x", Language: "python", Argv: []string{"no-such-python"}}).GetProblem(); !strings.Contains(p.GetDetail(), "no-such-python: not found") {
		t.Errorf("no interpreter: %v", p)
	}
	if len(n.contexts()) != 0 {
		t.Errorf("open: %v", n.contexts())
	}
	c := n.open("sh")
	if _, r := n.try(&guestv1.Start{Code: &guestv1.Code{ContextId: c.id, Language: "bash", Source: []byte("1")}}); r.GetProblem().GetField() != "language" {
		t.Errorf("another language: %v", r)
	}
}

func TestAContextHasTheUserDirectoryAndEnvironmentThatWereAsked(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		n.must(n.tryOpen(&guestv1.OpenContext{
			ContextId: "ctx_mine", Language: "sh", Argv: []string{"sh"}, User: "12345:678", Cwd: "/usr", Env: map[string]string{"MINE": "a\nb=c"}}))
		c := &cells{n: n, id: "ctx_mine"}
		if o := c.run(`echo "$(id -u):$(id -g) $PWD $MINE $FROM_CLAIM"`); o.out != "12345:678 /usr a\nb=c yes\n" {
			t.Errorf("%q %q", o.out, o.err)
		}
	})
}

func TestRunsOfAContextQueueUpAndAtMostSixtyFourWait(t *testing.T) {
	n := native(t)
	c := n.open("python")
	first := c.begin("import sys\nprint('in')\nwhile True: pass")
	first.says("in")
	var all []*proc
	for i := range 64 {
		all = append(all, c.begin(fmt.Sprintf("print(%d)", i)))
	}
	if _, r := n.try(&guestv1.Start{Code: &guestv1.Code{ContextId: c.id, Source: []byte("1")}}); r.GetProblem().GetReason() != "conflict" {
		t.Errorf("one more: %v", r)
	}
	n.must(all[5].signal(2, false))
	n.must(all[6].signal(9, true))
	if o := all[5].ended(); o.exit.Code != 130 || o.ContextLost {
		t.Errorf("interrupted while it waited: %v %v", o.exit, o.CodeReport)
	}
	if o := all[6].ended(); o.exit.Signal != 9 || o.ContextLost {
		t.Errorf("killed while it waited: %v %v", o.exit, o.CodeReport)
	}
	n.must(c.interrupt())
	if o := first.ended(); o.exit.Code != 130 {
		t.Errorf("%v", o.exit)
	}
	for i, p := range all {
		if i == 5 || i == 6 {
			continue
		}
		if o := p.ended(); o.out != fmt.Sprintln(i) {
			t.Errorf("run %d: %q %q %v", i, o.out, o.err, o.exit)
		}
	}
}

func TestARestartGivesAFreshInterpreterAndEndsWhatRan(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		c.run("x = 1")
		n.must(c.interrupt()) // nothing runs: nothing happens
		p := c.begin("print('in')\nwhile True: pass")
		p.says("in")
		waits := c.begin("print(x)")
		before := n.contexts()[0].Pid
		n.must(c.restart())
		for _, p := range []*proc{p, waits} {
			if o := p.ended(); o.exit.Code != 137 || o.exit.Signal != 9 || !o.ContextLost {
				t.Errorf("%v %v", o.exit, o.CodeReport)
			}
		}
		if o := c.run("print('x' in globals())"); o.out != "False\n" || o.ContextLost || o.ExecutionCount != 3 {
			t.Errorf("%q %q %v", o.out, o.err, o.CodeReport)
		}
		if after := n.contexts()[0].Pid; after == before || after == 0 {
			t.Errorf("pid %d, before %d", after, before)
		}
	})
}

func TestAStateThatWasLostWhileNothingRanIsToldToTheNextRun(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		c.run("import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), os._exit(4))).start()")
		before := n.contexts()[0].Pid
		eventually(t, "the interpreter has ended", func() bool { l := n.contexts(); return l[0].Pid != before })
		if o := c.run("print(1)"); o.out != "1\n" || !o.ContextLost || o.exit.Code != 0 {
			t.Errorf("%q %v %v", o.out, o.exit, o.CodeReport)
		}
		if o := c.run("print(2)"); o.out != "2\n" || o.ContextLost {
			t.Errorf("%q %v", o.out, o.CodeReport)
		}
	})
}

func TestRunsAndContextsOutliveTheConnection(t *testing.T) {
	n := native(t)
	c := n.open("python")
	c.run("x = 41")
	p := c.begin("print('in')\nimport time\nwhile not done: time.sleep(.01)\nprint('out')")
	p.ended()
	p = c.begin("import os, time\nprint('in')\nwhile not os.path.exists('go'): time.sleep(.01)\nprint('out', x + 1)")
	p.says("in")
	waits := c.begin("print('later')")
	n.cut()
	h := n.hello()
	if len(h.Processes) != 2 || h.Processes[0].ProcessId != p.id || h.Processes[0].Pid == 0 || h.Processes[0].Produced != 3 || h.Processes[1].ProcessId != waits.id {
		t.Errorf("hello %v", h)
	}
	n.sh("touch go")
	if o := p.ended(); o.out != "in\nout 42\n" {
		t.Errorf("%q %q", o.out, o.err)
	}
	if o := waits.ended(); o.out != "later\n" {
		t.Errorf("%q %q", o.out, o.err)
	}
	if l := n.contexts(); len(l) != 1 || l[0].ExecutionCount != 4 {
		t.Errorf("contexts %v", l)
	}
}

func TestOutputBetweenRunsIsNobodys(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("bash")
		c.run("{ while :; do printf '%0100000d' 0; touch wrote; sleep .05; done; } 2>/dev/null &\njob=$!")
		eventually(t, "the pipe was emptied between runs", func() bool {
			n.sh("rm -f wrote; for i in $(seq 100); do [ -e wrote ] && exit; sleep .05; done; exit 1")
			return true
		})
		c.run("kill $job; wait $job")
		if o := c.run("echo alone"); o.out != "alone\n" || o.exit.Produced != 6 {
			t.Errorf("%d bytes, %q", o.exit.Produced, o.err)
		}
	})
}

func TestARunThatNobodyReadsHoldsUpItsContextAndNoOther(t *testing.T) {
	n := native(t)
	c, other := n.open("python"), n.open("python")
	n.mute.Store(true)
	p := c.begin("print('x' * 3_000_000)")
	p.until("filled the window", func() bool { return p.next >= 128<<10 })
	next := c.begin("print('next')")
	if o := other.run("print('fine')"); o.out != "fine\n" {
		t.Errorf("%q", o.out)
	}
	n.mute.Store(false)
	n.send(&guestv1.ToAgent{Message: &guestv1.ToAgent_Ack{Ack: &guestv1.Ack{ProcessId: p.id, Offset: p.next}}})
	if o := p.ended(); len(o.out) != 3_000_001 {
		t.Errorf("%d bytes", len(o.out))
	}
	if o := next.ended(); o.out != "next\n" {
		t.Errorf("%q", o.out)
	}
}

// What a program writes to the socket of its own interpreter ends at most its context.
func TestAProgramThatForgesControlMessagesHarmsOnlyItself(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		other := n.open("python")
		other.run("x = 41")
		for _, forged := range []string{
			"b'garbage\\n'", "b'x' * 5000", "b'done 1 99999999999\\n'", "b'main 1 10\\nno parts at all\\n'", "b'main 1 999999999\\n'",
			"b'main 1 16777216\\n' + b'text/plain 16777200 data\\n\\n'", "b'error 1 3\\nabc'", "b'done 1 3\\nabc'", "b'\\xff\\xfe 1 1\\n'", "b'done -1 1\\n0'", "b'begin 1 5\\nhello'",
			"b'main 1 40\\ntext/plain 99 data\\n\\n' + b'x' * 99", "b'main 1 8\\na/b 5 x\\n'", "b'main 1 0\\n'", "b'unknown 1 0\\n'", "b'done 1 1\\n'",
			"b'main 1 17\\n../../etc 0 data\\n\\n'",
		} {
			c := n.open("python")
			p := c.begin("import os, time\nprint('in')\nos.write(3, " + forged + ")\nos.close(3)\ntime.sleep(100)")
			p.says("in")
			n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Signal{Signal: &guestv1.Signal{ProcessId: p.id, Signal: 9, Tree: true}}}) // some wait for more
			if o := p.ended(); !o.ContextLost || o.exit.Code == 0 {
				t.Errorf("%s: %v %v %q", forged, o.exit, o.CodeReport, o.err)
			}
			if o := c.run("print('again')"); o.out != "again\n" {
				t.Errorf("%s: afterwards %q %q", forged, o.out, o.err)
			}
			n.must(c.close())
		}
		c := n.open("python")
		o := c.run("import os\nfor m in (b'done 7 1\\n0', b'main 2 20\\ntext/plain 1 data\\n\\nx', b'error 9 5\\na\\0b\\0c', b'ready 0 0\\n', b'drop 1 0\\n'): os.write(3, m)\nprint('fine')")
		if o.out != "fine\n" || o.exit.Code != 0 || len(o.Results) != 0 || o.Error != nil || !o.ResultsTruncated {
			t.Errorf("messages of other runs: %v %q %v", o.exit, o.out, o.CodeReport)
		}
		if o := other.run("print(x + 1)"); o.out != "42\n" || o.ContextLost {
			t.Errorf("another context: %q %v", o.out, o.CodeReport)
		}
	})
}

func TestAProgramThatFloodsItsControlSocketCanBeKilled(t *testing.T) {
	n := native(t)
	c := n.open("python")
	p := c.begin("import os\nprint('in', flush=True)\nwhile True: os.write(3, b'drop 1 0\\n' * 100)")
	p.says("in")
	n.must(p.signal(9, true))
	if o := p.ended(); o.exit.Signal != 9 || !o.ContextLost {
		t.Errorf("%v %v", o.exit, o.CodeReport)
	}
}

func TestManyContextsRunAtTheSameTime(t *testing.T) {
	n := native(t)
	var all sync.WaitGroup
	for i := range 8 {
		c := n.open([]string{"python", "bash"}[i%2])
		all.Go(func() {
			for j := range 20 {
				source := fmt.Sprintf("echo %d", j)
				if c.language == "python" {
					source = fmt.Sprintf("print(%d)", j)
				}
				if o := c.run(source); o.out != fmt.Sprintln(j) {
					t.Errorf("%s %d: %q %q", c.language, j, o.out, o.err)
				}
			}
		})
	}
	all.Wait()
}

func TestTheDeathOfAnInterpreterIsLogged(t *testing.T) {
	n := native(t)
	c := n.open("python")
	c.run("import os\nos._exit(4)")
	eventually(t, "the node is told", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, l := range n.logs {
			if l.Level == "warn" && strings.Contains(l.Message, c.id) && strings.Contains(l.Message, "exit code 4") {
				return true
			}
		}
		return false
	})
}
