package sessions

import (
	"context"
	"sync"

	"github.com/cayhq/cay"
)

// kind says what a task does.
type kind string

const (
	placing   kind = "place"
	restoring kind = "restore"
	archiving kind = "archive"
	ending    kind = "end"
	clearing  kind = "clear" // of a volume that nobody needs
	helping   kind = "help"
)

// tasks has at most one thing done to each session at a time. A task outlives the caller that began it and is awaited by stop.
type tasks struct {
	mu      sync.Mutex
	closed  bool             // guarded by mu
	running map[cay.ID]*task // guarded by mu
	group   sync.WaitGroup
}

type task struct {
	kind   kind
	cancel context.CancelFunc
	done   chan struct{}
	err    error // written before done is closed
}

func newTasks() *tasks { return &tasks{running: map[cay.ID]*task{}} }

// begin begins a task unless one runs already, which is returned then; nil when nothing is begun any more.
func (t *tasks) begin(ctx context.Context, id cay.ID, k kind, do func(context.Context) error) (run *task, begun bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	if run := t.running[id]; run != nil {
		return run, false
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	run = &task{kind: k, cancel: cancel, done: make(chan struct{})}
	t.running[id] = run
	t.group.Go(func() {
		defer func() {
			cancel()
			t.mu.Lock()
			delete(t.running, id)
			t.mu.Unlock()
			close(run.done)
		}()
		run.err = do(ctx)
	})
	return run, true
}

// do returns the outcome of a task of that kind: one that runs, or the one that it begins when nothing else is done to the session any
// more. An end calls off whatever else is under way.
func (t *tasks) do(ctx context.Context, id cay.ID, k kind, do func(context.Context) error) error {
	for {
		run, _ := t.begin(ctx, id, k, do)
		if run == nil {
			return cay.Errorf(cay.Unavailable, "the server is stopping; try again")
		}
		if k == ending && run.kind != ending {
			run.cancel()
		}
		select {
		case <-run.done:
			if run.kind == k {
				return run.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// interrupt calls off a task of that kind and waits for its end.
func (t *tasks) interrupt(ctx context.Context, id cay.ID, k kind) error {
	t.mu.Lock()
	run := t.running[id]
	t.mu.Unlock()
	if run == nil || run.kind != k {
		return nil
	}
	run.cancel()
	select {
	case <-run.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop calls everything off and waits for it. Nothing begins afterwards. It is idempotent.
func (t *tasks) stop() {
	t.mu.Lock()
	t.closed = true
	for _, run := range t.running {
		run.cancel()
	}
	t.mu.Unlock()
	t.group.Wait()
}

// slots bounds what is done at once.
type slots chan struct{}

func (s slots) take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) give() { <-s }
