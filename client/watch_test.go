package client_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/client"
)

func TestSearchWalksEveryPage(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	for _, name := range []string{"a.go", "b.go", "c.go", "d.txt"} {
		if _, err := f.Write(ctx, "/workspace/"+name, strings.NewReader("package "+name+"\nfunc\n"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for m, err := range f.Search(ctx, "/workspace", client.SearchOptions{Pattern: "*.go", Contains: "^fun.$"}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Lines) != 1 || m.Lines[0] != (client.MatchLine{Number: 2, Text: "func"}) {
			t.Errorf("lines %+v", m.Lines)
		}
		names = append(names, m.Name)
	}
	if strings.Join(names, " ") != "a.go b.go c.go" {
		t.Errorf("found %v", names)
	}
	for _, err := range f.Search(ctx, "/workspace", client.SearchOptions{Contains: "("}) {
		if client.ReasonOf(err) != client.ReasonInvalidRequest {
			t.Errorf("what is no expression: %v", err)
		}
	}
}

func TestANameThatIsNoUTF8IsTakenByItsBytes(t *testing.T) {
	var info client.FileInfo
	if err := json.Unmarshal([]byte(`{"path":"/d/\ufffd","name":"\ufffd","path_percent":"/d/%FF","mode":"0644"}`), &info); err != nil || info.Path != "/d/\xff" || info.Name != "\xff" {
		t.Errorf("got %q, %q, %v", info.Path, info.Name, err)
	}
	var outcome client.CodeOutcome
	if err := json.Unmarshal([]byte(`{"outputs":[{"path":"/output/\ufffd","path_percent":"%2Foutput%2F%FF","size":2}],"files_changed":[{"path":"/\ufffd","path_percent":"/%FE","op":"write"}]}`), &outcome); err != nil ||
		outcome.Outputs[0].Path != "/output/\xff" || outcome.Outputs[0].Size != 2 || outcome.FilesChanged[0] != (client.FileChange{Path: "/\xfe", Op: "write"}) {
		t.Errorf("got %+v, %v", outcome, err)
	}
	var ev client.WatchEvent
	if err := json.Unmarshal([]byte(`{"type":"rename","path":"/a","to":"/\ufffd","to_percent":"/%FE"}`), &ev); err != nil || ev.Path != "/a" || ev.To != "/\xfe" {
		t.Errorf("got %+v, %v", ev, err)
	}
}

func TestAWatchTellsChangesAndWhatWasMissed(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	f := c.Files(id)
	var told []string
	for ev, err := range f.Watch(ctx, "/workspace", client.WatchOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, string(ev.Type))
		switch len(told) {
		case 1:
			_, err = f.Write(ctx, "/workspace/d/a", strings.NewReader("x"), client.WriteOptions{})
		case 2:
			err = f.Move(ctx, ev.Path, "/workspace/b", false)
		case 3:
			if ev.To != "/workspace/b" {
				t.Errorf("renamed to %q", ev.To)
			}
			server.Overflow(id)
		case 4:
			server.Break()
		case 6:
			err = f.Remove(ctx, "/workspace", true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := "ready create rename overflow overflow ready remove"; strings.Join(told, " ") != want {
		t.Errorf("told %v, not %s", told, want)
	}
	for _, err := range f.Watch(ctx, "/nothing", client.WatchOptions{}) {
		if client.ReasonOf(err) != client.ReasonNotFound {
			t.Errorf("what is not there: %v", err)
		}
	}
}
