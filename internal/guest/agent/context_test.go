package agent_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

// interpreters are those of this machine.
var interpreters = map[string][]string{
	"python": {"/usr/bin/python3"}, "javascript": {"node"}, "bash": {"bash"}, "sh": {"sh"}, "php": {"php"}, "ruby": {"ruby"},
}

// requireInterpreter skips a test without the language's interpreter, unless every test is required.
func requireInterpreter(t *testing.T, language string) []string {
	t.Helper()
	argv := interpreters[language]
	file, err := exec.LookPath(argv[0])
	if err == nil && language == "php" { // a link through /etc, which a sandbox of the tests has not
		file, err = filepath.EvalSymlinks(file)
		argv = []string{file}
	}
	if err != nil {
		if os.Getenv("CAY_TEST_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return argv
}

// cells is an open context.
type cells struct {
	n        *node
	id       string
	language string
}

func (n *node) tryOpen(c *guestv1.OpenContext) *guestv1.ToNode {
	n.t.Helper()
	return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_OpenContext{OpenContext: c}})
}

func (n *node) open(language string) *cells {
	n.t.Helper()
	c := &cells{n: n, id: fmt.Sprintf("ctx_%d", n.streams.Add(1)), language: language}
	opened := n.must(n.tryOpen(&guestv1.OpenContext{ContextId: c.id, Language: language, Argv: requireInterpreter(n.t, language)})).GetContext()
	if opened.GetContextId() != c.id || opened.Status != "idle" || opened.Pid == 0 {
		n.t.Errorf("opened %v", opened)
	}
	n.t.Cleanup(func() {
		n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_CloseContext{CloseContext: &guestv1.CloseContext{ContextId: c.id}}})
	})
	return c
}

func (c *cells) begin(source string) *proc {
	c.n.t.Helper()
	return c.n.start(&guestv1.Start{Code: &guestv1.Code{ContextId: c.id, Source: []byte(source)}})
}

// outcome is a program that has ended.
type outcome struct {
	out, err string
	exit     *guestv1.Exited
	*guestv1.CodeReport
}

// ended waits for the end of code and reads its report.
func (p *proc) ended() outcome {
	p.n.t.Helper()
	p.until("ended", func() bool { return p.exit != nil })
	o := outcome{exit: p.exit, CodeReport: &guestv1.CodeReport{}}
	encoded := p.exit.Report
	if p.exit.ReportBytes > 0 {
		encoded = p.n.readReport(p.id)
		if int64(len(encoded)) != p.exit.ReportBytes {
			p.n.t.Errorf("a report of %d bytes, %d were said", len(encoded), p.exit.ReportBytes)
		}
	}
	if err := proto.Unmarshal(encoded, o.CodeReport); err != nil {
		p.n.t.Fatalf("report: %v", err)
	}
	p.wait()
	o.out, o.err = p.stdout(), p.stderr()
	return o
}

func (n *node) readReport(id string) []byte {
	n.t.Helper()
	conn := n.transfer(&guestv1.Bulk{Transfer: &guestv1.Bulk_ReadReport{ReadReport: &guestv1.ReadReport{ProcessId: id}}})
	defer conn.Close()
	frames := wire.NewReader(conn)
	if h := readHeader(n.t, frames); h.GetDone() == nil {
		n.t.Fatalf("header %v", h)
	}
	var b bytes.Buffer
	for {
		f, err := frames.Read()
		if err != nil {
			n.t.Fatalf("the report is cut after %d bytes: %v", b.Len(), err)
		}
		if f.Type == wire.FrameEnd {
			return b.Bytes()
		}
		b.Write(f.Payload)
	}
}

func (c *cells) run(source string) outcome {
	c.n.t.Helper()
	return c.begin(source).ended()
}

// main is the text of the value of the last expression.
func (o outcome) main(mime string) string {
	for _, r := range o.Results {
		for _, d := range r.Data {
			if r.IsMain && d.Mime == mime {
				return string(d.Data)
			}
		}
	}
	return ""
}

// dialect is how a language says what every test needs.
type dialect struct {
	set, get   string // a variable, and its value printed
	print      string // "hi" and a line end
	forever    string // a loop that only an interrupt ends, after it has printed "in"
	sleeps     string // a child that sleeps, after "in" was printed
	fails      string
	exits      string // ends the interpreter with 3
	crash      string
	megabyte   string // prints 1,048,576 bytes: lines of 63 digits
	background string // leaves a child that holds the pipe
}

var dialects = map[string]dialect{
	"python": {
		set: "x = 41", get: "print(x + 1)", print: "print('hi')",
		forever: "print('in')\nwhile True: pass", sleeps: "import subprocess\nsubprocess.run('echo in; exec sleep 100', shell=True)",
		fails: "1/0", exits: "import os\nos._exit(3)", crash: "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
		megabyte:   "for i in range(16384): print('%063d' % i)",
		background: "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nprint('left')",
	},
	"javascript": {
		set: "const x = 41", get: "console.log(x + 1)", print: "console.log('hi')",
		forever: "console.log('in'); while (true) {}", sleeps: "require('child_process').execSync('echo in; exec sleep 100', {stdio: 'inherit'})",
		fails: "null.x", exits: "process.exit(3)", crash: "process.kill(process.pid, 'SIGSEGV'); for (;;) {}",
		megabyte:   "for (let i = 0; i < 16384; i++) console.log(String(i).padStart(63, '0'))",
		background: "require('child_process').spawn('sleep', ['100'], {stdio: 'inherit'}); console.log('left')",
	},
	"bash": {
		set: "x=41", get: "echo $((x + 1))", print: "echo hi",
		forever: "echo in; while :; do :; done", sleeps: "echo in; sleep 100; echo after", fails: "false", exits: "exit 3", crash: "kill -SEGV $$; sleep 100",
		megabyte: "for ((i = 0; i < 16384; i++)); do printf '%063d\\n' $i; done", background: "sleep 100 & echo left",
	},
	"sh": {
		set: "x=41", get: "echo $((x + 1))", print: "echo hi",
		forever: "echo in; while :; do :; done", sleeps: "echo in; sleep 100; echo after", fails: "false", exits: "exit 3", crash: "kill -SEGV $$; sleep 100",
		megabyte: "i=0; while [ $i -lt 16384 ]; do printf '%063d\\n' $i; i=$((i + 1)); done", background: "sleep 100 & echo left",
	},
	"php": {
		set: "$x = 41;", get: "echo $x + 1, \"\\n\";", print: "echo \"hi\\n\";",
		forever: "echo \"in\\n\"; while (true) {}", sleeps: "passthru('echo in; exec sleep 100');", fails: "throw new Exception('no');",
		exits: "exit(3);", crash: "exec('kill -SEGV ' . getmypid()); while (true) {}",
		megabyte:   "for ($i = 0; $i < 16384; $i++) printf(\"%063d\\n\", $i);",
		background: "proc_open('sleep 100', [], $pipes); echo \"left\\n\";",
	},
	"ruby": {
		set: "x = 41", get: "puts x + 1", print: "puts 'hi'",
		forever: "puts 'in'; loop {}", sleeps: "system('echo in; exec sleep 100')", fails: "raise 'no'", exits: "exit!(3)",
		crash:      "Process.kill('KILL', Process.pid); sleep",
		megabyte:   "16384.times { |i| puts '%063d' % i }",
		background: "spawn('sleep 100'); puts 'left'",
	},
}

// eachLanguage runs a test with every language that has contexts.
func eachLanguage(t *testing.T, n *node, test func(t *testing.T, c *cells, d dialect)) {
	names := make([]string, 0, len(dialects))
	for name := range dialects {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			mine := n.t
			n.t = t
			defer func() { n.t = mine }()
			test(t, n.open(name), dialects[name])
		})
	}
}

func TestAContextKeepsItsStateCountsItsRunsAndTellsExitCodes(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
			if o := c.run(d.set); o.exit.Code != 0 || o.out != "" || o.err != "" || o.ExecutionCount != 1 || o.ContextLost {
				t.Errorf("set: %v %q %q %v", o.exit, o.out, o.err, o.CodeReport)
			}
			if o := c.run(d.get); o.exit.Code != 0 || o.out != "42\n" || o.err != "" || o.ExecutionCount != 2 {
				t.Errorf("get: %v %q %q %v", o.exit, o.out, o.err, o.CodeReport)
			}
			if o := c.run(d.fails); o.exit.Code != 1 || o.exit.Signal != 0 || o.ContextLost {
				t.Errorf("a failure: %v %q %v", o.exit, o.err, o.CodeReport)
			}
			if o := c.run(d.get); o.out != "42\n" {
				t.Errorf("after a failure: %q %q", o.out, o.err)
			}
		})
	})
}

func TestAnInterruptEndsALoopOrAChildAndLeavesTheState(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
			c.run(d.set)
			for _, source := range []string{d.forever, d.sleeps, d.forever} {
				p := c.begin(source)
				p.says("in\n")
				n.must(p.signal(2, false))
				if o := p.ended(); o.exit.Code != 130 || o.exit.Signal != 0 || o.ContextLost || strings.Contains(o.out, "after") || strings.Contains(o.Error.GetTraceback(), "/driver") {
					t.Errorf("%s: %v %q %q %v", source, o.exit, o.out, o.err, o.CodeReport)
				}
				if o := c.run(d.get); o.out != "42\n" || o.ContextLost {
					t.Errorf("state after %s: %q %q %v", source, o.out, o.err, o.CodeReport)
				}
			}
		})
	})
}

func TestAnInterruptThatComesAtOnceIsNotLost(t *testing.T) {
	n := native(t)
	eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
		for range 5 {
			p := c.begin(d.forever)
			n.must(p.signal(2, false))
			if o := p.ended(); o.exit.Code != 130 || o.ContextLost {
				t.Errorf("%v %q %v", o.exit, o.err, o.CodeReport)
			}
		}
		if o := c.run(d.print); o.out != "hi\n" || o.ContextLost {
			t.Errorf("afterwards %q %q", o.out, o.err)
		}
	})
}

func TestAMegabyteOfLinesArrivesWholeAndInOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		var want strings.Builder
		for i := range 16384 {
			fmt.Fprintf(&want, "%063d\n", i)
		}
		eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
			for range 2 {
				if o := c.run(d.megabyte); o.out != want.String() || o.exit.Code != 0 {
					t.Errorf("%d bytes, exit %v, stderr %.200q", len(o.out), o.exit, o.err)
				}
			}
		})
	})
}

func TestAnInterpreterThatDiesEndsItsRunAndIsReplaced(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
			c.run(d.set)
			if o := c.run(d.exits); o.exit.Code != 3 || o.exit.Signal != 0 || !o.ContextLost {
				t.Errorf("exit: %v %v %q", o.exit, o.CodeReport, o.err)
			}
			if o := c.run(d.print); o.out != "hi\n" || o.ContextLost || o.exit.Code != 0 {
				t.Errorf("after it: %v %q %q", o.exit, o.out, o.err)
			}
			if o := c.run(d.crash); o.exit.Signal == 0 || o.exit.Code != 128+o.exit.Signal || !o.ContextLost {
				t.Errorf("crash: %v %v", o.exit, o.CodeReport)
			}
			for _, sig := range []int32{9, 15} {
				p := c.begin(d.forever)
				p.says("in\n")
				n.must(p.signal(sig, true))
				if o := p.ended(); o.exit.Signal != sig || o.exit.Code != 128+sig || !o.ContextLost {
					t.Errorf("signal %d: %v %v", sig, o.exit, o.CodeReport)
				}
			}
			if o := c.run(d.get); strings.Contains(o.out, "42") {
				t.Errorf("the state survived: %q", o.out)
			}
		})
	})
}

func TestABackgroundChildHoldsUpNoRun(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		eachLanguage(t, n, func(t *testing.T, c *cells, d dialect) {
			if o := c.run(d.background); o.out != "left\n" || o.exit.Code != 0 {
				t.Errorf("%v %q %q", o.exit, o.out, o.err)
			}
			if o := c.run(d.print); o.out != "hi\n" {
				t.Errorf("next: %q %q", o.out, o.err)
			}
		})
	})
}

func TestFifteenContextsAreIsolated(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		var all []*cells
		for i := range 15 {
			c := n.open("python")
			c.begin(fmt.Sprintf("x = %d", i))
			all = append(all, c)
		}
		for i, c := range all {
			if o := c.run("print(x)"); o.out != fmt.Sprintln(i) {
				t.Errorf("context %d: %q %q", i, o.out, o.err)
			}
		}
	})
}
