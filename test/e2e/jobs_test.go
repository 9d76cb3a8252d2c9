package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/testkit"
)

// each calls f for 0 to n-1 by several callers at once and returns what they answer.
func each[T any](n, callers int, f func(i int) (T, error)) ([]T, error) {
	out, faults := make([]T, n), make([]error, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range next {
				out[i], faults[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return out, errors.Join(faults...)
}

func TestAThousandJobsOfTwoProjectsAllSucceedOnceAndInAFairOrder(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	const n = 1000
	projects := []*testkit.Client{inst.Client, inst.NewTenant(t).Key(t, time.Time{}, string(cay.ScopeJobs))}
	begun := time.Now()
	// The first project is there first with all of its jobs; the second gets its turn all the same.
	ids := make([]string, n)
	for p := range projects {
		some, err := each(n/2, 16, func(i int) (string, error) {
			j, err := projects[p].SubmitJob(ctx, fmt.Sprintf("print(%d)", p*n/2+i))
			return j.ID, err
		})
		if err != nil {
			t.Fatal(err)
		}
		copy(ids[p*n/2:], some)
	}
	submitted := time.Now()
	done, err := each(n, 8, func(i int) (testkit.JobObject, error) { return projects[2*i/n].WaitJob(ctx, ids[i]) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("submitted in %v, all done in %v", submitted.Sub(begun).Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	seen := map[string]bool{}
	for i, j := range done {
		if !j.Said(fmt.Sprintln(i)) || j.Attempt != 1 || seen[j.ID] {
			t.Errorf("job %d: %v", i, j)
		}
		seen[j.ID] = true
	}
	for p, c := range projects {
		if list, err := c.ListJobs(ctx, "status=success"); err != nil || len(list) != n/2 {
			t.Errorf("project %d has %d jobs that succeeded, %v", p, len(list), err)
		}
	}
	if t.Failed() {
		return
	}
	// While both have jobs that wait, they are started in turns.
	var order []int // projects, in the order in which their jobs began once all were there
	project := map[string]int{}
	for i, id := range ids {
		project[id] = 2 * i / n
	}
	slices.SortFunc(done, func(a, b testkit.JobObject) int { return a.StartedAt.Compare(*b.StartedAt) })
	total := [2]int{}
	for _, j := range done {
		if j.StartedAt.After(submitted) {
			order = append(order, project[j.ID])
			total[project[j.ID]]++
		}
	}
	count, lead := [2]int{}, 0
	for _, p := range order {
		count[p]++
		if count[0] < total[0] && count[1] < total[1] {
			lead = max(lead, count[0]-count[1], count[1]-count[0])
		}
	}
	const most = 24 // those that run or boot at once, and some that overtake others
	if lead > most || len(order) < n/4 {
		t.Errorf("of %d jobs one project was up to %d ahead", len(order), lead)
	}
}

// ledger is a program that fails when it is run a second time, and prints its number and some lines.
func ledger(i int) string {
	return fmt.Sprintf("import os, time\nos.close(os.open('/session/%d', os.O_CREAT | os.O_EXCL))\nprint(%d)\nfor n in range(20):\n  time.sleep(.02)\n  print('line', n)", i, i)
}

func ledgerOutput(i int) string {
	var b strings.Builder
	fmt.Fprintln(&b, i)
	for n := range 20 {
		fmt.Fprintln(&b, "line", n)
	}
	return b.String()
}

func TestKillingServerAndNodeLosesAndDoublesNoJob(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	session := inst.Session(t)
	// A job that lives through all of it, and two who watch it.
	const ticks = 400
	long := inst.Submit(t, fmt.Sprintf("import time\nfor n in range(%d):\n  print('tick', n)\n  time.sleep(.1)", ticks), fields{"timeout_seconds": 600})
	var watchers sync.WaitGroup
	var seen [2]testkit.JobTranscript
	for i := range seen {
		watchers.Go(func() {
			if err := inst.FollowJob(ctx, long.ID, &seen[i]); err != nil {
				t.Error(err)
			}
		})
	}
	long.Running()

	const perRound = 12
	var ids []string
	for round, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode, testkit.RoleServer, testkit.RoleNode, testkit.RoleUp} {
		begun := time.Now()
		first := len(ids)
		// What is submitted while the server dies is submitted again under the same key until it is answered.
		submitted := make(chan error, 1)
		some := make([]string, perRound)
		go func() {
			_, err := each(perRound, 4, func(i int) (string, error) {
				key := fmt.Sprintf("job %d", first+i)
				return key, testkit.Until(2*time.Minute, func() error {
					var j testkit.JobObject
					resp, err := inst.Do(ctx, "POST", "/v1/jobs", fields{"code": ledger(first + i), "session_id": session.ID, "session_shared": true}, "Idempotency-Key", key)
					if err == nil {
						err = resp.Decode(202, &j)
					}
					some[i] = j.ID
					return err
				})
			})
			submitted <- err
		}()
		<-time.After(time.Duration(round*350) * time.Millisecond) // the moment of the crash is what varies
		if err := killAndReturn(inst, role); err != nil {
			t.Fatalf("kill %s: %v", role, err)
		}
		if err := <-submitted; err != nil {
			t.Fatal(err)
		}
		ids = append(ids, some...)
		t.Logf("kill %s: back after %v", role, time.Since(begun).Round(10*time.Millisecond))
	}
	for i, id := range ids {
		var j testkit.JobObject
		err := testkit.Until(3*time.Minute, func() (err error) {
			j, err = inst.WaitJob(ctx, id)
			return err
		})
		if err != nil || !j.Said(ledgerOutput(i)) {
			t.Errorf("job %d: %v, %v", i, j, err)
		}
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(ids))); len(unique) != len(ids) {
		t.Errorf("%d submissions made %d jobs", len(ids), len(unique))
	}
	if all, err := inst.ListJobs(ctx, "session_id="+session.ID); err != nil || len(all) != len(ids) {
		t.Errorf("there are %d jobs for %d submissions, %v", len(all), len(ids), err)
	}
	var want strings.Builder
	for n := range ticks {
		want.WriteString("tick " + strconv.Itoa(n) + "\n")
	}
	if now := long.Wait(); !now.Said(want.String()) || now.Attempt != 1 {
		t.Errorf("the job that lived through all of it: %v", now)
	}
	watchers.Wait()
	for i, tr := range seen {
		if string(tr.Stdout) != want.String() || len(tr.Gaps)+len(tr.Stderr) > 0 || tr.Status() != "success" {
			t.Errorf("watcher %d: %d bytes of %d, gaps %v, %+v", i, len(tr.Stdout), want.Len(), tr.Gaps, tr.Last)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "no sandbox of a job is left", func() error {
		left, err := inst.ListSandboxes(ctx, "managed=true&status=CREATING,READY,PAUSED,TERMINATING")
		for _, sb := range left {
			err = errors.Join(err, fmt.Errorf("%s is %s", sb.ID, sb.Status))
		}
		return err
	})
}

// killAndReturn kills a process of the server and waits until all is ready again.
func killAndReturn(inst *testkit.Instance, role testkit.Role) error {
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
	return testkit.Until(2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return inst.Ready(ctx)
	})
}

func TestAJobWhoseSandboxDiesIsRunAgainAndThenGivenUp(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	session := inst.Session(t)
	// It ends by itself once it is told to, in its second attempt.
	again := inst.Submit(t, "import os, time\nprint('attempt', flush=True)\nopen('/session/begun', 'a').write('x')\nwhile not os.path.exists('/session/go'): time.sleep(.05)\nprint('done')", fields{"session_id": session.ID, "session_shared": true, "timeout_seconds": 600})
	again.Until("it has begun", func(now testkit.JobObject) bool { return now.Stdout != "" })
	killKernels(t, inst)
	again.Until("it has begun again", func(now testkit.JobObject) bool { return now.Attempt == 2 && now.Stdout != "" })
	session.Put("go", nil)
	if now := again.Wait(); now.Attempt != 2 || !now.Said("attempt\ndone\n") {
		t.Errorf("%v", now)
	}
	if tr := again.Stream(); string(tr.Stdout) != "attempt\ndone\n" || fmt.Sprint(tr.Statuses) != "[queued running]" {
		t.Errorf("its stream says %q, %v", tr.Stdout, tr.Statuses)
	}
	doomed := inst.Submit(t, "import time\nprint('attempt', flush=True)\ntime.sleep(600)", fields{"timeout_seconds": 600})
	for attempt := range 3 {
		doomed.Until("it has begun", func(now testkit.JobObject) bool { return now.Attempt == int64(attempt+1) && now.Stdout != "" })
		killKernels(t, inst)
	}
	if now := doomed.Wait(); now.Status != "error" || now.Attempt != 3 || now.Error == nil || now.Error.Reason == "" {
		t.Errorf("%v", now)
	}
}

func killKernels(t *testing.T, inst *testkit.Instance) {
	t.Helper()
	kernels := inst.Kernels()
	if len(kernels) == 0 {
		t.Fatal("no kernel was found")
	}
	for _, p := range kernels {
		kill(t, p.PID)
	}
}

func TestWhatWasWrittenToASessionIsThereAfterItsSandboxWasKilled(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	session := inst.Session(t)
	for round := range 3 {
		sb := inst.Create(t, fields{"session_id": session.ID})
		sb.Must(fmt.Sprintf("head -c 3000000 /dev/zero > /session/big; echo %d >> /session/log; mkdir /session/d%d", round, round))
		killKernels(t, inst)
		testkit.Eventually(t, 2*time.Minute, "its end is known", func() error {
			if now := sb.Refresh(); now.Status != "TERMINATED" {
				return fmt.Errorf("it is %s", now.Status)
			}
			return nil
		})
	}
	session.MustSay("0\n1\n2\n3000000\nd0 d1 d2\n", "sh", "cat log; stat -c %s big; echo d?")
	// The node is killed as well, and finds the volume again.
	session.Unused()
	sb := inst.Create(t, fields{"session_id": session.ID})
	sb.Must("echo last >> /session/log")
	for _, role := range []testkit.Role{testkit.RoleNode, testkit.RoleUp} {
		if err := killAndReturn(inst, role); err != nil {
			t.Fatal(err)
		}
		sb.MustSay("0\n1\n2\nlast\n", "cat /session/log")
	}
	if resp, err := inst.Do(t.Context(), "POST", "/v1/jobs", fields{"code": "1", "session_id": session.ID}); err != nil || resp.Status != 202 {
		t.Errorf("a job that waits: %v %v", resp, err)
	}
	if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	session.MustSay("last\n", "sh", "tail -n 1 log")
}
