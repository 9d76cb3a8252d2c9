package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/cayhq/cay/client/clienttest"
	"github.com/cayhq/cay/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"cay": func() {
		os.Exit(cli.Execute(context.Background(), cli.New(cli.Deps{Version: "v0.0.0-test"}, extras()...), os.Args[1:]))
	}})
}

// leakChecked looks for goroutines after the tests of this process have run.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// extras stand for the commands of the composition root.
func extras() []*cobra.Command {
	return []*cobra.Command{{
		Use: "up", Short: "Start a server",
		RunE: func(*cobra.Command, []string) error { return codeError(3) },
	}}
}

type codeError int

func (e codeError) Error() string { return "from up" }
func (e codeError) ExitCode() int { return int(e) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			server := clienttest.New()
			server.Handle("ln", func(_ context.Context, p *clienttest.Proc) int {
				for _, id := range server.Sandboxes() {
					server.Put(id, p.Args[4], clienttest.Entry{Type: "symlink", Mode: "0777", Target: p.Args[3]})
				}
				return 0
			})
			env.Defer(server.Close)
			env.Values["server"] = server
			env.Setenv("CAY_URL", server.URL)
			env.Setenv("CAY_API_KEY", clienttest.Key)
			env.Setenv("CAY_DATA_DIR", filepath.Join(env.WorkDir, "data"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"sandboxes": sandboxes,
			"refuse":    refuse,
			"cut":       cut,
			"put":       put,
			"await":     await,
			"capture":   capture,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func serverOf(ts *testscript.TestScript) *clienttest.Server {
	return ts.Value("server").(*clienttest.Server)
}

// exits CODE ARG… runs cay and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("cay", args[1:]...)
	code := 0
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("cay %s exited with %d, not %s", strings.Join(args[1:], " "), code, args[0])
	}
}

// sandboxes N checks how many sandboxes have not ended.
func sandboxes(ts *testscript.TestScript, neg bool, args []string) {
	if n := len(serverOf(ts).Sandboxes()); fmt.Sprint(n) != args[0] {
		ts.Fatalf("there are %d sandboxes, not %s", n, args[0])
	}
}

// refuse METHOD SUFFIX STATUS REASON makes the server refuse one request.
func refuse(ts *testscript.TestScript, neg bool, args []string) {
	var status int
	fmt.Sscan(args[2], &status)
	serverOf(ts).Refuse(args[0], args[1], status, args[3], 0)
}

// cut N… breaks the next streams after so many bytes each.
func cut(ts *testscript.TestScript, neg bool, args []string) {
	for _, a := range args {
		var n int
		fmt.Sscan(a, &n)
		serverOf(ts).CutAfter(n)
	}
}

// put TYPE PATH CONTENT-OR-TARGET [NAME] puts a file into every sandbox.
func put(ts *testscript.TestScript, neg bool, args []string) {
	e := clienttest.Entry{Type: args[0], Mode: "0755", Content: []byte(args[2])}
	if e.Type == "symlink" {
		e.Content, e.Target = nil, args[2]
	}
	if len(args) > 3 {
		e.Name = args[3]
	}
	for _, id := range serverOf(ts).Sandboxes() {
		serverOf(ts).Put(id, args[1], e)
	}
}

// await FILE TEXT waits until the file holds the text.
func await(ts *testscript.TestScript, neg bool, args []string) {
	deadline := time.Now().Add(time.Minute)
	for {
		data, _ := os.ReadFile(ts.MkAbs(args[0]))
		if strings.Contains(string(data), args[1]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s never held %q: %q", args[0], args[1], data)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// capture NAME puts the output of the last command into a variable.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}
