package client_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the how-to's code anew from the examples")

// codeBlock is a Go block of the how-to that names the example it shows.
var codeBlock = regexp.MustCompile("(?s)<!-- (Example\\w*) -->\n```go\n(.*?)```")

func TestTheHowToShowsTheExamplesThatRun(t *testing.T) {
	const path = "../docs/how-to/go-sdk.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bodies := exampleBodies(t)
	shown := 0
	fresh := codeBlock.ReplaceAllFunc(doc, func(block []byte) []byte {
		name := string(codeBlock.FindSubmatch(block)[1])
		body, ok := bodies[name]
		if !ok {
			t.Errorf("%s shows %s, which there is not", path, name)
		}
		shown++
		return []byte("<!-- " + name + " -->\n```go\n" + body + "```")
	})
	if shown != bytes.Count(doc, []byte("```go")) || shown == 0 {
		t.Errorf("%d of %d blocks of Go are examples that run", shown, bytes.Count(doc, []byte("```go")))
	}
	if *update {
		if err := os.WriteFile(path, fresh, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(doc, fresh) {
		t.Errorf("%s is stale; write it anew with: go test ./client -run HowTo -update", path)
	}
}

// exampleBodies answers the examples' code from the first blank line on, without the expected output.
func exampleBodies(t *testing.T) map[string]string {
	t.Helper()
	src, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "example_test.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Example") {
			continue
		}
		body := string(src[set.Position(f.Body.Lbrace).Offset+1 : set.Position(f.Body.Rbrace).Offset])
		_, body, _ = strings.Cut(body, "\n\n")
		body, _, _ = strings.Cut(body, "\t// Output:")
		out[f.Name.Name] = strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:]
	}
	return out
}
