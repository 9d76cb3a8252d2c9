// Package interpreter runs programs that come as source: each as a process of its own, or one after the other in a context, whose
// interpreter keeps its state between them. It says what a program left behind: changed files and, in a context, results. It starts
// no process itself and keeps no output: package process does. What an interpreter says is the guest's word and trusted for nothing.
package interpreter

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

const (
	maxContexts = 64
	maxQueue    = 64 // runs that wait in one context
)

// Config is what Contexts work with.
type Config struct {
	Processes *process.Table
	Scratch   string   // a directory of the agent's own for programs and drivers, made when needed; users must be able to reach it
	Roots     []string // where changed files are looked for, besides the user's home
	// Notable hears of what whoever owns the sandbox may want to know. It must not block.
	Notable func(message string, args ...any)
}

// Contexts are the open contexts of a sandbox, and what runs programs without one.
type Contexts struct {
	config  Config
	held    atomic.Int64 // bytes of all reports
	files   atomic.Uint64
	running sync.WaitGroup

	mu     sync.Mutex // before a context's
	byID   map[string]*codeContext
	closed bool
}

// New makes Contexts; Close ends them.
func New(c Config) *Contexts { return &Contexts{config: c, byID: map[string]*codeContext{}} }

// Close ends every context and waits for it.
func (c *Contexts) Close() {
	c.mu.Lock()
	c.closed = true
	all := make([]*codeContext, 0, len(c.byID))
	for _, x := range c.byID {
		all = append(all, x)
	}
	c.mu.Unlock()
	for _, x := range all {
		x.close()
	}
	c.running.Wait()
}

// contextID is what a node may call a context.
var contextID = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

// Open starts the interpreter of a context. One that is open already is returned as it is.
func (c *Contexts) Open(req *guestv1.OpenContext) (*guestv1.Context, error) {
	if !contextID.MatchString(req.ContextId) {
		return nil, cay.Errorf(cay.Unprocessable, "a context needs an id")
	}
	if _, ok := languages[req.Language]; !ok {
		return nil, cay.Errorf(cay.Unprocessable, "there are no contexts of %q; there are of %s", req.Language, strings.Join(Languages(), ", ")).On("language")
	}
	if len(req.Argv) == 0 {
		return nil, cay.Errorf(cay.Unprocessable, "there is nothing that runs %s in the sandbox", req.Language).On("language")
	}
	c.mu.Lock()
	if open := c.byID[req.ContextId]; open != nil {
		c.mu.Unlock()
		<-open.opened
		if open.failure != nil {
			return nil, open.failure
		}
		return open.describe(), nil
	}
	if len(c.byID) >= maxContexts || c.closed {
		c.mu.Unlock()
		return nil, cay.Errorf(cay.Conflict, "%d contexts are open in the sandbox, more are not possible", maxContexts)
	}
	x := newContext(c, req)
	c.byID[x.id] = x
	c.mu.Unlock()

	x.failure = x.begin()
	close(x.opened)
	if x.failure != nil {
		c.drop(x)
		return nil, x.failure
	}
	return x.describe(), nil
}

func (c *Contexts) drop(x *codeContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID[x.id] == x {
		delete(c.byID, x.id)
	}
}

// find waits until the context is open.
func (c *Contexts) find(id string) (*codeContext, error) {
	c.mu.Lock()
	x := c.byID[id]
	c.mu.Unlock()
	if x != nil {
		<-x.opened
		if x.failure == nil {
			return x, nil
		}
	}
	return nil, cay.Errorf(cay.NotFound, "there is no context %s in the sandbox", id)
}

// List describes the open contexts, the oldest first.
func (c *Contexts) List() *guestv1.ContextList {
	c.mu.Lock()
	all := make([]*codeContext, 0, len(c.byID))
	for _, x := range c.byID {
		all = append(all, x)
	}
	c.mu.Unlock()
	list := &guestv1.ContextList{}
	for _, x := range all {
		select {
		case <-x.opened:
			if x.failure == nil {
				list.Items = append(list.Items, x.describe())
			}
		default:
		}
	}
	slices.SortFunc(list.Items, func(a, b *guestv1.Context) int {
		if d := a.CreatedUnixMs - b.CreatedUnixMs; d != 0 {
			return int(min(max(d, -1), 1))
		}
		return strings.Compare(a.ContextId, b.ContextId)
	})
	return list
}

// CloseContext ends a context with all that runs in it.
func (c *Contexts) CloseContext(id string) error {
	x, err := c.find(id)
	if err != nil {
		return err
	}
	c.drop(x)
	return x.close()
}

// Interrupt stops what runs in a context, whose state stays. Without a run nothing happens.
func (c *Contexts) Interrupt(id string) (*guestv1.Context, error) {
	x, err := c.find(id)
	if err != nil {
		return nil, err
	}
	x.interruptCurrent()
	return x.describe(), nil
}

// Restart gives a context a fresh interpreter. What ran or waited in it ends.
func (c *Contexts) Restart(id string) (*guestv1.Context, error) {
	x, err := c.find(id)
	if err != nil {
		return nil, err
	}
	if err := x.restart(); err != nil {
		return nil, err
	}
	return x.describe(), nil
}

// enqueue starts a run in a context.
func (c *Contexts) enqueue(req *guestv1.Start, started func(*guestv1.Started)) error {
	x, err := c.find(req.Code.ContextId)
	if err != nil {
		return err
	}
	if l := req.Code.Language; l != "" && l != x.language {
		return cay.Errorf(cay.Unprocessable, "the context %s is of %s", x.id, x.language).On("language")
	}
	r := &run{}
	steer := func(sig syscall.Signal) error { return x.signal(r, sig) }
	begin := func(p *process.Run) (int, error) {
		source, err := load(req.Code)
		if err != nil {
			return 0, err
		}
		r.process, r.source = p, source
		return x.add(r)
	}
	return c.config.Processes.StartRun(req, steer, begin, started)
}

// signal acts on one run of the context.
func (x *codeContext) signal(r *run, sig syscall.Signal) error {
	switch sig {
	case unix.SIGINT:
		return x.interruptRun(r)
	case unix.SIGKILL, unix.SIGTERM: // not every interpreter ends at a TERM
		return x.kill(r, sig)
	}
	x.mu.Lock()
	k := x.kernel
	current := x.current == r
	x.mu.Unlock()
	if !current || k == nil {
		return os.ErrProcessDone
	}
	return k.Signal(sig)
}

func (x *codeContext) describe() *guestv1.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := &guestv1.Context{
		ContextId: x.id, Language: x.language, Cwd: x.cwd, User: x.user, Status: "idle", ExecutionCount: x.count,
		CreatedUnixMs: x.created.UnixMilli(), LastUsedUnixMs: x.lastUsed.UnixMilli(),
	}
	if x.current != nil || len(x.queue) > 0 {
		d.Status = "busy"
	}
	if x.kernel != nil {
		d.Pid = int64(x.kernel.PID())
	}
	return d
}
