package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

var jobQueueTests = suite{
	"a job is leased by one of many":                                           jobLeasedOnce,
	"two projects take turns, however many jobs each has":                      jobFairness,
	"with one slot two projects alternate":                                     jobAlternation,
	"a project that holds fewer leases comes first":                            jobFewestLeases,
	"within a project priority comes first, then age":                          jobPriority,
	"jobs that run and lost their holder come before all others":               jobOrphans,
	"a job before its time and a finished job are not leased":                  jobNotDue,
	"a lease that ran out is taken again with a higher fence":                  jobLeaseExpiry,
	"a job's lease is renewed only at its fence, and not once it has finished": jobRenewal,
	"what an older holder writes is refused by the fence":                      jobFence,
	"another runner's leases are released, one's own are not":                  jobTakeOver,
	"a canceled job leaves the queue":                                          jobCancel,
	"jobs of a session are leased one at a time":                               jobSerial,
	"jobs that share a session are leased together":                            jobShared,
	"a job waits for a sandbox that uses its session":                          jobWaitsForSandbox,
	"a job does not wait for its own sandbox":                                  jobOwnSandbox,
	"a project whose jobs all wait for a session keeps nobody up":              jobBlockedProject,
	"the queue does what its model does":                                       jobModel,
}

func leaseJobs(t tester, s store.Store, now time.Time, owner string, limit int) []*cay.Job {
	t.Helper()
	jobs, err := s.LeaseJobs(context.Background(), now, cay.Lease{Owner: owner, Until: now.Add(30 * time.Second)}, limit)
	must(t, err)
	return jobs
}

func jobIDs(jobs []*cay.Job) []cay.ID {
	var ids []cay.ID
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// wantLeased fails unless exactly these jobs are what is leased next.
func wantLeased(t *testing.T, s store.Store, now time.Time, limit int, want ...*cay.Job) []*cay.Job {
	t.Helper()
	got := leaseJobs(t, s, now, "me", limit)
	if !slices.Equal(jobIDs(got), jobIDs(want)) {
		t.Fatalf("leased %v, want %v", jobIDs(got), jobIDs(want))
	}
	return got
}

func jobLeasedOnce(t *testing.T, s store.Store) {
	const n = 60
	for i := range n {
		insertJob(t, s, Job(cay.ID(fmt.Sprintf("prj_%d", i%3)), epoch))
	}
	var mu sync.Mutex
	taken := map[cay.ID]int{}
	together(8, func(i int) {
		for {
			jobs, err := s.LeaseJobs(context.Background(), epoch, cay.Lease{Owner: fmt.Sprint(i), Until: epoch.Add(time.Minute)}, 3)
			if err != nil {
				t.Error(err)
				return
			}
			if len(jobs) == 0 {
				return
			}
			mu.Lock()
			for _, j := range jobs {
				taken[j.ID]++
			}
			mu.Unlock()
		}
	})
	if len(taken) != n {
		t.Errorf("%d jobs were leased, want %d", len(taken), n)
	}
	for id, times := range taken {
		if times != 1 {
			t.Errorf("%s was leased %d times", id, times)
		}
	}
}

// projectsOf writes the projects of jobs as letters.
func projectsOf(jobs []*cay.Job) string {
	var b strings.Builder
	for _, j := range jobs {
		b.WriteString(strings.TrimPrefix(string(j.ProjectID), "prj_"))
	}
	return b.String()
}

func jobFairness(t *testing.T, s store.Store) {
	for i := range 20 {
		insertJob(t, s, Job("prj_a", epoch.Add(time.Duration(i)*time.Second)))
	}
	for range 3 {
		insertJob(t, s, Job("prj_b", epoch.Add(time.Hour)))
	}
	first := leaseJobs(t, s, epoch.Add(2*time.Hour), "me", 4)
	second := leaseJobs(t, s, epoch.Add(2*time.Hour), "me", 6)
	if got := projectsOf(first) + " " + projectsOf(second); got != "abab abaaaa" {
		t.Errorf("the turns were %s", got)
	}
	for i, j := range slices.DeleteFunc(append(first, second...), func(j *cay.Job) bool { return j.ProjectID == "prj_b" }) {
		if want := epoch.Add(time.Duration(i) * time.Second); !j.QueuedAt.Equal(want) {
			t.Errorf("job %d of the first project was queued at %v, want %v", i, j.QueuedAt, want)
		}
	}
}

func jobAlternation(t *testing.T, s store.Store) {
	for range 5 {
		insertJob(t, s, Job("prj_a", epoch))
	}
	for range 3 {
		insertJob(t, s, Job("prj_b", epoch.Add(time.Hour)))
	}
	var done []*cay.Job
	for range 8 {
		jobs := leaseJobs(t, s, epoch.Add(2*time.Hour), "me", 1)
		done = append(done, jobs...)
		finish(t, s, jobs[0].ID, epoch.Add(2*time.Hour))
	}
	if got := projectsOf(done); got != "abababaa" {
		t.Errorf("the turns were %s", got)
	}
}

func jobFewestLeases(t *testing.T, s store.Store) {
	for range 3 {
		insertJob(t, s, Job("prj_a", epoch))
	}
	leaseJobs(t, s, epoch, "me", 2)
	for range 4 {
		insertJob(t, s, Job("prj_b", epoch))
	}
	// b takes its second lease, then both hold two and a's turn is longer ago.
	if got := projectsOf(leaseJobs(t, s, epoch, "me", 5)); got != "bbabb" {
		t.Errorf("the turns were %s", got)
	}
}

func jobPriority(t *testing.T, s store.Store) {
	make := func(priority int, after time.Duration) *cay.Job {
		j := Job(project, epoch.Add(after))
		j.Priority = priority
		return insertJob(t, s, j)
	}
	low, old, young, high := make(0, 0), make(5, 1), make(5, time.Second), make(9, time.Minute)
	wantLeased(t, s, epoch.Add(time.Hour), 3, high, old, young)
	wantLeased(t, s, epoch.Add(time.Hour), 3, low)
}

func jobOrphans(t *testing.T, s store.Store) {
	running := insertJob(t, s, Job(project, epoch))
	leaseJobs(t, s, epoch, "dead", 1)
	mutateJob(t, s, running.ID, func(j *cay.Job) {
		must(t, j.Transition(cay.JobRunning, epoch))
		j.Attempt, j.SandboxID, j.ProcessID = 1, "sbx_1", "prc_1"
	})
	urgent := Job(project, epoch.Add(-time.Hour))
	urgent.Priority = cay.MaxPriority
	insertJob(t, s, urgent)
	now := epoch.Add(time.Minute)
	got := wantLeased(t, s, now, 1, running)[0]
	if got.Fence != 2 || got.Status != cay.JobRunning || got.SandboxID != "sbx_1" || got.ProcessID != "prc_1" || string(got.Input) != "print(1)" {
		t.Errorf("what was taken over is %+v", got)
	}
	wantLeased(t, s, now, 5, urgent)
}

func jobNotDue(t *testing.T, s store.Store) {
	early := Job(project, epoch)
	early.NotBefore = epoch.Add(time.Second)
	insertJob(t, s, early)
	finish(t, s, insertJob(t, s, Job(project, epoch)).ID, epoch)
	behind := insertJob(t, s, Job(project, epoch.Add(time.Minute)))
	wantLeased(t, s, epoch, 10, behind)
	wantLeased(t, s, epoch.Add(time.Second), 10, early)
}

func jobLeaseExpiry(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	first := leaseJobs(t, s, epoch, "a", 1)
	if len(first) != 1 || first[0].Fence != 1 || first[0].Version != j.Version+1 || first[0].LeaseOwner != "a" || first[0].Status != cay.JobQueued {
		t.Fatalf("first lease: %+v", first)
	}
	kept, err := s.Job(t.Context(), j.ID)
	must(t, err)
	equalJobs(t, kept, first[0])
	if again := leaseJobs(t, s, epoch.Add(29*time.Second), "b", 1); len(again) != 0 {
		t.Fatal("a job was leased while the lease ran")
	}
	second := leaseJobs(t, s, epoch.Add(31*time.Second), "b", 1)
	if len(second) != 1 || second[0].Fence != 2 {
		t.Fatalf("after the lease ran out: %+v", second)
	}
}

func jobRenewal(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	leaseJobs(t, s, epoch, "a", 1)
	renew := func(owner string, fence int64) bool {
		t.Helper()
		lost, err := s.RenewJobLeases(t.Context(), cay.Lease{Owner: owner, Until: epoch.Add(time.Hour)}, map[cay.ID]int64{j.ID: fence})
		must(t, err)
		return !slices.Equal(lost, []cay.ID{j.ID})
	}
	if renew("a", 2) || renew("b", 1) || renew("a", 0) {
		t.Error("somebody else renewed the lease")
	}
	if !renew("a", 1) {
		t.Error("the holder did not renew the lease")
	}
	if again := leaseJobs(t, s, epoch.Add(time.Minute), "b", 1); len(again) != 0 {
		t.Error("the renewed lease did not hold")
	}
	got, err := s.Job(t.Context(), j.ID)
	must(t, err)
	if got.Version != 2 {
		t.Errorf("a renewal changed the version to %d", got.Version)
	}
	finish(t, s, j.ID, epoch)
	if renew("a", 1) {
		t.Error("the lease on a finished job was renewed")
	}
}

func jobFence(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	older := leaseJobs(t, s, epoch, "a", 1)[0]
	newer := leaseJobs(t, s, epoch.Add(time.Minute), "b", 1)[0]
	write := func(holder *cay.Job, sandbox cay.ID) error {
		_, err := s.MutateJob(t.Context(), j.ID, func(j *cay.Job) error {
			if j.Fence != holder.Fence {
				return cay.Errorf(cay.Conflict, "the lease is another's now")
			}
			j.SandboxID = sandbox
			return nil
		})
		return err
	}
	must(t, write(newer, "sbx_new"))
	wantReason(t, write(older, "sbx_old"), cay.Conflict)
	got, err := s.Job(t.Context(), j.ID)
	must(t, err)
	if got.SandboxID != "sbx_new" {
		t.Errorf("the older holder wrote %s", got.SandboxID)
	}
	lost, err := s.RenewJobLeases(t.Context(), cay.Lease{Owner: "a", Until: epoch.Add(time.Hour)}, map[cay.ID]int64{j.ID: older.Fence})
	must(t, err)
	if !slices.Equal(lost, []cay.ID{j.ID}) {
		t.Error("the older holder renewed")
	}
}

func jobTakeOver(t *testing.T, s store.Store) {
	old, mine := insertJob(t, s, Job(project, epoch)), insertJob(t, s, Job(project, epoch.Add(1)))
	leaseJobs(t, s, epoch, "dead", 1)
	wantLeased(t, s, epoch.Add(time.Second), 1, mine)
	n, err := s.ReleaseOtherJobLeases(t.Context(), "me")
	must(t, err)
	if n != 1 {
		t.Errorf("released %d leases, want 1", n)
	}
	if got := wantLeased(t, s, epoch.Add(time.Second), 10, old)[0]; got.Fence != 2 {
		t.Errorf("the dead one's job has fence %d, want 2", got.Fence)
	}
}

func jobCancel(t *testing.T, s store.Store) {
	queued, leased := insertJob(t, s, Job(project, epoch)), insertJob(t, s, Job(project, epoch.Add(-time.Second)))
	wantLeased(t, s, epoch, 1, leased)
	for _, j := range []*cay.Job{queued, leased} {
		mutateJob(t, s, j.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobCanceled, epoch)) })
	}
	wantLeased(t, s, epoch.Add(time.Hour), 10)
	lost, err := s.RenewJobLeases(t.Context(), cay.Lease{Owner: "me", Until: epoch.Add(time.Hour)}, map[cay.ID]int64{leased.ID: 1})
	must(t, err)
	if len(lost) != 1 {
		t.Error("the holder of a canceled job is not told")
	}
}

// sessionJob is a job that uses a session.
func sessionJob(t tester, s store.Store, ses *cay.Session, after time.Duration, shared bool) *cay.Job {
	t.Helper()
	j := Job(ses.ProjectID, epoch.Add(after))
	j.SessionID, j.Spec.SessionShared = ses.ID, shared
	return insertJob(t, s, j)
}

func jobSerial(t *testing.T, s store.Store) {
	ses, other := insertSession(t, s, Session(epoch)), insertSession(t, s, Session(epoch))
	first, second, third := sessionJob(t, s, ses, 0, false), sessionJob(t, s, ses, 1*time.Second, true), sessionJob(t, s, ses, 2*time.Second, false)
	elsewhere, free := sessionJob(t, s, other, 3*time.Second, false), insertJob(t, s, Job(project, epoch.Add(4*time.Second)))
	now := epoch.Add(time.Minute)
	wantLeased(t, s, now, 10, first, elsewhere, free)
	mutateJob(t, s, first.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobRunning, now)) })
	wantLeased(t, s, now, 10)
	// One that runs counts also when its holder has died.
	wantLeased(t, s, now.Add(time.Hour), 1, first)
	finish(t, s, first.ID, now)
	wantLeased(t, s, now, 10, second)
	finish(t, s, second.ID, now)
	wantLeased(t, s, now, 10, third)
}

func jobShared(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	a, alone, b := sessionJob(t, s, ses, 0, true), sessionJob(t, s, ses, time.Second, false), sessionJob(t, s, ses, 2*time.Second, true)
	now := epoch.Add(time.Minute)
	wantLeased(t, s, now, 10, a, b)
	finish(t, s, a.ID, now)
	wantLeased(t, s, now, 10)
	finish(t, s, b.ID, now)
	wantLeased(t, s, now, 10, alone)
}

func jobWaitsForSandbox(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	helper := sessionSandbox(ses, false)
	helper.Spec.ManagedBy = ses.ID
	insert(t, s, helper)
	sb := insert(t, s, sessionSandbox(ses, true))
	alone, shares := sessionJob(t, s, ses, 0, false), sessionJob(t, s, ses, time.Second, true)
	now := epoch.Add(time.Minute)
	wantLeased(t, s, now, 10, shares)
	finish(t, s, shares.ID, now)
	wantLeased(t, s, now, 10)
	end(t, s, sb.ID, now)
	wantLeased(t, s, now, 10, alone) // the session's own sandbox keeps nobody waiting
}

func jobOwnSandbox(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	j := sessionJob(t, s, ses, 0, false)
	urgent := Job(project, epoch)
	urgent.SessionID, urgent.Priority = ses.ID, cay.MaxPriority
	wantLeased(t, s, epoch, 1, j)
	insertJob(t, s, urgent)
	sb := sessionSandbox(ses, false)
	sb.Spec.ManagedBy = j.ID
	mutateJob(t, s, j.ID, func(j *cay.Job) { j.Attempt, j.SandboxID = 1, sb.ID })
	insert(t, s, sb)
	now := epoch.Add(time.Minute) // its holder died before the program was started
	wantLeased(t, s, now, 10, j)
	// It was given another sandbox: the first has to end before.
	mutateJob(t, s, j.ID, func(j *cay.Job) {
		j.Attempt, j.SandboxID, j.LeaseOwner, j.LeaseUntil = 2, cay.NewID(cay.PrefixSandbox), "", time.Time{}
	})
	wantLeased(t, s, now, 10)
	end(t, s, sb.ID, now)
	wantLeased(t, s, now, 10, urgent)
}

func jobBlockedProject(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	insert(t, s, sessionSandbox(ses, false))
	for range 50 {
		sessionJob(t, s, ses, 0, false)
	}
	other := insertJob(t, s, Job("prj_b", epoch.Add(time.Hour)))
	behind := insertJob(t, s, Job(project, epoch.Add(time.Hour)))
	got := leaseJobs(t, s, epoch.Add(2*time.Hour), "me", 10)
	if len(got) != 2 || !slices.Contains(jobIDs(got), other.ID) || !slices.Contains(jobIDs(got), behind.ID) {
		t.Errorf("leased %v", jobIDs(got))
	}
}
