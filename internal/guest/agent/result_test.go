package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestTheLastExpressionOfPythonIsTheMainResultInAllItsForms(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		for _, step := range [][2]string{ // one after another: some need what is before them
			{"1 + 1", "2"},
			{"x = 'é'\nx", "'é'"},
			{"x = 1", ""},
			{"None", ""},
			{"1;", ""},
			{"def f(): return 3\nf()", "3"},
			{"import asyncio\nawait asyncio.sleep(0)\ny = await asyncio.sleep(0, 5)\ny", "5"},
			{"await asyncio.sleep(0, 6)", "6"},
			{"from __future__ import annotations\ndef g(a: nope): pass\n7", "7"},
			{"def h(a: nope): pass\n8", "8"},
			{"# nothing\n", ""},
		} {
			source, want := step[0], step[1]
			if o := c.run(source); o.main("text/plain") != want || o.exit.Code != 0 || o.out != "" || want == "" && len(o.Results) > 0 {
				t.Errorf("%s: %v %q", source, o.CodeReport, o.err)
			}
		}
		o := c.run(`
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>rich</b>'
    def _repr_markdown_(self): return '**rich**', {}
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\x89PNG\x00'
    def _repr_jpeg_(self): return '/9j/'
    def _repr_json_(self): return {'a': [1]}
    def _repr_mimebundle_(self, include=None, exclude=None): return {'application/vnd.x+json': {'b': 2}, 'text/x-y': 'why'}, {}
    def _repr_nothing_(self): 1/0
class Broken:
    def _repr_html_(self): 1/0
    def __repr__(self): return 'broken'
display(Rich(), Broken())
Rich()`)
		forms := map[string]string{
			"text/plain": "rich", "text/html": "<b>rich</b>", "text/markdown": "**rich**", "text/latex": "$x$", "image/svg+xml": "<svg/>",
			"image/png": "\x89PNG\x00", "image/jpeg": "\xff\xd8\xff", "application/json": `{"a": [1]}`, "application/vnd.x+json": `{"b": 2}`, "text/x-y": "why",
		}
		if len(o.Results) != 3 || o.Results[0].IsMain || len(o.Results[1].Data) != 1 || !o.Results[2].IsMain {
			t.Fatalf("%v %q", o.CodeReport, o.err)
		}
		for _, r := range []*guestv1.CodeReport_Result{o.Results[0], o.Results[2]} {
			for _, d := range r.Data {
				if forms[d.Mime] != string(d.Data) || d.Json != strings.HasSuffix(d.Mime, "json") {
					t.Errorf("%s: %q, json %v", d.Mime, d.Data, d.Json)
				}
			}
			if len(r.Data) != len(forms) {
				t.Errorf("%d forms of %d", len(r.Data), len(forms))
			}
		}
	})
}

func TestADataFrameIsATableOfItsFirstRows(t *testing.T) {
	n := native(t)
	o := n.open("python").run(`
class Slice:
    def __init__(self, frame): self.frame = frame
    def __getitem__(self, s): return Frame(self.frame.rows[s], self.frame.total)
class Frame: # as pandas' is, to whom it asks
    def __init__(self, rows, total=None): self.rows, self.total = rows, total or len(rows)
    columns = ['n', 2, 'when']
    @property
    def iloc(self): return Slice(self)
    def itertuples(self, index, name): return iter(self.rows)
    def __len__(self): return self.total
    def _repr_html_(self): return '<table>'
import datetime
Frame([(i, float('nan'), datetime.date(2026, 1, 2)) for i in range(300)])`)
	var table struct {
		Columns   []string
		Rows      [][]any
		TotalRows int `json:"total_rows"`
	}
	if err := json.Unmarshal([]byte(o.main("application/vnd.cay.table+json")), &table); err != nil {
		t.Fatalf("%v: %v %q", err, o.CodeReport, o.err)
	}
	if len(table.Rows) != 200 || table.TotalRows != 300 || strings.Join(table.Columns, ",") != "n,2,when" || table.Rows[7][0] != 7.0 || table.Rows[7][1] != nil || table.Rows[7][2] != "2026-01-02" {
		t.Errorf("%d rows of %d, %v, %v", len(table.Rows), table.TotalRows, table.Columns, table.Rows[7])
	}
	if o.main("text/html") != "<table>" {
		t.Errorf("%v", o.CodeReport)
	}
}

// A library in the working directory stands for matplotlib, where the machine has none: the driver meets it by its name.
func TestFiguresBecomeResultsWhenTheyAreShownAndAtTheEnd(t *testing.T) {
	n := native(t)
	n.sh(`mkdir matplotlib; : > matplotlib/__init__.py; cat > matplotlib/pyplot.py <<'P'
import os
backend, figures = os.environ['MPLBACKEND'], {}
class Figure:
    def __init__(self, text): self.text = text
    def savefig(self, to, format, bbox_inches): to.write(b'PNG ' + self.text)
    def __repr__(self): return '<Figure>'
def plot(text): figures[len(figures) + 1] = Figure(text)
def get_fignums(): return list(figures)
def figure(number): return figures[number]
def close(figure): [figures.pop(k) for k, v in list(figures.items()) if v is figure]
def show(*a, **k): raise Exception('no display')
P`)
	c := n.open("python")
	o := c.run("import matplotlib.pyplot as plt\nplt.plot(b'one'); plt.show(); print(plt.backend)\nplt.plot(b'two')\n1")
	if o.exit.Code != 0 || o.out != "Agg\n" || len(o.Results) != 3 || o.main("text/plain") != "1" {
		t.Fatalf("%v %q", o.CodeReport, o.err)
	}
	if a, b := o.Results[0].Data, o.Results[2].Data; string(a[1].Data) != "PNG one" || string(b[1].Data) != "PNG two" || b[1].Mime != "image/png" {
		t.Errorf("%v", o.CodeReport)
	}
	if o := c.run("2"); len(o.Results) != 1 {
		t.Errorf("figures come again: %v", o.CodeReport)
	}
}

func TestAnErrorOfPythonIsTracedToTheProgramAlone(t *testing.T) {
	n := native(t)
	c := n.open("python")
	o := c.run("def f(a):\n    return a / 0\n\nf(1)")
	if o.Error.GetName() != "ZeroDivisionError" || o.Error.Value != "division by zero" || o.exit.Code != 1 {
		t.Fatalf("%v", o.CodeReport)
	}
	for _, part := range []string{"Traceback (most recent call last):\n  File \"<cell 1>\", line 4, in <module>\n    f(1)\n", "return a / 0"} {
		if !strings.Contains(o.Error.Traceback, part) {
			t.Errorf("no %q in %s", part, o.Error.Traceback)
		}
	}
	if strings.Contains(o.Error.Traceback, "driver") || o.err != o.Error.Traceback {
		t.Errorf("traceback %s, stderr %s", o.Error.Traceback, o.err)
	}
	if o := c.run("if:\n"); o.Error.GetName() != "SyntaxError" || !strings.Contains(o.Error.Traceback, "<cell 2>") || o.exit.Code != 1 {
		t.Errorf("%v", o.CodeReport)
	}
	if o := c.run("f(2)"); !strings.Contains(o.Error.GetTraceback(), "return a / 0") {
		t.Errorf("the source of an earlier cell is not shown: %v", o.Error)
	}
	for source, code := range map[string]int32{"import sys; sys.exit(7)": 7, "raise SystemExit": 0, "import sys; sys.exit('why')": 1} {
		if o := c.run(source); o.exit.Code != code || o.ContextLost || o.Error != nil || strings.Contains(o.err, "Traceback") {
			t.Errorf("%s: %v %v %q", source, o.exit, o.CodeReport, o.err)
		}
	}
	if o := c.run("class E(Exception):\n  def __str__(self): 1/0\nraise E"); o.exit.Code != 1 || o.Error.GetName() != "E" {
		t.Errorf("%v", o.CodeReport)
	}
	if o := c.run("print(input())"); o.Error.GetName() != "EOFError" {
		t.Errorf("stdin: %v", o.CodeReport)
	}
	if o := c.run("import os\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')"); o.out != "child\nparent\n" || o.exit.Code != 0 {
		t.Errorf("fork: %v %q %q", o.exit, o.out, o.err)
	}
	if o := c.run("8"); o.main("text/plain") != "8" {
		t.Errorf("afterwards: %v", o.CodeReport)
	}
}

func TestJavaScriptKeepsDeclarationsAndAwaits(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("javascript")
		for _, step := range []struct{ source, out, main string }{
			{"const a = 1; let b = 2; class C { v() { return 9 } } function f() { return a + b }", "", ""},
			{"const a = 10; let b = 20; class C {}", "", ""},
			{"f()", "", "30"},
			{"({a, b})", "", "{ a: 10, b: 20 }"},
			{"'text'", "", "'text'"},
			{"const {p, q: [r = 5, ...s]} = await Promise.resolve({p: 1, q: [undefined, 3, 4]}), z = 3; let u", "", ""},
			{"[p, r, s, z, u]", "", "[ 1, 5, [ 3, 4 ], 3, undefined ]"},
			{"await new Promise(r => setTimeout(r, 5, 'late'))", "", "'late'"},
			{"async function g() { return await 4 }\nclass D { static x = 6 }\nawait g() + D.x;", "", "10"},
			{"await g()", "", "4"},
			{"import fs, {sep as slash} from 'node:path'; import * as os from 'os'\n[slash, typeof fs.join, typeof os.cpus]", "", "[ '/', 'function', 'function' ]"},
			{"typeof require('fs').readFileSync + (await import('fs')).constants.F_OK", "", "'function0'"},
			{"for (const x of [1, 2]) console.log(x)", "1\n2\n", ""},
			{"for await (const x of [3]) console.log(x)", "3\n", ""},
			{"console.error('e'); process.stdout.write('no newline')", "no newline", "true"},
			{"undefined", "", ""},
		} {
			o := c.run(step.source)
			if o.out != step.out || o.main("text/plain") != step.main || o.exit.Code != 0 {
				t.Errorf("%s: %q %q %v %v", step.source, o.out, o.err, o.exit, o.CodeReport)
			}
		}
		o := c.run("function bad() {\n  throw new TypeError('no')\n}\nbad()")
		if o.exit.Code != 1 || o.Error.GetName() != "TypeError" || o.Error.Value != "no" || !strings.Contains(o.Error.Traceback, "cell-17.js:2:9") || strings.Contains(o.Error.Traceback, "driver") {
			t.Errorf("%v %v", o.exit, o.Error)
		}
		if o := c.run("let = ;"); o.Error.GetName() != "SyntaxError" || o.exit.Code != 1 {
			t.Errorf("%v", o.CodeReport)
		}
		if o := c.run("throw 5"); o.Error.GetName() != "number" || o.exit.Code != 1 {
			t.Errorf("%v", o.CodeReport)
		}
		if o := c.run("await Promise.reject(new RangeError('far'))"); o.Error.GetName() != "RangeError" {
			t.Errorf("%v", o.CodeReport)
		}
		o = c.run("display({[Symbol.for('Jupyter.display')]: () => ({'image/png': 'iVBORw==', 'application/json': {a: 1}})}); 1")
		if len(o.Results) != 2 || len(o.Results[0].Data) != 3 || string(o.Results[0].Data[0].Data) != "\x89PNG" || string(o.Results[0].Data[1].Data) != `{"a":1}` {
			t.Errorf("%v %q", o.CodeReport, o.err)
		}
		p := c.begin("setTimeout(() => console.log('in')); await new Promise(() => {})") // it waits by then: see the driver
		p.says("in")
		n.must(p.signal(2, false))
		if o := p.ended(); o.exit.Code != 130 || o.Error.GetName() != "Interrupted" {
			t.Errorf("%v %v", o.exit, o.CodeReport)
		}
		p = c.begin("while (true) console.log('in')") // an interrupt within a write leaves the stream usable
		p.says("in")
		n.must(p.signal(2, false))
		if o := p.ended(); o.exit.Code != 130 {
			t.Errorf("%v", o.exit)
		}
		if o := c.run("console.log(a)"); o.out != "10\n" {
			t.Errorf("afterwards: %q %q", o.out, o.err)
		}
	})
}

func TestRubyAndPHPTellValuesAndErrors(t *testing.T) {
	n := native(t)
	ruby := n.open("ruby")
	ruby.run("def twice(x) = x * 2")
	if o := ruby.run("[twice(2), :a]"); o.main("text/plain") != "[4, :a]" {
		t.Errorf("%v %q", o.CodeReport, o.err)
	}
	if o := ruby.run("raise ArgumentError, 'no'"); o.Error.GetName() != "ArgumentError" || o.Error.Value != "no" || strings.Contains(o.Error.Traceback, "driver") || !strings.Contains(o.err, "(cell 3)") {
		t.Errorf("%v %q", o.CodeReport, o.err)
	}
	if o := ruby.run("exit 4"); o.exit.Code != 4 || o.ContextLost {
		t.Errorf("%v %v", o.exit, o.CodeReport)
	}
	if o := ruby.run("def"); o.Error.GetName() != "SyntaxError" || o.exit.Code != 1 {
		t.Errorf("%v", o.CodeReport)
	}
	php := n.open("php")
	if o := php.run("<?php function twice($x) { return $x * 2; } return twice(4);"); o.main("text/plain") != "8" {
		t.Errorf("%v %q", o.CodeReport, o.err)
	}
	if o := php.run("echo twice(1); throw new DomainException('no');"); o.out != "2" || o.Error.GetName() != "DomainException" || o.Error.Value != "no" || strings.Contains(o.Error.Traceback, "driver") {
		t.Errorf("%q %v", o.out, o.CodeReport)
	}
	if o := php.run("$x = ;"); o.Error.GetName() != "ParseError" || o.exit.Code != 1 {
		t.Errorf("%v", o.CodeReport)
	}
	if o := php.run("page <?= twice(3) ?>"); o.out != "page 6" {
		t.Errorf("%q %q", o.out, o.err)
	}
}

func TestShellsKeepDirectoryFunctionsAndTheLastStatus(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		for _, language := range []string{"bash", "sh"} {
			c := n.open(language)
			c.run("mkdir -p sub && cd sub; f() { echo \"f $1\"; }; export V='a b'")
			if o := c.run("pwd; f 1; sh -c 'echo $V'; cat; (exit 7)"); !strings.Contains(o.out, "/sub\nf 1\na b\n") || o.exit.Code != 7 || o.ContextLost || o.err != "" {
				t.Errorf("%s: %q %q %v", language, o.out, o.err, o.exit)
			}
			if o := c.run("if then"); o.exit.Code == 0 || o.err == "" || o.ContextLost {
				t.Errorf("%s, a syntax error: %v %q %v", language, o.exit, o.err, o.CodeReport)
			}
			if o := c.run(": ${nope?unset}; echo not here"); o.out != "" || o.exit.Code == 0 || o.ContextLost {
				t.Errorf("%s, an unset variable: %v %q %q %v", language, o.exit, o.out, o.err, o.CodeReport)
			}
			if o := c.run("no-such-command"); o.exit.Code != 127 {
				t.Errorf("%s: %v %q", language, o.exit, o.err)
			}
			if o := c.run("f 2\nreturn 4\necho not here"); o.out != "f 2\n" || o.exit.Code != 4 {
				t.Errorf("%s: %v %q %q", language, o.exit, o.out, o.err)
			}
			if o := c.run("ls /proc/self/fd | tr '\\n' ' '"); o.out != "0 1 2 3 " { // 3 is ls's own
				t.Errorf("%s: a program gets descriptors %s", language, o.out)
			}
		}
	})
}
