package client_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func TestCodeAnswersOutputFilesAndError(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	res, err := c.RunCode(ctx, id, client.CodeRequest{Code: "print(1 + 1)\nsave(/output/a.txt)"})
	if err != nil {
		t.Fatal(err)
	}
	if string(res.Stdout) != "2\n" || !res.OK || res.Language != "python" || res.ContextID != "" || res.ExecutionCount != 0 {
		t.Errorf("got %+v", res)
	}
	if len(res.FilesChanged) != 1 || res.FilesChanged[0] != (client.FileChange{Path: "/output/a.txt", Size: 5, Op: "create"}) ||
		len(res.Outputs) != 1 || string(res.Outputs[0].Data) != "saved" {
		t.Errorf("files %+v, outputs %+v", res.FilesChanged, res.Outputs)
	}
	res, err = c.RunCode(ctx, id, client.CodeRequest{Code: "raise oops", ContextID: python(t, c, id)})
	if err != nil || res.ExitCode != 1 || res.OK || res.Error == nil || res.CodeOutcome.Error.Error() != "Error: oops" {
		t.Errorf("an exception: %+v, %v", res, err)
	}
	if _, err = c.RunCode(ctx, id, client.CodeRequest{Code: "1", Language: "cobol"}); client.ReasonOf(err) != client.ReasonUnprocessable || !strings.Contains(err.Error(), "python") {
		t.Errorf("a language that is not there: %v", err)
	}
	if _, err = c.RunCode(ctx, id, client.CodeRequest{}); err == nil {
		t.Error("no code was accepted")
	}
}

// python opens a context.
func python(t *testing.T, c *client.Client, sandbox string) string {
	t.Helper()
	x, err := c.Contexts(sandbox).Create(within(t), client.ContextRequest{Language: "python"})
	if err != nil {
		t.Fatal(err)
	}
	return x.ID
}

func TestAContextKeepsItsVariables(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	x, err := c.Contexts(id).Create(ctx, client.ContextRequest{})
	if err != nil || x.Language != "python" || x.Status != "idle" {
		t.Fatalf("created %+v, %v", x, err)
	}
	run := func(code string) *client.CodeResult {
		t.Helper()
		res, err := c.RunCode(ctx, id, client.CodeRequest{Code: code, ContextID: x.ID})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	run("n = 40")
	if res := run("n + 2"); res.Main() == nil || res.Main().Text() != "42" || res.ExecutionCount != 2 || res.ContextID != x.ID {
		t.Fatalf("got %+v", res.CodeOutcome)
	}
	if _, err := c.Contexts(id).Restart(ctx, x.ID); err != nil {
		t.Fatal(err)
	}
	if res := run("n"); res.Main().Text() != "n" || res.ExecutionCount != 1 {
		t.Fatalf("the restart left %+v", res.CodeOutcome)
	}
	if all, err := c.Contexts(id).List(ctx); err != nil || len(all) != 1 || all[0].ID != x.ID {
		t.Fatalf("listed %+v, %v", all, err)
	}
	if _, err := c.RunCode(ctx, id, client.CodeRequest{Code: "1", ContextID: x.ID, Cwd: "/tmp"}); client.ReasonOf(err) != client.ReasonUnprocessable {
		t.Errorf("a cwd within a context: %v", err)
	}
	if err := c.Contexts(id).Close(ctx, x.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Contexts(id).Get(ctx, x.ID); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("after its end: %v", err)
	}
}

func TestAnInterruptStopsCodeAndKeepsTheContext(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	x, err := c.Contexts(id).Create(ctx, client.ContextRequest{Language: "python"})
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for ev, err := range c.StreamCode(ctx, id, client.CodeRequest{Code: "n = 1\nloop()", ContextID: x.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev := ev.(type) {
		case client.OutputEvent:
			if _, err := c.Contexts(id).Interrupt(ctx, x.ID); err != nil {
				t.Fatal(err)
			}
		case client.ExitEvent:
			last = ev.ExitCode
		}
	}
	if last != 130 {
		t.Errorf("exit code %d", last)
	}
	if res, err := c.RunCode(ctx, id, client.CodeRequest{Code: "n", ContextID: x.ID}); err != nil || res.Main().Text() != "1" {
		t.Errorf("afterwards: %+v, %v", res, err)
	}
}

func TestAStreamOfCodeEndsWithItsResultOverBrokenConnections(t *testing.T) {
	for name, breakIt := range map[string]func(*clienttest.Server){
		"unbroken":                       func(*clienttest.Server) {},
		"broken within the output":       func(s *clienttest.Server) { s.CutAfter(3, 1) },
		"broken between exit and result": func(s *clienttest.Server) { s.CutOutcomes(2) },
	} {
		t.Run(name, func(t *testing.T) {
			server, c := connect(t)
			id := sandbox(t, c)
			request := client.CodeRequest{Code: "print(hello)\n40 + 2", ContextID: python(t, c, id)}
			breakIt(server)
			var told []string
			for ev, err := range c.StreamCode(within(t), id, request) {
				if err != nil {
					t.Fatal(err)
				}
				switch ev := ev.(type) {
				case client.OutputEvent:
					if n := len(told) - 1; n >= 0 && strings.HasPrefix(told[n], "out ") {
						told[n] += string(ev.Data)
						continue
					}
					told = append(told, "out "+string(ev.Data))
				case client.ExitEvent:
					told = append(told, "exit")
				case client.ResultEvent:
					told = append(told, "result "+ev.Main().Text())
				}
			}
			if got := strings.Join(told, "|"); got != "out hello\n|exit|result 42" {
				t.Errorf("told %q", got)
			}
		})
	}
}

func TestASessionOfCodeTakesInputAndHasItsOutcome(t *testing.T) {
	for name, cuts := range map[string]int{"unbroken": 0, "broken between exit and result": 2} {
		t.Run(name, func(t *testing.T) {
			server, c := connect(t)
			out := newSyncBuffer()
			server.CutOutcomes(cuts)
			s, err := c.CodeSession(within(t), sandbox(t, c), client.CodeSessionRequest{
				CodeRequest: client.CodeRequest{Code: "read()"}, SessionIO: client.SessionIO{Stdout: out},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Stdin().Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			if err := s.CloseStdin(); err != nil {
				t.Fatal(err)
			}
			exit, err := s.Wait()
			if err != nil || !exit.OK || out.String() != "read \"abc\"\n" || s.Outcome() == nil || s.Outcome().Language != "python" {
				t.Fatalf("%q, %+v, %v, outcome %+v", out.String(), exit, err, s.Outcome())
			}
		})
	}
}

func TestAnAttachmentToCodeBringsItsResult(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	res, err := c.RunCode(ctx, id, client.CodeRequest{Code: "40 + 2", ContextID: python(t, c, id)})
	if err != nil {
		t.Fatal(err)
	}
	var last client.Event
	for ev, err := range c.Processes(id).Stream(ctx, res.ProcessID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		last = ev
	}
	if r, ok := last.(client.ResultEvent); !ok || r.Main().Text() != "42" {
		t.Errorf("the stream ended with %+v", last)
	}
	s, err := c.Processes(id).Attach(ctx, res.ProcessID, 0, client.SessionIO{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); err != nil || s.Outcome() == nil {
		t.Errorf("the session ended with %v, outcome %+v", err, s.Outcome())
	}
}

func TestResultsComeInEveryForm(t *testing.T) {
	server, c := connect(t)
	server.HandleLanguage("plots", func(context.Context, *clienttest.Proc, string, map[string]string) clienttest.Outcome {
		return clienttest.Outcome{Shown: map[string]any{
			"text/plain": "a chart", "text/html": "<b>", "image/png": []byte("\x89PNG"), "application/json": map[string]any{"a": 1},
			client.MIMETable: map[string]any{"columns": []string{"n"}, "rows": [][]any{{9007199254740993}}, "total_rows": 1},
		}}
	})
	ctx, id := within(t), sandbox(t, c)
	x, err := c.Contexts(id).Create(ctx, client.ContextRequest{Language: "plots"})
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.RunCode(ctx, id, client.CodeRequest{Code: "x", ContextID: x.ID})
	if err != nil || len(res.Results) != 1 || res.Main() != nil {
		t.Fatalf("got %+v, %v", res, err)
	}
	r := res.Results[0]
	if r.Text() != "a chart" || string(r.Bytes("text/html")) != "<b>" || string(r.Bytes("image/png")) != "\x89PNG" ||
		string(r.Bytes("application/json")) != `{"a":1}` || r.Bytes("image/gif") != nil {
		t.Errorf("got %+v", r.Data)
	}
	if table := r.Table(); table == nil || table.Columns[0] != "n" || table.Rows[0][0] != json.Number("9007199254740993") {
		t.Errorf("table %+v", table)
	}
	if out, err := json.Marshal(r); err != nil || !strings.Contains(string(out), `"is_main":false`) {
		t.Errorf("written as %s, %v", out, err)
	}
}
