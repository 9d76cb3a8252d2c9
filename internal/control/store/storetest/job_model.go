package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

// model is the queue as LeaseJobs describes it, without any thought of speed.
type model struct {
	now  time.Time
	jobs []*cay.Job // all that were submitted
	turn map[cay.ID]int
	last int
}

func (m *model) leased(j *cay.Job) bool { return j.LeaseUntil.After(m.now) }

func (m *model) due(j *cay.Job) bool {
	if j.Status.Finished() || m.leased(j) || j.NotBefore.After(m.now) {
		return false
	}
	return j.Status == cay.JobRunning || j.SessionID == "" || !slices.ContainsFunc(m.jobs, func(o *cay.Job) bool {
		return o != j && o.SessionID == j.SessionID && !o.Status.Finished() && (m.leased(o) || o.Status == cay.JobRunning) &&
			!(o.Spec.SessionShared && j.Spec.SessionShared)
	})
}

// next is the job whose turn it is; nil: none.
func (m *model) next() *cay.Job {
	holds := map[cay.ID]int{}
	for _, j := range m.jobs {
		if m.leased(j) {
			holds[j.ProjectID]++
		}
	}
	orphan := func(j *cay.Job) int {
		if j.Status == cay.JobRunning {
			return 0
		}
		return 1
	}
	var best *cay.Job
	for _, j := range m.jobs {
		if !m.due(j) {
			continue
		}
		if best == nil {
			best = j
			continue
		}
		order := cmp.Compare(orphan(j), orphan(best))
		if j.Status == cay.JobQueued {
			order = cmp.Or(order, cmp.Compare(holds[j.ProjectID], holds[best.ProjectID]), cmp.Compare(m.turn[j.ProjectID], m.turn[best.ProjectID]),
				cmp.Compare(j.ProjectID, best.ProjectID), cmp.Compare(best.Priority, j.Priority))
		}
		if cmp.Or(order, j.QueuedAt.Compare(best.QueuedAt), cmp.Compare(j.ID, best.ID)) < 0 {
			best = j
		}
	}
	return best
}

func (m *model) lease(l cay.Lease, limit int) []cay.ID {
	var ids []cay.ID
	for len(ids) < limit {
		j := m.next()
		if j == nil {
			break
		}
		if j.Status == cay.JobQueued {
			m.last++
			m.turn[j.ProjectID] = m.last
		}
		j.LeaseOwner, j.LeaseUntil = l.Owner, l.Until
		j.Fence++
		ids = append(ids, j.ID)
	}
	return ids
}

// jobModel holds the store against the model over random histories, and then runs what is left to its end: every job is run once.
func jobModel(t *testing.T, s store.Store) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{now: epoch, turn: map[cay.ID]int{}}
		var projects []cay.ID
		for range 3 {
			projects = append(projects, cay.NewID(cay.PrefixProject))
		}
		slices.Sort(projects)
		sessions := map[cay.ID][]cay.ID{} // of a project; "": none
		for _, p := range projects {
			ses := Session(epoch)
			ses.ProjectID = p
			sessions[p] = []cay.ID{"", insertSession(rt, s, ses).ID}
		}
		defer func() { // the store serves the next history as well
			for _, j := range m.jobs {
				_ = s.DeleteJob(ctx, j.ID)
			}
		}()
		leaseBoth := func(rt *rapid.T, owner string, limit int) {
			l := cay.Lease{Owner: owner, Until: m.now.Add(30 * time.Second)}
			got, err := s.LeaseJobs(ctx, m.now, l, limit)
			must(rt, err)
			if want := m.lease(l, limit); !slices.Equal(jobIDs(got), want) {
				rt.Fatalf("leased %v, want %v", jobIDs(got), want)
			}
		}
		pick := func(rt *rapid.T, which func(*cay.Job) bool) *cay.Job {
			var found []*cay.Job
			for _, j := range m.jobs {
				if which(j) {
					found = append(found, j)
				}
			}
			if len(found) == 0 {
				rt.Skip("no such job")
			}
			return found[rapid.IntRange(0, len(found)-1).Draw(rt, "job")]
		}
		move := func(rt *rapid.T, j *cay.Job, to cay.JobStatus, notBefore time.Time) {
			if to == cay.JobQueued { // tried again
				j.LeaseOwner, j.LeaseUntil, j.NotBefore = "", time.Time{}, notBefore
			}
			must(rt, j.Transition(to, m.now))
			mutateJob(rt, s, j.ID, func(row *cay.Job) {
				if row.Fence != j.Fence || row.Input == nil {
					rt.Fatalf("%s is at fence %d with input %q, want fence %d", j.ID, row.Fence, row.Input, j.Fence)
				}
				row.LeaseOwner, row.LeaseUntil, row.NotBefore = j.LeaseOwner, j.LeaseUntil, j.NotBefore
				must(rt, row.Transition(to, m.now))
			})
		}
		rt.Repeat(map[string]func(*rapid.T){
			"submit": func(rt *rapid.T) {
				p := rapid.SampledFrom(projects).Draw(rt, "project")
				j := Job(p, m.now.Add(-time.Duration(rapid.IntRange(0, 3).Draw(rt, "age"))*time.Second))
				j.Priority = rapid.IntRange(4, 6).Draw(rt, "priority")
				j.SessionID = rapid.SampledFrom(sessions[p]).Draw(rt, "session")
				j.Spec.SessionShared = rapid.Bool().Draw(rt, "shared")
				insertJob(rt, s, j)
				m.jobs = append(m.jobs, j)
			},
			"lease": func(rt *rapid.T) {
				leaseBoth(rt, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "owner"), rapid.IntRange(1, 4).Draw(rt, "limit"))
			},
			"run": func(rt *rapid.T) {
				j := pick(rt, func(j *cay.Job) bool { return j.Status == cay.JobQueued && m.leased(j) })
				move(rt, j, cay.JobRunning, time.Time{})
			},
			"finish": func(rt *rapid.T) {
				j := pick(rt, func(j *cay.Job) bool { return j.Status == cay.JobRunning && m.leased(j) })
				move(rt, j, cay.JobSuccess, time.Time{})
			},
			"try again": func(rt *rapid.T) {
				j := pick(rt, func(j *cay.Job) bool { return j.Status == cay.JobRunning && m.leased(j) })
				move(rt, j, cay.JobQueued, m.now.Add(time.Duration(rapid.IntRange(0, 1).Draw(rt, "pause"))*time.Minute))
			},
			"cancel": func(rt *rapid.T) {
				j := pick(rt, func(j *cay.Job) bool { return !j.Status.Finished() })
				move(rt, j, cay.JobCanceled, time.Time{})
			},
			"renew": func(rt *rapid.T) {
				j := pick(rt, func(j *cay.Job) bool { return j.Fence > 0 })
				l := cay.Lease{Owner: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "owner"), Until: m.now.Add(time.Minute)}
				fence := j.Fence - int64(rapid.IntRange(0, 1).Draw(rt, "older"))
				lost, err := s.RenewJobLeases(ctx, l, map[cay.ID]int64{j.ID: fence})
				must(rt, err)
				held := !j.Status.Finished() && j.LeaseOwner == l.Owner && j.Fence == fence
				if held == (len(lost) > 0) {
					rt.Fatalf("%s is held %v and called lost %v", j.ID, held, lost)
				}
				if held {
					j.LeaseUntil = l.Until
				}
			},
			"die": func(rt *rapid.T) {
				owner := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "survivor")
				_, err := s.ReleaseOtherJobLeases(ctx, owner)
				must(rt, err)
				for _, j := range m.jobs {
					if j.LeaseOwner != owner {
						j.LeaseOwner, j.LeaseUntil = "", time.Time{}
					}
				}
			},
			"wait": func(*rapid.T) { m.now = m.now.Add(20 * time.Second) },
		})
		m.now = m.now.Add(time.Hour) // every holder has died, every pause is over
		for slices.ContainsFunc(m.jobs, func(j *cay.Job) bool { return !j.Status.Finished() }) {
			leaseBoth(rt, "last", 2)
			held := 0
			for _, j := range m.jobs {
				if !m.leased(j) {
					continue
				}
				held++
				if j.Status == cay.JobQueued {
					move(rt, j, cay.JobRunning, time.Time{})
				}
				move(rt, j, cay.JobSuccess, time.Time{})
			}
			if held == 0 {
				rt.Fatalf("nothing is leased, and these have not finished: %s", unfinished(m.jobs))
			}
		}
	})
}

func unfinished(jobs []*cay.Job) (text string) {
	for _, j := range jobs {
		if !j.Status.Finished() {
			text += fmt.Sprintf("%s %s not before %v; ", j.ID, j.Status, j.NotBefore)
		}
	}
	return text
}
