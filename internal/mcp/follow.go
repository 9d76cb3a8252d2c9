package mcp

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	progressEvery = 500 * time.Millisecond // at most, while output comes
	silentEvery   = 10 * time.Second       // while none does, so that the client sees that the program runs

	interruptGrace = 5 * time.Second  // between INT and KILL, as at a timeout
	killPatience   = 10 * time.Second // for a canceled program to start, to be killed, and to end
)

// run is a program that has ended, as far as a result shows it.
type run struct {
	processID      string
	stdout, stderr *window
	exit           client.Exit
	outcome        *client.CodeOutcome // nil: it was a command
}

// follow runs a program to its end, with progress for a client that wants it. When ctx ends the program is interrupted, where that
// leaves more than a kill does, and killed; when the server stops it is left alone, which the error says.
func (c *call) follow(
	ctx context.Context, sandbox string, interrupt bool, events func(context.Context) iter.Seq2[client.Event, error],
) (*run, error) {
	r := &run{stdout: newWindow(maxStream), stderr: newWindow(maxStream)}
	streaming, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	started, ended := make(chan struct{}), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		defer leave()
		if errors.Is(context.Cause(ctx), errStopping) {
			return
		}
		if !waitFor(started, ended, killPatience) {
			return
		}
		c.end(streaming, sandbox, r.processID, interrupt, ended)
	})
	notes := c.newProgress(ctx)
	defer notes.stop()
	err := r.collect(events(streaming), started, notes)
	close(ended)
	watching.Wait()
	switch {
	case ctx.Err() == nil:
		return r, err
	case errors.Is(context.Cause(ctx), errStopping) && r.processID != "":
		return r, &leftRunning{sandbox, r.processID}
	}
	return r, context.Cause(ctx)
}

// waitFor reports whether started was closed before ended was, and before the time was over.
func waitFor(started, ended <-chan struct{}, limit time.Duration) bool {
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case <-started:
		return true
	case <-ended:
	case <-patience.C:
	}
	return false
}

// end ends a process with all that it started, and returns once its end was seen or it is no use to wait longer.
func (c *call) end(ctx context.Context, sandbox, process string, interrupt bool, ended <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	if interrupt && c.Processes(sandbox).Signal(ctx, process, "INT", true) == nil && waitFor(ended, nil, interruptGrace) {
		return
	}
	if err := c.Processes(sandbox).Signal(ctx, process, "KILL", true); err != nil {
		c.Logger.Warn("a canceled program could not be killed", "sandbox", sandbox, "process", process, "error", err)
		return
	}
	waitFor(ended, nil, killPatience)
}

// collect reads a program's events. It closes started once r.processID is known.
func (r *run) collect(events iter.Seq2[client.Event, error], started chan<- struct{}, notes *progress) error {
	for ev, err := range events {
		if err != nil {
			return err
		}
		switch ev := ev.(type) {
		case client.StartEvent:
			r.processID = ev.ProcessID
			close(started)
		case client.OutputEvent:
			r.stream(ev.Stderr).Write(ev.Data)
			notes.output(ev.Data)
		case client.GapEvent:
			r.stream(ev.Stderr).gap(ev.Bytes)
		case client.ExitEvent:
			r.exit = ev.Exit
		case client.ResultEvent:
			r.outcome = &ev.CodeOutcome
		}
	}
	return nil
}

func (r *run) stream(stderr bool) *window {
	if stderr {
		return r.stderr
	}
	return r.stdout
}

// progress tells a client how a program goes on. Nil tells nobody.
type progress struct {
	session *sdk.ServerSession
	token   any
	began   time.Time
	quit    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	line  lastLine // guarded by mu
	bytes int64    // of output; guarded by mu
}

// newProgress begins to tell, if the client gave a token for it. The caller stops it.
func (c *call) newProgress(ctx context.Context) *progress {
	token := c.request.Params.GetProgressToken()
	if token == nil || c.request.Session == nil {
		return nil
	}
	p := &progress{session: c.request.Session, token: token, began: c.now(), quit: make(chan struct{})}
	p.done.Go(func() { p.tell(ctx) })
	return p
}

func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.quit)
	p.done.Wait()
}

func (p *progress) output(data []byte) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(len(data))
	p.line.Write(data)
}

// tell sends the last line of output whenever there is more, as often as is allowed. Progress counts seconds, since it has to grow
// with every notification.
func (p *progress) tell(ctx context.Context) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var told int64
	last := p.began
	for {
		var now time.Time
		select {
		case now = <-tick.C:
		case <-p.quit:
			return
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		bytes, line := p.bytes, p.line.text()
		p.mu.Unlock()
		if bytes == told && now.Sub(last) < silentEvery {
			continue
		}
		told, last = bytes, now
		seconds := now.Sub(p.began).Seconds()
		message := fmt.Sprintf("running for %.0f s, %d bytes of output", seconds, bytes)
		if line != "" {
			message += ": " + line
		}
		if p.session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: p.token, Progress: seconds, Message: message}) != nil {
			return // nobody reads any more
		}
	}
}
