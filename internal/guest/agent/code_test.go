package agent_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// program runs source as a process of its own.
func (n *node) program(language, source string, with ...func(*guestv1.Start)) outcome {
	n.t.Helper()
	s := &guestv1.Start{Code: &guestv1.Code{Language: language, Argv: requireInterpreter(n.t, language), Source: []byte(source)}}
	for _, f := range with {
		f(s)
	}
	return n.start(s).ended()
}

func TestAProgramRunsInEachLanguageAndLeavesNoFile(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		for language, source := range map[string]string{
			"python":     "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(5)",
			"javascript": "console.log('out'); console.error('err'); process.exitCode = 5",
			"bash":       "[[ 1 == 1 ]] && echo out; echo err >&2; exit 5",
			"sh":         "echo out; echo err >&2; exit 5",
			"php":        "echo \"out\\n\"; fwrite(STDERR, \"err\\n\"); exit(5);",
			"ruby":       "puts 'out'; warn 'err'; exit 5",
		} {
			if o := n.program(language, source); o.out != "out\n" || o.err != "err\n" || o.exit.Code != 5 || o.ExecutionCount != 0 || o.Error != nil {
				t.Errorf("%s: %q %q %v %v", language, o.out, o.err, o.exit, o.CodeReport)
			}
		}
		if o := n.program("javascript", "import fs from 'fs';\nconst x = await Promise.resolve(7);\nconsole.log(typeof fs.open, x)"); o.out != "function 7\n" {
			t.Errorf("a module: %q %q", o.out, o.err)
		}
		if o := n.program("php", "before <?php echo 1 + 1;"); o.out != "before 2" {
			t.Errorf("a page: %q %q", o.out, o.err)
		}
		o := n.program("python", "import os, sys\nprint(os.stat(__file__).st_mode & 0o777 == 0o400, os.stat(__file__).st_uid == os.getuid(), __file__)")
		f := strings.Fields(o.out)
		if len(f) != 3 || f[0] != "True" || f[1] != "True" || !strings.HasSuffix(f[2], ".py") {
			t.Fatalf("%q %q", o.out, o.err)
		}
		if out, _, _ := n.run(&guestv1.Start{Shell: "ls -A " + f[2][:strings.LastIndex(f[2], "/")], User: "root"}); strings.Contains(out, "code-") {
			t.Errorf("left: %s", out)
		}
		if o := n.program("python", "import os\nprint(os.getuid(), len(open(__file__).read()) > 0)", func(s *guestv1.Start) { s.User = "12345:678" }); o.out != "12345 True\n" {
			t.Errorf("another user: %q %q", o.out, o.err)
		}
	})
}

func TestAProgramLiesInTheDirectoryItAskedForAndNobodyButRootCanChangeIt(t *testing.T) {
	n := gvisor(t)
	in := func(directory string) func(*guestv1.Start) {
		return func(s *guestv1.Start) { s.Code.Directory, s.Cwd = directory, "/workspace" }
	}
	o := n.program("python", `
import os, stat
print(__file__, os.getcwd(), os.getuid() != 0)
for p in ('/sandbox', __file__):
    s = os.stat(p)
    print(oct(s.st_mode & 0o7777), s.st_uid, s.st_gid)
for what, attempt in {
    'write': lambda: open(__file__, 'w'), 'append': lambda: open(__file__, 'a'), 'remove': lambda: os.remove(__file__),
    'rename': lambda: os.rename(__file__, '/sandbox/other'), 'chmod': lambda: os.chmod(__file__, 0o777), 'create': lambda: open('/sandbox/x', 'w'),
    'rmdir': lambda: os.rename('/sandbox', '/workspace/sandbox'), 'replace': lambda: os.replace('/workspace', '/sandbox'),
}.items():
    try:
        attempt()
        print(what, 'worked')
    except OSError:
        pass
print(open(__file__).read().startswith('\nimport os'))`, in("/sandbox"))
	if want := "/sandbox/main.py /workspace True\n0o755 0 0\n0o444 0 0\nTrue\n"; o.out != want || o.exit.Code != 0 {
		t.Errorf("got %q %q, want %q", o.out, o.err, want)
	}
	if out := n.sh("ls -A /sandbox"); out != "" {
		t.Errorf("left: %s", out)
	}
	for language, source := range map[string]string{
		"javascript": "console.log(__filename)", "bash": "echo $0", "php": "echo __FILE__ . PHP_EOL;", "ruby": "puts __FILE__",
	} {
		if o := n.program(language, source, in("/sandbox")); !strings.HasPrefix(o.out, "/sandbox/main.") {
			t.Errorf("%s: %q %q", language, o.out, o.err)
		}
	}
	n.sh("echo 'x = 7' > /workspace/fromcwd.py; mkdir -p /workspace/own; ln -s own /workspace/link")
	n.run(&guestv1.Start{Shell: "echo 'y = 8' > /sandbox/beside.py", User: "root"})
	if o := n.program("python", "import fromcwd, beside; print(fromcwd.x, beside.y)", in("/sandbox")); o.out != "7 8\n" {
		t.Errorf("modules: %q %q", o.out, o.err)
	}

	running := n.start(&guestv1.Start{Shell: "", Code: &guestv1.Code{
		Language: "sh", Argv: requireInterpreter(t, "sh"), Source: []byte("echo here; sleep 1000"), Directory: "/sandbox"}})
	running.says("here")
	for directory, reason := range map[string]string{
		"/sandbox": "conflict", "/workspace/own": "unprocessable", "/workspace/link/x": "unprocessable", "/tmp/x": "unprocessable",
		"relative": "unprocessable", "/a/../b": "unprocessable", "/": "unprocessable", "/etc/passwd": "unprocessable",
	} {
		_, r := n.try(&guestv1.Start{Code: &guestv1.Code{Language: "sh", Argv: requireInterpreter(t, "sh"), Source: []byte("true"), Directory: directory}})
		if p := r.GetProblem(); p.GetReason() != reason || p.GetField() != "directory" {
			t.Errorf("%s: %v", directory, r)
		}
	}
	if out := n.sh("cat /sandbox/main.sh"); !strings.HasPrefix(out, "echo here") {
		t.Errorf("the running program's file has become %q", out)
	}
	if _, r := n.try(&guestv1.Start{Code: &guestv1.Code{ContextId: n.open("python").id, Source: []byte("1"), Directory: "/sandbox"}}); r.GetProblem().GetField() != "directory" {
		t.Errorf("in a context: %v", r)
	}
	running.signal(9, true)
	running.wait()
}

func TestAProgramFindsModulesInItsWorkingDirectory(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		n.sh("mkdir -p d node_modules/pack; echo 'x = 7' > d/helper.py; echo 'module.exports = 8' > node_modules/pack/index.js; echo 'y = 9' > helper2.py")
		at := func(s *guestv1.Start) { s.Cwd = n.sh("pwd") + "/d" }
		if o := n.program("python", "import helper; print(helper.x)", at); o.out != "7\n" {
			t.Errorf("python: %q %q", o.out, o.err)
		}
		if o := n.program("javascript", "console.log(require('pack'))"); o.out != "8\n" {
			t.Errorf("javascript: %q %q", o.out, o.err)
		}
		if o := n.open("javascript").run("console.log(require('pack'), (await import('pack')).default)"); o.out != "8 8\n" {
			t.Errorf("javascript in a context: %q %q", o.out, o.err)
		}
		if o := n.open("python").run("import helper2; print(helper2.y)"); o.out != "9\n" {
			t.Errorf("python in a context: %q %q", o.out, o.err)
		}
	})
}

func TestAProgramsOutputComesInTheOrderItWasWritten(t *testing.T) {
	n := native(t)
	o := n.program("python", "import sys\nfor i in range(200):\n  print(i, end=' ')\n  print(i, end=' ', file=sys.stderr)")
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintf(&want, "%d ", i)
	}
	if o.out != want.String() || o.err != want.String() {
		t.Errorf("%q %q", o.out, o.err)
	}
}

func TestALongProgramComesByFileAndTheFileGoes(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		source := "x = '" + strings.Repeat("y", 3<<20) + "'\nprint(len(x))\n"
		file := n.sh("pwd") + "/upload"
		for _, c := range []*guestv1.Code{
			{Language: "python", Argv: requireInterpreter(t, "python"), SourcePath: file},
			{ContextId: n.open("python").id, SourcePath: file},
		} {
			n.write1(t, file, source)
			if o := n.start(&guestv1.Start{Code: c}).ended(); o.out != "3145728\n" {
				t.Errorf("%q %.200q", o.out, o.err)
			}
			if out := n.sh("ls " + file + " 2>/dev/null || echo gone"); out != "gone" {
				t.Errorf("left: %s", out)
			}
		}
		_, r := n.try(&guestv1.Start{Code: &guestv1.Code{Language: "python", Argv: requireInterpreter(t, "python"), SourcePath: "/nope"}})
		if r.GetProblem().GetField() != "code" {
			t.Errorf("no file: %v", r)
		}
	})
}

func TestWhatAProgramChangesIsTold(t *testing.T) {
	n := gvisor(t)
	n.sh("mkdir -p a ~/deep/er; echo old > a/changed; echo x > a/removed; echo y > a/renamed; echo z > a/kept; echo q > ~/touched; chmod 700 ~")
	source := `
import os, pathlib
W = pathlib.Path('/workspace/a')
(W / 'changed').write_text('new!')
(W / 'removed').unlink()
(W / 'renamed').rename(W / 'to')
(W / 'kept').read_text()
pathlib.Path('/output/plot.png').write_bytes(b'p' * 1000)
(pathlib.Path.home() / 'deep/er/file').write_text('')
os.makedirs('/workspace/empty'); os.makedirs('/workspace/b/__pycache__'); pathlib.Path('/workspace/b/__pycache__/m.pyc').write_text('x')
os.symlink('/etc', '/workspace/link'); os.symlink('/proc', '/workspace/b/proc')
pathlib.Path('/tmp/elsewhere').write_text('x')
`
	want := `/home/sandbox/deep/er/file create 0
/output/plot.png create 1000
/workspace/a/changed write 4
/workspace/a/removed remove 0
/workspace/a/renamed remove 0
/workspace/a/to create 2
/workspace/b/proc create 5
/workspace/link create 4
`
	told := func(o outcome) string {
		var b strings.Builder
		for _, c := range o.FilesChanged {
			fmt.Fprintf(&b, "%s %s %d\n", c.Path, c.Op, c.Size)
		}
		return b.String()
	}
	if o := n.program("python", source); told(o) != want || o.FilesTruncated || o.exit.Code != 0 {
		t.Errorf("changed:\n%s%v %s", told(o), o.FilesTruncated, o.err)
	}
	n.sh("rm -rf /workspace/* /output/* ~/deep; mkdir a; echo old > a/changed; echo x > a/removed; echo y > a/renamed; echo z > a/kept; mkdir -p ~/deep/er")
	c := n.open("python")
	if o := c.run(source); told(o) != want {
		t.Errorf("in a context:\n%s%s", told(o), o.err)
	}
	if o := c.run("1"); len(o.FilesChanged) != 0 || o.FilesTruncated {
		t.Errorf("without changes: %v", o.CodeReport)
	}
	o := c.run("for i in range(1500): open(f'/workspace/file-number-{i:04}', 'w').close()")
	if len(o.FilesChanged) != 1000 || !o.FilesTruncated || o.FilesChanged[0].Path != "/workspace/file-number-0000" || o.exit.ReportBytes <= 32<<10 {
		t.Errorf("many: %d, %v, %d bytes", len(o.FilesChanged), o.FilesTruncated, o.exit.ReportBytes)
	}
	o = n.program("bash", "mkdir many; cd many; for i in {1..21000}; do : > $i; done")
	if !o.FilesTruncated {
		t.Errorf("too many: %d told, not truncated", len(o.FilesChanged))
	}
}

func TestAStartIsEitherCodeOrACommand(t *testing.T) {
	n := native(t)
	for _, s := range []*guestv1.Start{
		{Shell: "true", Code: &guestv1.Code{Language: "sh", Argv: []string{"sh"}}},
		{Code: &guestv1.Code{Language: "cobol"}},
		{Code: &guestv1.Code{Language: "sh", Argv: []string{"sh"}}, Cwd: "/nope"},
	} {
		if _, r := n.try(s); r.GetProblem().GetReason() != "unprocessable" {
			t.Errorf("%v: %v", s, r)
		}
	}
	o := n.start(&guestv1.Start{Code: &guestv1.Code{Language: "python", Argv: []string{"no-such-python"}, Source: []byte("1")}}).ended()
	if o.exit.Code != 127 || !strings.Contains(o.err, "not found") {
		t.Errorf("%v %q", o.exit, o.err)
	}
}

func TestALargeReportIsHeldUntilItIsForgotten(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		o := c.run("class P:\n  def _repr_png_(self): return bytes(range(256)) * 40000\nP()")
		if o.exit.ReportBytes < 10_240_000 || o.exit.Report != nil || o.main("image/png") != string(bytes.Repeat(allBytes(), 40000)) {
			t.Errorf("exit %v, %d bytes of image", o.exit.ReportBytes, len(o.main("image/png")))
		}
		if o := c.run("for i in range(3): display(P())"); len(o.Results) != 1 || !o.ResultsTruncated || o.exit.Code != 0 {
			t.Errorf("30 MB of results: %d, %v", len(o.Results), o.ResultsTruncated)
		}
		if o := c.run("display(1)"); len(o.Results) != 1 || o.ResultsTruncated {
			t.Errorf("after it: %v", o.CodeReport)
		}
	})
}

func TestTheReportsThatNobodyFetchesAreBounded(t *testing.T) {
	n := native(t)
	c := n.open("python")
	c.run("class P:\n  def _repr_png_(self): return bytes(14_000_000)")
	var all []*proc
	for range 6 {
		p := c.begin("P()")
		<-p.done
		all = append(all, p)
	}
	kept := 0
	for _, p := range all {
		o := p.ended()
		if o.main("image/png") != "" {
			kept++
		} else if !o.ResultsTruncated {
			t.Error("a result is missing and nothing says so")
		}
	}
	if kept != 4 {
		t.Errorf("%d results of 14 MB were kept", kept)
	}
	if o := c.run("P()"); len(o.main("image/png")) != 14_000_000 {
		t.Error("what was forgotten still counts")
	}
}

func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
