package api

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// fakeJobs keeps jobs in memory, with what a test says that they did. A change wakes who waits.
type fakeJobs struct {
	mu      sync.Mutex
	changed chan struct{}
	rows    map[cay.ID]*cay.Job
	frames  map[cay.ID][]cay.JobFrame
	results map[cay.ID]cay.JobResult
	files   map[string][]byte // by path, of any job
	asked   cay.SubmitJob     // the last
	query   cay.JobQuery      // of the last List
	fault   error             // of what reads output
	stuck   bool              // a cancel of a running job does nothing
}

func newFakeJobs() *fakeJobs {
	return &fakeJobs{
		changed: make(chan struct{}), rows: map[cay.ID]*cay.Job{}, frames: map[cay.ID][]cay.JobFrame{},
		results: map[cay.ID]cay.JobResult{}, files: map[string][]byte{},
	}
}

// wake must be called with the lock held.
func (f *fakeJobs) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeJobs) Submit(_ context.Context, project, _ cay.ID, req cay.SubmitJob) (*cay.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.Language == "cobol" {
		return nil, cay.Errorf(cay.Unprocessable, "there is no language %q; there are bash, python", req.Language).On("language")
	}
	if req.Timeout != nil && *req.Timeout > time.Hour {
		return nil, cay.Errorf(cay.Unprocessable, "timeout_seconds is too long here").On("timeout_seconds")
	}
	f.asked = req
	j := &cay.Job{
		ID: cay.NewID(cay.PrefixJob), ProjectID: project, Status: cay.JobQueued, Metadata: req.Metadata, SessionID: req.SessionID, Priority: cay.DefaultPriority,
		Spec: cay.JobSpec{Language: "python", Env: req.Env, Timeout: time.Minute, SessionShared: req.SessionShared}, QueuedAt: time.UnixMilli(1_700_000_000_000),
	}
	f.rows[j.ID] = j
	f.frames[j.ID] = []cay.JobFrame{{Type: "status", Seq: 1, At: j.QueuedAt, Status: cay.JobQueued}}
	c := *j
	return &c, nil
}

// runs begins the program of a job.
func (f *fakeJobs) runs(id cay.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.rows[id]
	j.Status, j.Attempt, j.StartedAt, j.SandboxID = cay.JobRunning, 1, j.QueuedAt.Add(time.Second), cay.NewID(cay.PrefixSandbox)
	f.addLocked(id, cay.JobFrame{Type: "status", Status: cay.JobRunning, Attempt: 1})
}

// add adds a frame, and says where it ends.
func (f *fakeJobs) add(id cay.ID, frame cay.JobFrame) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(id, frame)
}

func (f *fakeJobs) addLocked(id cay.ID, frame cay.JobFrame) int64 {
	frame.Seq, frame.At = 1, f.rows[id].QueuedAt
	if frame.Type == "stdout" || frame.Type == "stderr" || frame.Type == "gap" {
		frame.Seq = int64(len(frame.Data)) + frame.Bytes
	}
	if n := len(f.frames[id]); n > 0 {
		frame.Seq += f.frames[id][n-1].Seq
	}
	f.frames[id] = append(f.frames[id], frame)
	f.wake()
	return frame.Seq
}

// writes is output of the program.
func (f *fakeJobs) writes(id cay.ID, stream, data string) int64 {
	return f.add(id, cay.JobFrame{Type: stream, Data: []byte(data)})
}

// finishes ends the program with a code.
func (f *fakeJobs) finishes(id cay.ID, code int) {
	status := cay.JobSuccess
	if code != 0 {
		status = cay.JobFailed
	}
	f.ends(id, "exit", func(j *cay.Job) { j.Status, j.ExitCode, j.Duration = status, &code, 1500*time.Millisecond })
}

// ends ends the job with its last frame.
func (f *fakeJobs) ends(id cay.ID, last string, how func(*cay.Job)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.rows[id]
	how(j)
	j.FinishedAt = j.QueuedAt.Add(3 * time.Second)
	c := *j
	f.addLocked(id, cay.JobFrame{Type: last, Job: &c})
}

func (f *fakeJobs) Get(_ context.Context, project, id cay.ID) (*cay.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, ok := f.rows[id]
	if !ok || j.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "there is no job %s", id)
	}
	c := *j
	return &c, nil
}

func (f *fakeJobs) Wait(ctx context.Context, project, id cay.ID) (*cay.Job, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		j, err := f.Get(ctx, project, id)
		if err != nil || j.Status.Finished() || ctx.Err() != nil {
			return j, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (f *fakeJobs) List(_ context.Context, project cay.ID, q cay.JobQuery) ([]*cay.Job, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.query = q
	var all []*cay.Job
	for _, j := range f.rows {
		if j.ProjectID == project {
			all = append(all, j)
		}
	}
	return all[:min(len(all), q.Limit)], map[bool]string{true: "next"}[len(all) > q.Limit], nil
}

func (f *fakeJobs) Cancel(ctx context.Context, project, id cay.ID) (*cay.Job, error) {
	j, err := f.Get(ctx, project, id)
	if err != nil || j.Status.Finished() || f.stuck {
		return j, err
	}
	if j.Status == cay.JobQueued {
		f.ends(id, "error", func(j *cay.Job) { j.Status = cay.JobCanceled })
	} else {
		f.ends(id, "exit", func(j *cay.Job) { j.Status, j.Signal = cay.JobCanceled, "KILL" })
	}
	return f.Get(ctx, project, id)
}

func (f *fakeJobs) Result(_ context.Context, j *cay.Job, _ int) (cay.JobResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.results[j.ID], f.fault
}

func (f *fakeJobs) Stream(ctx context.Context, _, id cay.ID, after int64, send func(cay.JobFrame) error) error {
	for next := 0; ; {
		f.mu.Lock()
		changed, frames, fault := f.changed, f.frames[id], f.fault
		f.mu.Unlock()
		for ; next < len(frames); next++ {
			frame := frames[next]
			if frame.Seq <= after {
				continue
			}
			if begin := frame.Seq - int64(len(frame.Data)); len(frame.Data) > 0 && begin < after {
				frame.Data = frame.Data[after-begin:]
			}
			if err := send(frame); err != nil {
				return err
			}
		}
		if frames[len(frames)-1].Job != nil {
			return nil
		}
		if fault != nil {
			return fault
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeJobs) OpenOutput(ctx context.Context, project, id cay.ID, path string) (cay.JobOutput, io.ReadCloser, error) {
	if _, err := f.Get(ctx, project, id); err != nil {
		return cay.JobOutput{}, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	data, ok := f.files[path]
	if !ok {
		return cay.JobOutput{}, nil, cay.Errorf(cay.NotFound, "job %s left no file of that name", id).On("path")
	}
	return cay.JobOutput{Path: path, MIME: "text/plain", Size: int64(len(data))}, io.NopCloser(bytes.NewReader(data)), nil
}

// fakeSessions keeps sessions in memory. All use one sandbox.
type fakeSessions struct {
	mu    sync.Mutex
	rows  map[cay.ID]*cay.Session
	users map[cay.ID][]*cay.Sandbox
	boxes *fakeSandboxes
	query cay.SessionQuery // of the last List
	stuck bool             // a delete does not come to its end
	none  bool             // there is no worker for them
}

func newFakeSessions(boxes *fakeSandboxes) *fakeSessions {
	return &fakeSessions{rows: map[cay.ID]*cay.Session{}, users: map[cay.ID][]*cay.Sandbox{}, boxes: boxes}
}

func (f *fakeSessions) Available() bool { return !f.none }

func (f *fakeSessions) Create(_ context.Context, project cay.ID, req cay.CreateSession) (*cay.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.rows {
		if req.Name != "" && s.Name == req.Name {
			return nil, cay.Errorf(cay.AlreadyExists, "there is a session %s", req.Name).On("name").With("session_id", string(s.ID))
		}
	}
	now := time.Now()
	s := &cay.Session{ID: cay.NewID(cay.PrefixSession), ProjectID: project, Name: req.Name, Metadata: req.Metadata, Status: cay.SessionActive, DiskGB: 1, TTL: time.Hour, CreatedAt: now, LastUsedAt: now}
	if req.TTL != nil {
		s.TTL = *req.TTL
	}
	if req.DiskGB != nil {
		s.DiskGB = *req.DiskGB
	}
	s.ExpiresAt = now.Add(s.TTL)
	f.rows[s.ID] = s
	c := *s
	return &c, nil
}

func (f *fakeSessions) Get(_ context.Context, project, id cay.ID) (*cay.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.rows[id]
	if !ok || s.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "there is no session %s", id)
	}
	c := *s
	return &c, nil
}

func (f *fakeSessions) List(_ context.Context, project cay.ID, q cay.SessionQuery) ([]*cay.Session, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.query = q
	var all []*cay.Session
	for _, s := range f.rows {
		if s.ProjectID == project {
			all = append(all, s)
		}
	}
	return all, "", nil
}

func (f *fakeSessions) Users(_ context.Context, _, id cay.ID) ([]*cay.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.users[id], nil
}

func (f *fakeSessions) Delete(ctx context.Context, project, id cay.ID, force bool) (*cay.Session, error) {
	s, err := f.Get(ctx, project, id)
	if err != nil || s.Status == cay.SessionDeleted {
		return s, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if users := f.users[id]; len(users) > 0 && !force {
		return nil, cay.Errorf(cay.Conflict, "session %s is in use", id).With("sandbox_id", string(users[0].ID))
	}
	s = f.rows[id]
	s.Status, s.StatusReason = cay.SessionDeleting, cay.ReasonDeleted
	if !f.stuck {
		s.Status, s.EndedAt = cay.SessionDeleted, time.Now()
	}
	c := *s
	return &c, nil
}

func (f *fakeSessions) Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	s, err := f.Get(ctx, project, id)
	if err == nil {
		err = s.Usable()
	}
	if err != nil {
		return nil, err
	}
	return f.boxes.Get(ctx, project, f.boxes.add(project, cay.Ready))
}
