package interpreter

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

const (
	// inlineSource is up to which size a program travels on the control socket, whose buffer is certain to take it.
	inlineSource = 8 << 10
	// sayDeadline bounds a write to a driver, which is waiting for it.
	sayDeadline = 5 * time.Second
	// endDeadline bounds the wait for the end of a kernel that was killed.
	endDeadline = 10 * time.Second
	// An interrupt that was lost on its interpreter is repeated this often.
	insistAgain = 500 * time.Millisecond
	maxInsist   = 8
)

// interrupted is the code of a run that an interrupt ended.
const interrupted = 130

// run is one program in a context.
type run struct {
	process *process.Run
	source  []byte

	// Guarded by the context's lock.
	began     bool           // its interpreter may be interrupted: before, that could end it
	interrupt bool           // once it began
	killed    syscall.Signal // before there was a kernel
	insisting bool           // interrupts are repeated
	over      chan struct{}  // closed once it has ended; nil until it runs
}

// codeContext is one context. One goroutine, serve, runs its programs; everybody else only queues, signals and kills.
//
// Lock order: a process's lock comes before mu. Methods of process.Run and Kernel.Kill are therefore called without mu.
type codeContext struct {
	contexts     *Contexts
	id, language string
	argv         []string
	cwd, user    string
	env          map[string]string
	created      time.Time
	opened       chan struct{} // closed once failure is known
	failure      error         // of opening
	wake         chan struct{} // serve has something to do
	shut         chan struct{} // closed by close
	served       chan struct{} // closed when serve has returned

	mu       sync.Mutex
	account  user.Account // of the kernel
	kernel   *kernel      // nil: the next run starts one
	queue    []*run
	current  *run
	count    int64
	lastUsed time.Time
	lost     bool // the state went while nothing ran, and no run was told
	closing  bool
}

func newContext(c *Contexts, req *guestv1.OpenContext) *codeContext {
	now := time.Now()
	return &codeContext{
		contexts: c, id: req.ContextId, language: req.Language, argv: req.Argv, cwd: req.Cwd, user: req.User, env: req.Env,
		created: now, lastUsed: now, opened: make(chan struct{}), wake: make(chan struct{}, 1), shut: make(chan struct{}), served: make(chan struct{}),
	}
}

// begin starts the first kernel and serve.
func (x *codeContext) begin() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, err := x.ensure(); err != nil {
		return err
	}
	x.contexts.running.Go(x.serve)
	return nil
}

func (x *codeContext) rouse() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// serve runs what is queued until the context is closed.
func (x *codeContext) serve() {
	defer close(x.served)
	for {
		x.mu.Lock()
		closing, k := x.closing, x.kernel
		x.mu.Unlock()
		if k != nil && (closing || k.gone()) {
			x.bury(k)
			x.replace(k)
		}
		if closing {
			return
		}
		if r := x.take(); r != nil {
			x.execute(r)
			continue
		}
		<-x.wake
	}
}

// take makes the next run the current one.
func (x *codeContext) take() *run {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closing || len(x.queue) == 0 {
		return nil
	}
	r := x.queue[0]
	x.queue[0] = nil
	x.queue = x.queue[1:]
	x.current, r.over = r, make(chan struct{})
	x.count++
	x.lastUsed = time.Now()
	return r
}

// add queues a run and returns the pid of the interpreter.
func (x *codeContext) add(r *run) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	waiting := len(x.queue)
	if x.current == nil {
		waiting-- // the first of them is about to run
	}
	switch {
	case x.closing:
		return 0, cay.Errorf(cay.NotFound, "there is no context %s in the sandbox", x.id)
	case waiting >= maxQueue:
		return 0, cay.Errorf(cay.Conflict, "%d runs wait in the context already, more are not possible", maxQueue)
	}
	k, err := x.ensure()
	if err != nil {
		return 0, err
	}
	x.queue = append(x.queue, r)
	x.rouse()
	return k.PID(), nil
}

// execute runs the current run to its end.
func (x *codeContext) execute(r *run) {
	results := newReport(&x.contexts.held)
	rest := &guestv1.CodeReport{}
	k, fate := x.perform(r, results, rest)
	close(r.over)

	x.mu.Lock()
	x.current = nil
	x.lastUsed = time.Now()
	x.mu.Unlock()
	drained := make(chan struct{})
	r.process.Finish(fate, results.finish(rest), func() { close(drained) })
	if k == nil {
		return
	}
	select {
	case <-drained: // the pipes are the kernel's again
	case <-k.ended:
	case <-x.shut:
	}
}

// perform has the kernel run r. It returns that kernel, nil when there is none any more.
func (x *codeContext) perform(r *run, results *report, rest *guestv1.CodeReport) (*kernel, process.Fate) {
	x.mu.Lock()
	number := x.count
	rest.ExecutionCount = number
	k, err := x.ensure()
	if err == nil && k.gone() {
		x.mu.Unlock()
		x.bury(k)
		x.mu.Lock()
		k, err = x.ensure()
	}
	rest.ContextLost, x.lost = x.lost, false
	killed := r.killed
	roots := x.contexts.roots(x.account)
	x.mu.Unlock()
	if killed != 0 {
		return k, process.Killed(killed)
	}
	if err != nil {
		r.process.Print(fmt.Sprintf("the interpreter of the context cannot be started: %v\n", err))
		rest.ContextLost = true
		return nil, process.Fate{Code: 126}
	}
	var file string
	code := int32(0)
	err = x.await(k, number)
	before := look(roots)
	if err == nil {
		r.process.Lend(k.Kernel)
		file, err = x.say(k, number, r.source)
	}
	if err == nil {
		code, err = x.listen(k, r, number, results, rest)
	}
	fate := process.Fate{Code: code}
	if err != nil {
		fate = x.lose(k, r, err)
		rest.ContextLost = true
		k = nil
	}
	if file != "" {
		_ = os.Remove(file)
	}
	rest.FilesChanged, rest.FilesTruncated = changes(before, look(roots))
	return k, fate
}

// listen takes what the driver says of run number until that is over. An error means that the kernel is of no use any more.
func (x *codeContext) listen(k *kernel, r *run, number int64, results *report, rest *guestv1.CodeReport) (code int32, err error) {
	for {
		m, err := readMessage(k.in)
		if err != nil {
			return 0, err
		}
		if m.run != number { // of a thread that outlived its run, or said twice
			if _, err := io.CopyN(io.Discard, k.in, int64(m.size)); err != nil {
				return 0, err
			}
			continue
		}
		switch m.kind {
		case "begin":
			x.began(k, r)
		case "main", "display":
			var parts []part
			if parts, err = readParts(k.in, m.size); err == nil {
				err = results.result(m.kind == "main", parts, k.in)
			}
		case "drop":
			results.truncated = true
		case "error":
			rest.Error, err = readError(k.in, m.size)
		case "done":
			return readCode(k.in, m.size)
		}
		if err != nil {
			return 0, err
		}
	}
}

// began lets an interrupt through that came too early.
func (x *codeContext) began(k *kernel, r *run) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.began = true
	if r.interrupt {
		r.interrupt = false
		_ = x.interruptKernel(k, r)
	}
}

// unqueue takes r out of the queue, and reports whether it was there.
func (x *codeContext) unqueue(r *run) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.Index(x.queue, r)
	if i >= 0 {
		x.queue = slices.Delete(x.queue, i, i+1)
	}
	return i >= 0
}

// abandon ends a run that was never run.
func (x *codeContext) abandon(r *run, f process.Fate, lost bool) {
	r.process.Finish(f, newReport(&x.contexts.held).finish(&guestv1.CodeReport{ContextLost: lost}), func() {})
}

// interruptRun interrupts a run; one that waits ends.
func (x *codeContext) interruptRun(r *run) error {
	if x.unqueue(r) {
		x.abandon(r, process.Fate{Code: interrupted}, false)
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.current != r {
		return os.ErrProcessDone
	}
	if !r.began || x.kernel == nil {
		r.interrupt = true
		return nil
	}
	return x.interruptKernel(x.kernel, r)
}

func (x *codeContext) interruptCurrent() {
	x.mu.Lock()
	r := x.current
	x.mu.Unlock()
	if r != nil {
		_ = x.interruptRun(r)
	}
}

// kill ends a run with the interpreter, whose tree is gone when it returns nil; one that waits ends alone.
func (x *codeContext) kill(r *run, sig syscall.Signal) error {
	if x.unqueue(r) {
		x.abandon(r, process.Killed(sig), false)
		return nil
	}
	x.mu.Lock()
	k := x.kernel
	if x.current != r {
		x.mu.Unlock()
		return os.ErrProcessDone
	}
	if k == nil {
		r.killed = sig
		x.mu.Unlock()
		return nil
	}
	k.killed = sig
	x.mu.Unlock()
	return k.Kill()
}

// end takes everything from the context: what waits ends, and so does the kernel, at the wish of who uses the context.
func (x *codeContext) end() error {
	x.mu.Lock()
	waiting, k := x.queue, x.kernel
	x.queue = nil
	if k != nil {
		k.killed, k.asked = unix.SIGKILL, true
	}
	x.mu.Unlock()
	for _, r := range waiting {
		x.abandon(r, process.Killed(unix.SIGKILL), true)
	}
	if k == nil {
		return nil
	}
	return k.Kill()
}

// restart replaces the interpreter. The fresh one is started at once.
func (x *codeContext) restart() error {
	x.mu.Lock()
	k := x.kernel // of now: by the end of end, serve may have put the next one in its place
	x.mu.Unlock()
	if err := x.end(); err != nil {
		return err
	}
	if k != nil {
		select {
		case <-k.ended:
		case <-x.shut:
		}
	}
	x.rouse()
	return nil
}

// close ends the context and waits for serve. It is idempotent.
func (x *codeContext) close() error {
	<-x.opened
	if x.failure != nil {
		return nil
	}
	x.mu.Lock()
	first := !x.closing
	x.closing = true
	x.mu.Unlock()
	if first {
		close(x.shut)
	}
	err := x.end()
	x.rouse()
	<-x.served
	return err
}
