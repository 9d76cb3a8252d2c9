package jobs_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestAJobRunsOnceAndLeavesNothing(t *testing.T) {
	p := start(t)
	p.node.Files = map[string]string{"/output/plot.png": "picture"}
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
		q.Report(&nodev1.CodeReport{FilesChanged: []*nodev1.CodeReport_FileChange{
			{Path: "/output/gone", Op: "create"}, {Path: "/output/plot.png", Op: "create", Size: 7}, {Path: "/workspace/x", Op: "write", Size: 3},
		}})
		return prints(q.Stdin()+"\n", 0)(q)
	}
	id := p.submit(func(r *cay.SubmitJob) { r.Stdin, r.Env = []byte("abc"), map[string]string{"A": "b"} })
	row := p.finished(id, cay.JobSuccess)
	if p.output(row) != "abc\n" || row.Attempt != 1 || *row.ExitCode != 0 || row.Duration != 5*time.Millisecond ||
		row.Usage.CPUSeconds != 0.25 || row.Usage.PeakMemoryMB != 33 {
		t.Errorf("%q, %+v", p.output(row), row)
	}
	r, err := p.Result(t.Context(), row, 100)
	if err != nil || len(r.FilesChanged) != 3 || len(r.Outputs) != 1 || r.Outputs[0].MIME != "image/png" || r.Outputs[0].Size != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	_, content, err := p.OpenOutput(t.Context(), project, id, "/output/plot.png")
	p.ok(err)
	defer content.Close()
	if b, err := io.ReadAll(content); string(b) != "picture" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if _, _, err := p.OpenOutput(t.Context(), project, id, "/output/gone"); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("what is no output: %v", err)
	}
	st := p.node.Processes("")[0].Start
	if st.Spec.Code.Directory != "/sandbox" || st.Spec.Cwd != "/workspace" || st.Spec.TimeoutMs != 60_000 || st.Spec.Env["A"] != "b" || string(st.Spec.Code.Source) != "print(1)" {
		t.Errorf("started as %v", st)
	}
	if _, err := p.Get(t.Context(), stranger, id); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("a stranger gets %v", err)
	}
	p.clean()
}

func TestTheEndOfAProgramIsTheEndOfItsJob(t *testing.T) {
	p := start(t)
	ends := map[string]*nodev1.Exit{
		"success": {}, "failed code": {Code: 3}, "failed signal": {Code: 139, Signal: "SEGV"}, "failed killed": {Code: 137, Signal: "KILL"},
		"failed oom": {Code: 137, Signal: "KILL", Oom: true}, "timeout": {Code: 137, Signal: "KILL", TimedOut: true},
	}
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { return ends[string(q.Start.Spec.Code.Source)] }
	for name := range ends {
		id := p.submit(func(r *cay.SubmitJob) { r.Code = []byte(name) })
		status, what, _ := strings.Cut(name, " ")
		row := p.finished(id, cay.JobStatus(status))
		if (what == "oom") != (row.Fault != nil && row.Fault.Reason == "oom") || row.Attempt != 1 || *row.ExitCode != int(ends[name].Code) {
			t.Errorf("%s: %+v, fault %+v", name, row, row.Fault)
		}
	}
	p.clean()
}

func TestAHolderThatIsKilledAtAnyStepLosesNothingAndDoublesNothing(t *testing.T) {
	type point struct {
		call  string
		count int
	}
	var points []point
	for _, side := range []string{"before", "after"} {
		for count := 1; count <= 3; count++ { // ids, running, the end
			points = append(points, point{side + " MutateJob", count})
		}
		points = append(points, point{side + " Create", 1}, point{side + " Write", 1}, point{side + " Write", 2})
	}
	for _, at := range points {
		t.Run(fmt.Sprintf("%s %d", at.call, at.count), func(t *testing.T) {
			t.Parallel()
			p := start(t)
			text := strings.Repeat("0123456789abcdef\x00\x01\x02\x03random"+string(make([]byte, 100)), 5000) + randomText(300_000)
			p.node.Files = map[string]string{"/output/f": "file"}
			p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
				q.Report(&nodev1.CodeReport{FilesChanged: []*nodev1.CodeReport_FileChange{{Path: "/output/f", Op: "create", Size: 4}}})
				return prints(text, 0)(q)
			}
			reached := p.calls.breakAt(at.call, at.count, nil)
			id := p.submit()
			await(t, reached, at.call)
			p.Crash()
			p.up()
			row := p.finished(id, cay.JobSuccess)
			r, err := p.Result(t.Context(), row, 4<<20)
			if err != nil || string(r.Stdout) != text || len(r.Outputs) != 1 {
				t.Errorf("%d bytes of %d, %d outputs, %v", len(r.Stdout), len(text), len(r.Outputs), err)
			}
			if n := len(p.node.Processes("")); n != 1 || row.Attempt != 1 {
				t.Errorf("it ran %d times, attempt %d", n, row.Attempt)
			}
			p.clean()
		})
	}
}

func TestARepeatedSubmissionOfAChosenIDFindsTheFirst(t *testing.T) {
	p := start(t)
	chosen := func(r *cay.SubmitJob) { r.ID = "job_01hzzzzzzzzzzzzzzzzzzzzzzz" }
	first := p.submit(chosen)
	p.Crash()
	p.up()
	if again := p.submit(chosen); again != first || first != "job_01hzzzzzzzzzzzzzzzzzzzzzzz" {
		t.Errorf("first %s, again %s", first, again)
	}
	if rows, _, err := p.List(t.Context(), project, cay.JobQuery{Limit: 10}); err != nil || len(rows) != 1 {
		t.Errorf("%d jobs, %v", len(rows), err)
	}
}

func TestAHolderThatIsKilledWhileTheProgramRunsIsFollowedByAnother(t *testing.T) {
	p := start(t)
	release := make(chan struct{})
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
		q.Write(cay.Stdout, "before ")
		<-release
		return prints("after", 0)(q)
	}
	id := p.submit()
	nodetest.Eventually(t, "it runs", func() bool {
		row, err := p.store.Job(t.Context(), id)
		return err == nil && row.Status == cay.JobRunning
	})
	p.Crash()
	p.up()
	p.Stop() // gives it back
	close(release)
	p.up()
	if row := p.finished(id, cay.JobSuccess); p.output(row) != "before after" || row.Attempt != 1 || len(p.node.Processes("")) != 1 {
		t.Errorf("%q, attempt %d, ran %d times", p.output(row), row.Attempt, len(p.node.Processes("")))
	}
	p.clean()
}

func TestTheSandboxOfAHolderThatDiedBehindTheEndIsSwept(t *testing.T) {
	p := start(t)
	reached := p.calls.breakAt("before Delete", 1, errBroken)
	p.finished(p.submit(), cay.JobSuccess)
	await(t, reached, "the deletion")
	p.clean()
}

func TestWhatThePlatformBreaksIsTriedAgainAndThenGivenUp(t *testing.T) {
	for name, lost := range map[string]int{"once": 1, "twice": 2, "always": 3} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			var mu sync.Mutex
			runs := 0
			p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
				mu.Lock()
				runs++
				lose := runs <= lost
				mu.Unlock()
				q.Write(cay.Stdout, fmt.Sprint("attempt ", runs))
				if lose {
					p.node.Emit(&nodev1.Event{SandboxId: q.Start.SandboxId, Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: "worker_lost"}}})
					<-q.Gone
				}
				return &nodev1.Exit{}
			}
			id := p.submit()
			if lost == 3 {
				if row := p.finished(id, cay.JobError); row.Attempt != 3 || row.Fault.Reason != "worker_lost" {
					t.Errorf("%+v %+v", row, row.Fault)
				}
			} else if row := p.finished(id, cay.JobSuccess); row.Attempt != int64(lost+1) || p.output(row) != fmt.Sprint("attempt ", lost+1) {
				t.Errorf("attempt %d, %q", row.Attempt, p.output(row))
			}
			p.clean()
		})
	}
}

func TestASandboxThatEndsUnderItsJobEndsTheJob(t *testing.T) {
	for reason, want := range map[string]struct {
		status cay.JobStatus
		fault  string
	}{"oom": {cay.JobFailed, "oom"}, "disk_full": {cay.JobFailed, "disk_full"}, "deleted": {cay.JobError, "sandbox_ended"}} {
		t.Run(reason, func(t *testing.T) {
			p := start(t)
			p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
				if reason == "deleted" {
					if _, err := p.life.Delete(context.Background(), project, cay.ID(q.Start.SandboxId)); err != nil {
						t.Error(err)
					}
				} else {
					p.node.Emit(&nodev1.Event{SandboxId: q.Start.SandboxId, Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: reason}}})
				}
				<-q.Gone
				return &nodev1.Exit{}
			}
			if row := p.finished(p.submit(), want.status); row.Fault == nil || row.Fault.Reason != want.fault || row.Attempt != 1 {
				t.Errorf("%+v, %+v", row, row.Fault)
			}
			p.clean()
		})
	}
}

func TestANodeThatIsRestartedInTheMiddleChangesNothing(t *testing.T) {
	p := start(t)
	release := make(chan struct{})
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { <-release; return prints("done", 0)(q) }
	id := p.submit()
	nodetest.Eventually(t, "it runs", func() bool { return len(p.node.Processes("")) == 1 })
	p.node.Kill()
	close(release)
	p.node.Start(t)
	if row := p.finished(id, cay.JobSuccess); p.output(row) != "done" || row.Attempt != 1 || len(p.node.Processes("")) != 1 {
		t.Errorf("%q, attempt %d", p.output(row), row.Attempt)
	}
}

func TestAJobIsCanceledInEveryState(t *testing.T) {
	full := func(p *plane) { p.cfg.Concurrency = 1 }
	t.Run("while it is queued", func(t *testing.T) {
		p := start(t, full)
		release := make(chan struct{})
		p.node.OnProcess = func(*nodetest.Process) *nodev1.Exit { <-release; return &nodev1.Exit{} }
		first := p.submit()
		nodetest.Eventually(t, "the first runs", func() bool { return len(p.node.Processes("")) == 1 })
		id := p.submit()
		row, err := p.Cancel(t.Context(), project, id)
		if err != nil || row.Status != cay.JobCanceled || row.Attempt != 0 {
			t.Errorf("%+v, %v", row, err)
		}
		close(release)
		p.finished(first, cay.JobSuccess)
	})
	t.Run("while its sandbox boots", func(t *testing.T) {
		p := start(t)
		booting := make(chan struct{}, 10)
		p.node.OnCreate = func(ctx context.Context, _ *nodev1.CreateRequest) error {
			booting <- struct{}{}
			return nodetest.Hang(ctx)
		}
		id := p.submit()
		<-booting
		row, err := p.Cancel(t.Context(), project, id)
		if err != nil || row.Status != cay.JobCanceled || len(p.node.Processes("")) != 0 {
			t.Errorf("%+v, %v", row, err)
		}
		p.clean()
	})
	t.Run("while it runs", func(t *testing.T) {
		p := start(t)
		p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
			q.Write(cay.Stdout, "so far")
			q.Killed()
			return nodetest.KilledExit()
		}
		id := p.submit()
		nodetest.Eventually(t, "it runs", func() bool { return len(p.node.Processes("")) == 1 })
		row, err := p.Cancel(t.Context(), project, id)
		if err != nil || row.Status != cay.JobCanceled || p.output(row) != "so far" || row.Signal != "KILL" {
			t.Errorf("%+v, %v", row, err)
		}
		p.clean()
	})
	t.Run("while nobody holds it", func(t *testing.T) {
		p := start(t)
		p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { q.Killed(); return nodetest.KilledExit() }
		id := p.submit()
		nodetest.Eventually(t, "it runs", func() bool {
			row, err := p.store.Job(t.Context(), id)
			return err == nil && row.Status == cay.JobRunning
		})
		p.Crash()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if row, err := p.Cancel(ended, project, id); err == nil && row.Status.Finished() {
			t.Errorf("%+v", row)
		}
		if _, err := p.store.MutateJob(t.Context(), id, func(j *cay.Job) error { j.CancelAsked = true; return nil }); err != nil {
			t.Fatal(err)
		}
		p.up()
		p.finished(id, cay.JobCanceled)
	})
	t.Run("when it has ended by itself", func(t *testing.T) {
		p := start(t)
		reached := p.calls.breakAt("before MutateJob", 3, nil) // the end
		id := p.submit()
		await(t, reached, "the end")
		if _, err := p.store.MutateJob(t.Context(), id, func(j *cay.Job) error { j.CancelAsked = true; return nil }); err != nil {
			t.Fatal(err)
		}
		p.Crash()
		p.up()
		row := p.finished(id, cay.JobSuccess)
		if again, err := p.Cancel(t.Context(), project, id); err != nil || again.Status != row.Status {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

func TestTwoProjectsHaveTheirTurnsHoweverManyJobsOneHas(t *testing.T) {
	p := start(t, func(p *plane) { p.cfg.Concurrency = 1 })
	release := make(chan struct{})
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { <-release; return &nodev1.Exit{} }
	var mine []cay.ID
	for range 12 {
		mine = append(mine, p.submit())
	}
	var theirs []cay.ID
	for range 3 {
		theirs = append(theirs, p.submitFor(stranger))
	}
	close(release)
	for _, id := range theirs {
		p.finished(id, cay.JobSuccess)
	}
	last, err := p.Get(t.Context(), stranger, theirs[2])
	p.ok(err)
	before := 0
	for _, id := range mine {
		if row := p.finished(id, cay.JobSuccess); row.StartedAt.Before(last.StartedAt) {
			before++
		}
	}
	if before > 5 {
		t.Errorf("%d jobs of the one project began before the third of the other", before)
	}
}

func TestASessionInUseHoldsItsJobBackWithoutCountingAsAnAttempt(t *testing.T) {
	p := start(t)
	session := &cay.Session{ID: cay.NewID(cay.PrefixSession), ProjectID: project, Status: cay.SessionActive, DiskGB: 1, TTL: time.Hour,
		CreatedAt: time.Now(), LastUsedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour), Version: 1}
	p.ok(p.store.InsertSession(t.Context(), session, 0))
	busy := cay.Errorf(cay.Conflict, "the session is in use")
	reached := p.calls.breakAt("before Create", 1, busy) // a race with a sandbox that the queue did not see
	with := func(r *cay.SubmitJob) { r.SessionID = session.ID }
	first := p.submit(with)
	await(t, reached, "the conflict")
	if row := p.finished(first, cay.JobSuccess); row.Attempt != 1 {
		t.Errorf("attempt %d", row.Attempt)
	}
	var ids []cay.ID
	for range 5 {
		ids = append(ids, p.submit(with))
	}
	var mu sync.Mutex
	running, most := 0, 0
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		defer func() { mu.Lock(); running--; mu.Unlock() }()
		return prints(q.Start.Spec.Cwd, 0)(q)
	}
	for _, id := range ids {
		p.finished(id, cay.JobSuccess)
	}
	if most > 1 {
		t.Errorf("%d jobs of an exclusive session ran at once", most)
	}
	p.clean()
}

func TestAJobThatFindsNoRoomInTimeIsAnError(t *testing.T) {
	p := start(t, func(p *plane) { p.cfg.Concurrency = 1 })
	release := make(chan struct{})
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { <-release; return &nodev1.Exit{} }
	first := p.submit()
	nodetest.Eventually(t, "the first runs", func() bool { return len(p.node.Processes("")) == 1 })
	soon := 10 * time.Millisecond
	row := p.finished(p.submit(func(r *cay.SubmitJob) { r.QueueTimeout = &soon }), cay.JobError)
	if row.Fault.Reason != "no_capacity" {
		t.Errorf("%+v", row.Fault)
	}
	close(release)
	p.finished(first, cay.JobSuccess)
}

func TestABlobStorageThatIsFullIsSaidPlainlyAndTheProgramIsNotRunAgain(t *testing.T) {
	p := start(t)
	text := randomText(300_000)
	p.node.OnProcess = prints(text, 0)
	p.Stop()
	p.Jobs = p.withBlobs(fullBlobs{p.blobs})
	p.ok(p.Start(t.Context()))
	row := p.finished(p.submit(), cay.JobError)
	if row.Fault.Reason != "disk_full" || !strings.Contains(row.Fault.Detail, "blob storage is full") || *row.ExitCode != 0 || len(p.node.Processes("")) != 1 {
		t.Errorf("%+v, %+v", row, row.Fault)
	}
	r, err := p.Result(t.Context(), row, 1000)
	if err != nil || r.StdoutSize != int64(len(text)) || r.StdoutGap == nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := p.Submit(t.Context(), project, "", cay.SubmitJob{Code: []byte(randomText(100_000))}); cay.ReasonOf(err) != cay.Unavailable {
		t.Errorf("a program that cannot be kept: %v", err)
	}
	p.clean()
}

func TestASaveThatTakesLongHoldsNoOtherJobBack(t *testing.T) {
	p := start(t, func(p *plane) { p.cfg.Concurrency = 1 })
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { return prints(string(q.Start.Spec.Code.Source), 0)(q) }
	reached := p.calls.breakAt("before Write", 2, nil) // the first is its input
	slow := p.submit(func(r *cay.SubmitJob) { r.Code = []byte(randomText(300_000)) })
	await(t, reached, "the slow write")
	p.finished(p.submit(), cay.JobSuccess)
	if row, err := p.Get(t.Context(), project, slow); err != nil || row.Status != cay.JobRunning {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestWhatIsOldIsRemovedWithItsBlobs(t *testing.T) {
	p := start(t)
	p.node.OnProcess = prints(randomText(300_000), 0)
	row := p.finished(p.submit(), cay.JobSuccess)
	p.Stop()
	p.cfg.Retention = time.Microsecond
	p.up()
	nodetest.Eventually(t, "the row is gone", func() bool {
		_, err := p.Get(t.Context(), project, row.ID)
		return cay.ReasonOf(err) == cay.NotFound
	})
	if _, err := p.blobs.Read(t.Context(), row.ResultKey); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("its output: %v", err)
	}
}

func TestWhatIsInvalidIsRefusedByItsField(t *testing.T) {
	p := start(t)
	zero, long, high, low := time.Duration(0), 25*time.Hour, 10, int64(1)
	for field, c := range map[string]struct {
		reason cay.ErrorReason
		edit   func(*cay.SubmitJob)
	}{
		"code":             {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Code = nil }},
		"language":         {cay.Unprocessable, func(r *cay.SubmitJob) { r.Language = "cobol" }},
		"packages":         {cay.NotImplemented, func(r *cay.SubmitJob) { r.Packages = []string{"x"} }},
		"network":          {cay.NotImplemented, func(r *cay.SubmitJob) { r.Network = []string{"x"} }},
		"timeout_seconds":  {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Timeout = &zero }},
		"env":              {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Env = map[string]string{"": "x"} }},
		"metadata":         {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Metadata = map[string]string{"": "x"} }},
		"priority":         {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Priority = &high }},
		"memory_mb":        {cay.InvalidRequest, func(r *cay.SubmitJob) { r.MemoryMB = &low }},
		"session_id":       {cay.Unprocessable, func(r *cay.SubmitJob) { r.SessionID = cay.NewID(cay.PrefixSession) }},
		"session_shared":   {cay.InvalidRequest, func(r *cay.SubmitJob) { r.SessionShared = true }},
		"timeout_seconds ": {cay.InvalidRequest, func(r *cay.SubmitJob) { r.Timeout = &long }},
	} {
		req := cay.SubmitJob{Code: []byte("1")}
		c.edit(&req)
		_, err := p.Submit(t.Context(), project, "", req)
		var e *cay.Error
		if !asError(err, &e) || e.Reason != c.reason || e.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// fullBlobs is a storage without room.
type fullBlobs struct{ blobsOf }

func (fullBlobs) Write(context.Context, string, io.Reader) (int64, error) { return 0, syscall.ENOSPC }
