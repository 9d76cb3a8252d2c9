package router

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// codeOf is the program of a start as the agent takes it. One that is too long for a message goes before it as a file that only root
// can read; the agent removes it.
func (s *Session) codeOf(ctx context.Context, p *Process, c *cay.Code) (*guestv1.Code, error) {
	if c == nil {
		return nil, nil
	}
	code := &guestv1.Code{Language: c.Language, Argv: c.Argv, Source: c.Source, ContextId: c.ContextID, Directory: c.Directory}
	if len(c.Source) <= inlineSource {
		return code, nil
	}
	code.Source, code.SourcePath = nil, "/tmp/."+string(p.id)
	w, err := s.WriteFile(ctx, &guestv1.WriteFile{Path: code.SourcePath, User: "root", Mode: 0o600, SetMode: true, IfNoneMatch: true})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for source := c.Source; len(source) > 0; {
		n := min(len(source), MaxData)
		if err := w.Write(source[:n]); err != nil {
			return nil, err
		}
		source = source[n:]
	}
	if _, err := w.Commit(); err != nil {
		return nil, err
	}
	return code, nil
}

// dropSource removes the file of a program that was not started. What cannot be removed goes with the sandbox.
func (s *Session) dropSource(code *guestv1.Code) {
	if code.GetSourcePath() == "" {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx(), s.timing.Answer)
		defer cancel()
		_ = s.Remove(ctx, &guestv1.Remove{Path: code.SourcePath, User: "root"})
	})
}

// queues says whether p runs in a context, in which one program waits for the other.
func (p *Process) queues() bool { return p.code != nil && p.code.ContextID != "" }

// enqueue adds p to the programs of its context. Its clock starts when it is its turn. With s.mu and p.mu.
func (p *Process) enqueue(timeout time.Duration) {
	id := p.code.ContextID
	queue := p.s.queues[id]
	if slices.Contains(queue, p) { // asked twice
		return
	}
	p.s.queues[id] = append(queue, p)
	if p.waits = timeout; len(queue) == 0 {
		p.takeTurn()
	}
}

// takeTurn starts the clock of a program that is the next of its context. With p.mu.
func (p *Process) takeTurn() {
	if p.waits > 0 && !p.isDone() {
		p.startTimeout(p.waits)
	}
	p.waits = 0
}

// dequeue takes p out of its context, where the next may begin. With s.mu.
func (s *Session) dequeue(p *Process) {
	if !p.queues() {
		return
	}
	id := p.code.ContextID
	i := slices.Index(s.queues[id], p)
	if i < 0 {
		return
	}
	queue := slices.Delete(s.queues[id], i, i+1)
	if s.queues[id] = queue; len(queue) == 0 {
		delete(s.queues, id)
	} else if i == 0 {
		next := queue[0]
		next.mu.Lock()
		next.takeTurn()
		next.noteClock()
		next.mu.Unlock()
		s.markDirty(next)
	}
}

// noteClock has the record say how much time p has, for the node after this one. With p.mu.
func (p *Process) noteClock() {
	deadline, remaining, waits := p.deadline, p.remaining, p.waits
	p.log.Update(func(m *spool.Process) { m.Deadline, m.Remaining, m.Waits = deadline, remaining, waits })
}
