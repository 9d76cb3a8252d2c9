package jobs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

const (
	defaultLanguage     = "python"
	defaultTimeout      = time.Minute
	maxTimeout          = 24 * time.Hour
	defaultQueueTimeout = time.Hour
	maxQueueTimeout     = 7 * 24 * time.Hour
	maxCode             = 64 << 20 // bytes of a program; that of a run of code
	maxInput            = 64 << 20 // bytes of program and stdin
	inlineInput         = 64 << 10 // of these in the row; more is a blob
)

// Submit checks the request against limits and quota, fills in defaults, and writes the row. It does not wait.
func (j *Jobs) Submit(ctx context.Context, project, key cay.ID, req cay.SubmitJob) (*cay.Job, error) {
	row, err := j.resolve(ctx, req)
	if err != nil {
		return nil, err
	}
	row.ProjectID, row.CreatedBy, row.Traceparent = project, key, tracing.Traceparent(ctx)
	if req.ID != "" {
		if made, err := j.Get(ctx, project, req.ID); err == nil || cay.ReasonOf(err) != cay.NotFound {
			return made, err
		}
		row.ID = req.ID
	}
	head := binary.AppendUvarint(nil, uint64(len(req.Code)))
	if len(req.Code)+len(req.Stdin) <= inlineInput {
		row.Input = slices.Concat(head, req.Code, req.Stdin)
	} else {
		row.InputKey = blobsOf(row.ID) + "input"
		if _, err := j.blobs.Write(ctx, row.InputKey, io.MultiReader(bytes.NewReader(head), bytes.NewReader(req.Code), bytes.NewReader(req.Stdin))); err != nil {
			fault, _ := storageFault(err)
			return nil, cay.Errorf(cay.Unavailable, "the program could not be kept: %s", fault.Detail).After(10 * time.Second).Because(err)
		}
	}
	if err := j.store.InsertJob(ctx, row, j.cfg.MaxQueued); err != nil {
		if row.InputKey != "" {
			j.drop(ctx, row.InputKey)
		}
		return nil, err
	}
	j.Wake()
	return row, nil
}

// drop removes a blob that no row names.
func (j *Jobs) drop(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	if err := j.blobs.Delete(ctx, key); err != nil {
		j.log.Warn("a blob that no job needs was left", "key", key, "error", err)
	}
}

// resolve checks what was asked for and fills in what was not. Each error names its field.
func (j *Jobs) resolve(ctx context.Context, req cay.SubmitJob) (*cay.Job, error) {
	if len(req.Packages) > 0 {
		return nil, cay.Errorf(cay.NotImplemented, "the installation of packages is not there yet: leave packages out or send an empty list").On("packages")
	}
	language, err := j.language(ctx, req.Language)
	if err != nil {
		return nil, err
	}
	if err := cay.CheckEnv(req.Env); err != nil {
		return nil, err
	}
	if err := cay.CheckMetadata(req.Metadata); err != nil {
		return nil, err
	}
	switch {
	case len(req.Code) == 0:
		return nil, invalid("code", "code is needed")
	case len(req.Code) > maxCode || len(req.Code)+len(req.Stdin) > maxInput:
		return nil, cay.Errorf(cay.PayloadTooLarge, "code and stdin have at most %d bytes together", maxInput).On("code").With("limit_bytes", maxInput)
	case req.SessionShared && req.SessionID == "":
		return nil, invalid("session_shared", "session_shared is said of a session: session_id is needed with it")
	}
	at := now()
	row := &cay.Job{
		ID: cay.NewID(cay.PrefixJob), Status: cay.JobQueued, SessionID: req.SessionID, Priority: cay.DefaultPriority, QueuedAt: at, Version: 1,
		Metadata: req.Metadata, Spec: cay.JobSpec{
			Language: language, Env: req.Env, Timeout: defaultTimeout, QueueTimeout: defaultQueueTimeout, SessionShared: req.SessionShared,
			CPU: req.CPU, MemoryMB: req.MemoryMB, DiskGB: req.DiskGB, Pids: req.Pids,
		},
	}
	if row.Metadata == nil {
		row.Metadata = map[string]string{}
	}
	if row.Spec.Env == nil {
		row.Spec.Env = map[string]string{}
	}
	if t := req.Timeout; t != nil {
		if *t <= 0 || *t > maxTimeout {
			return nil, invalid("timeout_seconds", "timeout_seconds is above 0 and at most %d", int64(maxTimeout/time.Second))
		}
		row.Spec.Timeout = max(*t, time.Millisecond) // what a node counts in
	}
	if t := req.QueueTimeout; t != nil {
		if *t < 0 || *t > maxQueueTimeout {
			return nil, invalid("queue_timeout_seconds", "queue_timeout_seconds is between 0 and %d", int64(maxQueueTimeout/time.Second))
		}
		row.Spec.QueueTimeout = *t
	}
	row.QueueDeadline = at.Add(row.Spec.QueueTimeout)
	if p := req.Priority; p != nil {
		if *p < cay.MinPriority || *p > cay.MaxPriority {
			return nil, invalid("priority", "priority is between %d and %d", cay.MinPriority, cay.MaxPriority)
		}
		row.Priority = *p
	}
	asked := sandboxOf(row)
	asked.Network = req.Network
	if err := j.sandboxes.Check(asked); err != nil {
		return nil, err
	}
	return row, nil
}

func invalid(field, format string, args ...any) *cay.Error {
	return cay.Errorf(cay.InvalidRequest, format, args...).On(field)
}

// language checks that there is something which runs it.
func (j *Jobs) language(ctx context.Context, name string) (string, error) {
	if name == "" {
		name = defaultLanguage
	}
	runtimes, err := j.sandboxes.Runtimes(ctx)
	if err != nil {
		return "", err
	}
	var there []string
	for _, r := range runtimes {
		if len(r.Exec) == 0 {
			continue
		}
		if r.Name == name {
			return name, nil
		}
		there = append(there, r.Name)
	}
	slices.Sort(there)
	list := strings.Join(there, ", ")
	if list == "" {
		list = "none"
	}
	return "", cay.Errorf(cay.Unprocessable, "this sandbox has no programs of %q; its image has: %s", clip(name), list).On("language")
}

// clip bounds what is repeated of a client's words.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// ttlSlack is how much longer a job's sandbox may live than its program may run: time to start, and to keep what it left.
const ttlSlack = 30 * time.Minute

// maxBootWait is how long a sandbox may stand in the queue of sandboxes, whose bound it is.
const maxBootWait = time.Hour

// sandboxOf is the sandbox that the job's attempt needs.
func sandboxOf(row *cay.Job) cay.CreateSandbox {
	ttl := row.Spec.Timeout + ttlSlack
	wait := min(max(time.Until(row.QueueDeadline), time.Second), maxBootWait)
	return cay.CreateSandbox{
		ID: row.SandboxID, ManagedBy: row.ID, Runtime: row.Spec.Language, SessionID: row.SessionID, SessionShared: row.Spec.SessionShared,
		CPU: row.Spec.CPU, MemoryMB: row.Spec.MemoryMB, DiskGB: row.Spec.DiskGB, Pids: row.Spec.Pids, TTL: &ttl, QueueTimeout: &wait,
	}
}

// input is a program and its stdin. It must be closed.
type input struct {
	code  []byte
	stdin io.Reader // nil: none
	io.Closer
}

// openInput reads the program; stdin is read as it is used.
func (j *Jobs) openInput(ctx context.Context, row *cay.Job) (*input, error) {
	var whole io.ReadCloser = io.NopCloser(bytes.NewReader(row.Input))
	if row.InputKey != "" {
		var err error
		if whole, err = j.blobs.Read(ctx, row.InputKey); err != nil {
			return nil, err
		}
	}
	r := bufio.NewReader(whole)
	in, err := readInput(r)
	if err != nil {
		_ = whole.Close()
		return nil, fmt.Errorf("read the input of job %s: %w", row.ID, err)
	}
	in.Closer = whole
	return in, nil
}

func readInput(r *bufio.Reader) (*input, error) {
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if size > maxCode {
		return nil, fmt.Errorf("a program of %d bytes", size)
	}
	in := &input{code: make([]byte, size)}
	if _, err := io.ReadFull(r, in.code); err != nil {
		return nil, err
	}
	switch _, err := r.Peek(1); err {
	case nil:
		in.stdin = r
	case io.EOF:
	default:
		return nil, err
	}
	return in, nil
}
