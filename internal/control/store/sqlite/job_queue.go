package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// LeaseJobs implements store.Jobs.
func (s *Store) LeaseJobs(ctx context.Context, now time.Time, lease cay.Lease, limit int) ([]*cay.Job, error) {
	var leased []*cay.Job
	err := s.transactUnsynced(ctx, func(ctx context.Context, q *db.Queries) (err error) {
		leased, err = leaseJobs(ctx, q, now, lease, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return leased, nil
}

func leaseJobs(ctx context.Context, q *db.Queries, now time.Time, lease cay.Lease, limit int) ([]*cay.Job, error) {
	var leased []*cay.Job
	take := func(row db.Job) error {
		input, err := q.JobInput(ctx, row.ID)
		if err != nil {
			return fmt.Errorf("read the input of job %s: %w", row.ID, err)
		}
		j, err := fromJobRow(row, input, nil)
		if err != nil {
			return err
		}
		j.LeaseOwner, j.LeaseUntil = lease.Owner, lease.Until
		j.Fence++
		if err := updateJob(ctx, q, j); err != nil {
			return err
		}
		leased = append(leased, j)
		return nil
	}
	orphans, err := q.JobsToTakeOver(ctx, db.JobsToTakeOverParams{Now: micros(now), Max: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("look for jobs whose holder died: %w", err)
	}
	for _, row := range orphans {
		if err := take(row); err != nil {
			return nil, err
		}
	}
	if len(leased) == limit {
		return leased, nil
	}
	queue, err := readQueue(ctx, q, micros(now))
	if err != nil {
		return nil, err
	}
	for len(leased) < limit {
		row, ok, err := queue.next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if err := take(row); err != nil {
			return nil, err
		}
		if err := queue.taken(ctx, row); err != nil {
			return nil, err
		}
	}
	return leased, nil
}

// queue is the queued jobs as one LeaseJobs sees them. Of a project whose turn it may be it reads the head of each lane, and nothing
// behind it, so that many jobs that wait for one session cost no more than one.
type queue struct {
	q        *db.Queries
	now      int64
	projects []*waiting
	users    map[string][]user // of sessions, by id
}

// waiting is a project that has queued jobs.
type waiting struct {
	id           string
	leased, turn int64
	read         bool
	heads        map[lane]db.Job // what is due next in each lane; a lane where nothing is due is missing
}

// lane is the jobs of one project that use one session in one way, or no session: but for their order all are due together.
type lane struct {
	session string
	shared  int64
}

// user is what keeps a session in use: a sandbox, or a job that is leased or runs.
type user struct {
	id     string
	shared bool
	job    string // the one that it is, or that it serves
}

func readQueue(ctx context.Context, q *db.Queries, now int64) (*queue, error) {
	w := &queue{q: q, now: now, users: map[string][]user{}}
	projects, err := q.ProjectsWithQueuedJobs(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("look for projects with queued jobs: %w", err)
	}
	if len(projects) == 0 {
		return w, nil
	}
	for _, p := range projects {
		w.projects = append(w.projects, &waiting{id: p.ID, leased: p.Leased, turn: p.Turn, heads: map[lane]db.Job{}})
	}
	jobs, err := q.JobsThatUseSessions(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("look for jobs that use sessions: %w", err)
	}
	for _, j := range jobs {
		w.users[j.SessionID] = append(w.users[j.SessionID], user{id: j.ID, shared: j.SessionShared != 0, job: j.ID})
	}
	sandboxes, err := q.SandboxesThatUseSessions(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for sandboxes that use sessions: %w", err)
	}
	for _, sb := range sandboxes {
		w.users[sb.SessionID] = append(w.users[sb.SessionID], user{id: sb.ID, shared: sb.SessionShared != 0, job: sb.ManagedBy})
	}
	return w, nil
}

// next is the job whose turn it is.
func (w *queue) next(ctx context.Context) (db.Job, bool, error) {
	slices.SortStableFunc(w.projects, func(a, b *waiting) int { return cmp.Or(cmp.Compare(a.leased, b.leased), cmp.Compare(a.turn, b.turn)) })
	for _, p := range w.projects {
		if !p.read {
			if err := w.readHeads(ctx, p); err != nil {
				return db.Job{}, false, err
			}
		}
		var best *db.Job
		for _, head := range p.heads {
			if best == nil || before(head, *best) {
				best = &head
			}
		}
		if best != nil {
			return *best, true, nil
		}
	}
	return db.Job{}, false, nil
}

// before is the order within a project: by priority, then age.
func before(a, b db.Job) bool {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.QueuedAt, b.QueuedAt), cmp.Compare(a.ID, b.ID)) < 0
}

// taken notes that a job of the queue is leased now.
func (w *queue) taken(ctx context.Context, row db.Job) error {
	if err := w.q.TakeTurn(ctx, row.ProjectID); err != nil {
		return fmt.Errorf("write the turn of project %s: %w", row.ProjectID, err)
	}
	last := slices.MaxFunc(w.projects, func(a, b *waiting) int { return cmp.Compare(a.turn, b.turn) }).turn
	if row.SessionID != "" {
		w.users[row.SessionID] = append(w.users[row.SessionID], user{id: row.ID, shared: row.SessionShared != 0, job: row.ID})
	}
	i := slices.IndexFunc(w.projects, func(p *waiting) bool { return p.id == row.ProjectID })
	p := w.projects[i]
	p.leased++
	p.turn = last + 1
	return w.readSession(ctx, p, row.SessionID)
}

func (w *queue) readHeads(ctx context.Context, p *waiting) error {
	p.read = true
	sessions, err := w.q.SessionsWithQueuedJobs(ctx, p.id)
	if err != nil {
		return fmt.Errorf("look for what jobs of %s wait for: %w", p.id, err)
	}
	for _, session := range sessions {
		if err := w.readSession(ctx, p, session); err != nil {
			return err
		}
	}
	return nil
}

// readSession reads the heads of the lanes of a session, or of the jobs that have none.
func (w *queue) readSession(ctx context.Context, p *waiting, session string) error {
	for _, l := range []lane{{session, 0}, {session, 1}} {
		delete(p.heads, l)
		if session == "" && l.shared != 0 {
			continue
		}
		if err := w.readLane(ctx, p, l); err != nil {
			return err
		}
	}
	return nil
}

func (w *queue) readLane(ctx context.Context, p *waiting, l lane) error {
	users := w.users[l.session]
	if admits(users, l.shared != 0, "") {
		rows, err := w.q.NextQueuedJob(ctx, db.NextQueuedJobParams{ProjectID: p.id, SessionID: l.session, SessionShared: l.shared, Now: w.now})
		if err != nil {
			return fmt.Errorf("look for the next job of %s: %w", p.id, err)
		}
		if len(rows) > 0 {
			p.heads[l] = rows[0]
		}
		return nil
	}
	// It may be its own sandbox that a job waits for, made before its holder died.
	for _, u := range users {
		if u.job == "" || u.id == u.job {
			continue
		}
		rows, err := w.q.QueuedJobOfSandbox(ctx, db.QueuedJobOfSandboxParams{ID: u.job, SandboxID: u.id, SessionShared: l.shared, Now: w.now})
		if err != nil {
			return fmt.Errorf("look for job %s: %w", u.job, err)
		}
		if len(rows) > 0 && admits(users, l.shared != 0, u.id) {
			p.heads[l] = rows[0]
			return nil
		}
	}
	return nil
}

// admits says whether those who use a session let another one use it; own is a sandbox that is the other one's.
func admits(users []user, shared bool, own string) bool {
	return !slices.ContainsFunc(users, func(u user) bool { return u.id != own && !(shared && u.shared) })
}

// RenewJobLeases implements store.Jobs.
func (s *Store) RenewJobLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) ([]cay.ID, error) {
	var lost []cay.ID
	err := s.transactUnsynced(ctx, func(ctx context.Context, q *db.Queries) error {
		lost = nil
		for id, fence := range held {
			n, err := q.RenewJobLease(ctx, db.RenewJobLeaseParams{ID: string(id), Fence: fence, LeaseOwner: lease.Owner, LeaseUntil: micros(lease.Until)})
			if err != nil {
				return fmt.Errorf("renew the lease on job %s: %w", id, err)
			}
			if n == 0 {
				lost = append(lost, id)
			}
		}
		return nil
	})
	return lost, err
}

// ReleaseOtherJobLeases implements store.Jobs.
func (s *Store) ReleaseOtherJobLeases(ctx context.Context, owner string) (int64, error) {
	var n int64
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) (err error) {
		n, err = q.ReleaseOtherJobLeases(ctx, owner)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("release leases of jobs: %w", err)
	}
	return n, nil
}
