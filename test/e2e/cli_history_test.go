package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestTheCommandLineShowsWhatRanAndWhatItUsed(t *testing.T) {
	t.Parallel()
	want := wanting(t)
	mark := testkit.NewKey()[4:16]
	sandbox := strings.TrimSpace(want(0, "", "create", "--metadata", "name="+mark))
	if _, _, code := cli(t, "", "exec", sandbox, "sh", "-c", "echo "+mark+"; exit 3"); code != 3 {
		t.Fatalf("exec: code %d", code)
	}
	job := strings.TrimSpace(want(0, "", "job", "submit", "-c", "print(1)"))
	want(0, "", "job", "wait", job)

	var ran []struct {
		ID, Kind, Command string
		ExitCode          *int `json:"exit_code"`
	}
	testkit.Eventually(t, time.Minute, "the command's record", func() error {
		ran = nil
		if err := json.Unmarshal([]byte(want(0, "", "history", "--failed", "--text", mark, "--sandbox", sandbox, "-o", "json")), &ran); err != nil {
			return err
		}
		if len(ran) != 1 || ran[0].Kind != "exec" || ran[0].ExitCode == nil || *ran[0].ExitCode != 3 {
			return fmt.Errorf("%+v", ran)
		}
		return nil
	})
	if out := want(0, "", "history", "ls", "--kind", "exec", "--sandbox", sandbox); !strings.Contains(out, ran[0].ID) || !strings.Contains(out, "exited") || strings.Count(out, "\n") != 2 {
		t.Errorf("history ls:\n%s", out)
	}
	if out := want(0, "", "history", "show", ran[0].ID, job); !strings.Contains(out, mark) || !strings.Contains(out, job) {
		t.Errorf("history show:\n%s", out)
	}
	want(0, "", "rm", sandbox)
	if out := want(0, "", "history", "--kind", "sandbox", "--sandbox", sandbox); !strings.Contains(out, "deleted") {
		t.Errorf("the history of a sandbox that is gone:\n%s", out)
	}
	if out := want(0, "", "usage", "--sandbox", sandbox, "--by", "day,sandbox"); !strings.HasPrefix(out, "DAY") || !strings.Contains(out, sandbox) || !strings.Contains(out, "\ntotal") {
		t.Errorf("usage:\n%s", out)
	}
	testkit.Eventually(t, time.Minute, "the end of the sandbox in the audit log", func() error {
		out := want(0, "", "audit", "--object", sandbox)
		if !strings.Contains(out, "create-sandbox") || !strings.Contains(out, "delete-sandbox") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out := want(0, "", "events"); !strings.Contains(out, job) || !strings.Contains(out, "job_status") || !strings.Contains(out, sandbox) {
		t.Errorf("events of the project have neither the job nor the sandbox:\n%.2000s", out)
	}
	for _, args := range [][]string{
		{"history", "--kind", "dance"}, {"history", "show", "prc_nothing"}, {"history", "--sandbox", "sbx_none"}, {"usage", "--by", "moon"}, {"audit", "--action", "dance"},
	} {
		if _, errs, code := cli(t, "", args...); code != 125 || !strings.HasPrefix(errs, "cay: ") {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
	if _, errs, code := cli(t, "", "usage", "--from", "yesterday"); code != 2 || !strings.Contains(errs, "--from") {
		t.Errorf("a day that is none: code %d, %q", code, errs)
	}
}
