package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// witness is a sandbox whose processes are watched over crashes: a background writer that no client holds, and an exec whose output
// nobody reads until the end.
type witness struct {
	id      string
	process string // prints lines 1, 2, 3 … of eight characters each, for ever
	offset  int64  // of its output that has been read and checked
}

const writer = `setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/beat.new; mv /tmp/beat.new /tmp/beat; sleep .1; done' >/dev/null 2>&1 & ` +
	`n=0; while :; do n=$((n+1)); printf "%07d\n" $n; sleep .05; done`

func newWitness(ctx context.Context, inst *testkit.Instance) (*witness, error) {
	sb, err := inst.CreateSandbox(ctx, fields{"ttl_seconds": 3000})
	if err != nil {
		return nil, err
	}
	stream, resp, err := inst.OpenEvents(ctx, "POST", "/v1/sandboxes/"+sb.ID+"/exec", fields{"command": writer, "timeout_seconds": nil})
	if err != nil || stream == nil {
		return nil, fmt.Errorf("start the writer: %v %w", resp, errors.Join(err))
	}
	defer stream.Close()
	var tr testkit.Transcript
	for tr.ProcessID == "" {
		ev, err := stream.Next()
		if err != nil {
			return nil, err
		}
		if err := tr.Add(ev); err != nil {
			return nil, err
		}
	}
	return &witness{id: sb.ID, process: tr.ProcessID}, nil
}

// testify checks that the sandbox answers, that its background process still beats, and that every byte of the unread output is there.
func (w *witness) testify(ctx context.Context, inst *testkit.Instance) error {
	out, err := inst.Exec(ctx, w.id, `cat /tmp/beat; a=$(cat /tmp/beat); n=0
		while [ "$(cat /tmp/beat)" = "$a" ] && [ $n -lt 300 ]; do n=$((n+1)); sleep .1; done
		cat /tmp/beat`, fields{"timeout_seconds": 120})
	if err != nil {
		return err
	}
	if beats := strings.Fields(out.Stdout); len(beats) != 2 || beats[0] == beats[1] {
		return fmt.Errorf("%s: the background process does not beat: %q %q", w.id, out.Stdout, out.Stderr)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, resp, err := inst.OpenEvents(ctx, "GET", fmt.Sprintf("/v1/sandboxes/%s/processes/%s/stream?offset=%d", w.id, w.process, w.offset), nil)
	if err != nil || stream == nil {
		return fmt.Errorf("%s: attach: %v %w", w.id, resp, errors.Join(err))
	}
	defer stream.Close()
	var tr testkit.Transcript
	for len(tr.Stdout) < 8*10 { // ten lines that were unread; more follow for ever
		ev, err := stream.Next()
		if err != nil {
			return fmt.Errorf("%s: after %d bytes at %d: %w", w.id, len(tr.Stdout), w.offset, err)
		}
		if err := tr.Add(ev); err != nil {
			return err
		}
		if len(tr.Gaps) > 0 || tr.Exit != nil || tr.Error != nil {
			return fmt.Errorf("%s: at %d: gaps %v, exit %+v, error %+v", w.id, w.offset, tr.Gaps, tr.Exit, tr.Error)
		}
	}
	for n, b := range tr.Stdout {
		at := w.offset + int64(n)
		if want := fmt.Sprintf("%07d\n", at/8+1)[at%8]; b != want {
			return fmt.Errorf("%s: byte %d of the output is %q, want %q, in %q", w.id, at, b, want, tr.Stdout)
		}
	}
	w.offset += int64(len(tr.Stdout))
	return nil
}

// churn creates, uses and deletes sandboxes until ctx ends. Errors are what a crash does to clients; the ids it saw are returned.
func churn(ctx context.Context, inst *testkit.Instance) {
	for n := 0; ctx.Err() == nil; n++ {
		one, cancel := context.WithTimeout(ctx, 20*time.Second)
		if sb, err := inst.CreateSandbox(one, fields{"metadata": fields{"of": "churn"}}); err == nil {
			_, _ = inst.Exec(one, sb.ID, "echo x") // either way
			if n%2 == 0 {
				_, _ = inst.Do(one, "DELETE", "/v1/sandboxes/"+sb.ID, nil)
			}
		} else {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond): // the server is away
			}
		}
		cancel()
	}
}

func TestKillingAnyProcessAtAnyTimeLosesNothingAndLeavesNothing(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{})
	ctx := t.Context()
	witnesses := make([]*witness, 2)
	for i := range witnesses {
		var err error
		if witnesses[i], err = newWitness(ctx, inst); err != nil {
			t.Fatal(err)
		}
	}
	paused, err := inst.CreateSandbox(ctx, fields{"ttl_seconds": 3000, "paused_ttl_seconds": 3000})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := inst.Do(ctx, "POST", "/v1/sandboxes/"+paused.ID+"/pause", nil); err != nil || resp.Status != 200 {
		t.Fatalf("pause: %v %v", resp, err)
	}

	for _, role := range []testkit.Role{testkit.RoleUp, testkit.RoleServer, testkit.RoleNode} {
		for round := range testkit.Scaled(2, 20) {
			begun := time.Now()
			if err := crash(ctx, inst, role, time.Duration(100+round*137%900)*time.Millisecond); err != nil {
				t.Fatalf("kill %s, round %d: %v", role, round, err)
			}
			for _, w := range witnesses {
				if err := w.testify(ctx, inst); err != nil {
					t.Fatalf("kill %s, round %d: %v", role, round, err)
				}
			}
			if sb, err := inst.GetSandbox(ctx, paused.ID); err != nil || sb.Status != "PAUSED" {
				t.Fatalf("kill %s, round %d: the paused sandbox is %s, %v", role, round, sb.Status, err)
			}
			if err := converged(ctx, inst); err != nil {
				t.Fatalf("kill %s, round %d: %v", role, round, err)
			}
			t.Logf("kill %s, round %d: fine after %v", role, round, time.Since(begun).Round(10*time.Millisecond))
		}
	}
	if resp, err := inst.Do(ctx, "POST", "/v1/sandboxes/"+paused.ID+"/resume", nil); err != nil || resp.Status != 200 {
		t.Errorf("resume: %v %v", resp, err)
	}
	if out, err := inst.Exec(ctx, paused.ID, "echo awake"); err != nil || out.Stdout != "awake\n" {
		t.Errorf("the paused sandbox: %+v %v", out, err)
	}
	for _, id := range []string{witnesses[0].id, witnesses[1].id, paused.ID} {
		if err := accounted(ctx, inst, id); err != nil {
			t.Errorf("what %s used: %v", id, err)
		}
	}
	// The rest is the clean-up's: nothing may be left.
}

// accounted ends a sandbox; what is billed must be all of its time and no more, whatever was killed meanwhile.
func accounted(ctx context.Context, inst *testkit.Instance, id string) error {
	if err := inst.DeleteSandbox(ctx, id); err != nil {
		return err
	}
	var events struct {
		Items []struct {
			Type string
			At   time.Time
			Data struct{ From, To string }
		}
	}
	var usage struct {
		Total struct {
			Running float64 `json:"running_seconds"`
			Paused  float64 `json:"paused_seconds"`
			CPU     float64 `json:"cpu_seconds"`
		}
	}
	for path, into := range map[string]any{"/v1/sandboxes/" + id + "/events": &events, "/v1/usage?sandbox_id=" + id: &usage} {
		resp, err := inst.Do(ctx, "GET", path, nil)
		if err != nil {
			return err
		}
		if err := resp.Decode(200, into); err != nil {
			return fmt.Errorf("GET %s: %w", path, err)
		}
	}
	sb, err := inst.GetSandbox(ctx, id)
	if err != nil {
		return err
	}
	spent := map[string]float64{}
	var since time.Time
	for _, e := range events.Items {
		if e.Type == "status" {
			spent[e.Data.From] += e.At.Sub(since).Seconds()
			since = e.At
		}
	}
	// An event and the accounting of the change that it tells of read the clock one after the other.
	near := func(a, b float64) bool { return a-b < 0.1 && b-a < 0.1 }
	if !near(usage.Total.Running, spent["READY"]) || !near(usage.Total.Paused, spent["PAUSED"]) || !near(usage.Total.CPU, sb.Usage.CPUSeconds) || usage.Total.CPU <= 0 {
		return fmt.Errorf("billed are %+v, READY %.3f s, PAUSED %.3f s, the sandbox used %.3f s of CPU", usage.Total, spent["READY"], spent["PAUSED"], sb.Usage.CPUSeconds)
	}
	return nil
}

// crash kills role while sandboxes come and go, and returns once the server is ready again.
func crash(ctx context.Context, inst *testkit.Instance, role testkit.Role, after time.Duration) error {
	during, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { churn(during, inst) })
	}
	stop := func() { cancel(); wg.Wait() }
	defer stop()

	<-time.After(after) // the moment of the crash is what varies
	pid, err := inst.PID(role)
	if err != nil {
		return err
	}
	if err := inst.Kill9(role); err != nil {
		return err
	}
	if role == testkit.RoleUp {
		if err := inst.Start(); err != nil {
			return err
		}
	} else if err := inst.Restarted(role, pid, time.Minute); err != nil {
		return err
	}
	stop()
	return testkit.Until(2*time.Minute, func() error { return inst.Ready(ctx) })
}

// converged deletes the churn's sandboxes; every one of them must be usable or ended, and none in between for long.
func converged(ctx context.Context, inst *testkit.Instance) error {
	err := testkit.Until(90*time.Second, func() error {
		list, err := inst.ListSandboxes(ctx, "status=CREATING,TERMINATING")
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%d sandboxes hang between states, the first is %s %s", len(list), list[0].ID, list[0].Status)
		}
		return err
	})
	if err != nil {
		return err
	}
	list, err := inst.ListSandboxes(ctx, "status=READY&metadata.of=churn")
	if err != nil {
		return err
	}
	for _, sb := range list {
		out, err := inst.Exec(ctx, sb.ID, "echo here")
		if err != nil || out.Stdout != "here\n" {
			return fmt.Errorf("%s is READY and does not answer: %+v %w", sb.ID, out, errors.Join(err))
		}
		if err := inst.DeleteSandbox(ctx, sb.ID); err != nil {
			return err
		}
	}
	return nil
}

func TestAKernelThatIsKilledIsNoticedAndCleanedUp(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	sb := inst.Create(t)
	stream, _ := sb.Open(t.Context(), "sleep 300")
	kernels := inst.Kernels()
	if len(kernels) == 0 {
		t.Fatal("no kernel was found")
	}
	for _, p := range kernels {
		kill(t, p.PID)
	}
	if tr, err := stream.ReadAll(); err == nil && tr.Exit != nil && (tr.Exit.OK || tr.Exit.Reason != "sandbox_ended") {
		t.Errorf("the exec ended with %+v", tr.Exit)
	}
	testkit.Eventually(t, time.Minute, "the sandbox has ended", func() error {
		now := sb.Refresh()
		if now.Status != "TERMINATED" || now.StatusReason == "" || now.StatusReason == "deleted" {
			return fmt.Errorf("it is %s (%s)", now.Status, now.StatusReason)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, "nothing of it is left", func() error {
		r := inst.Residue()
		if len(inst.Kernels()) > 0 || len(sandboxFiles(r)) > 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sandboxFiles leaves out what a running node has without any sandbox.
func sandboxFiles(r testkit.Residue) []string {
	var out []string
	for _, f := range r.Files {
		if strings.Contains(f, "/sandboxes/") || strings.Contains(f, "/s/") {
			out = append(out, f)
		}
	}
	return out
}
