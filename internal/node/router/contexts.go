package router

import (
	"context"
	"regexp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// ContextInfo is what does not change of a context.
type ContextInfo struct {
	Language string
	User     string
}

// OpenContext starts an interpreter that keeps its state.
func (s *Session) OpenContext(ctx context.Context, r *guestv1.OpenContext) (*guestv1.Context, error) {
	return s.contextCall(ctx, r.ContextId, &guestv1.ToAgent{Message: &guestv1.ToAgent_OpenContext{OpenContext: r}}, true)
}

// InterruptContext stops the program that runs in a context; without one it does nothing.
func (s *Session) InterruptContext(ctx context.Context, id string) (*guestv1.Context, error) {
	return s.contextCall(ctx, id, &guestv1.ToAgent{Message: &guestv1.ToAgent_InterruptContext{
		InterruptContext: &guestv1.InterruptContext{ContextId: id},
	}}, true)
}

// RestartContext gives a context a fresh interpreter.
func (s *Session) RestartContext(ctx context.Context, id string) (*guestv1.Context, error) {
	return s.contextCall(ctx, id, &guestv1.ToAgent{Message: &guestv1.ToAgent_RestartContext{
		RestartContext: &guestv1.RestartContext{ContextId: id},
	}}, false)
}

// CloseContext ends a context and what runs in it.
func (s *Session) CloseContext(ctx context.Context, id string) error {
	s.Touch()
	err := s.done(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_CloseContext{CloseContext: &guestv1.CloseContext{ContextId: id}}}, false)
	if err == nil || cay.ReasonOf(err) == cay.NotFound {
		s.mu.Lock()
		delete(s.contexts, id)
		s.mu.Unlock()
	}
	return err
}

// ListContexts lists the contexts that are open.
func (s *Session) ListContexts(ctx context.Context) ([]*guestv1.Context, error) {
	s.Touch()
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_ListContexts{ListContexts: &guestv1.ListContexts{}}}, true)
	if err != nil {
		return nil, err
	}
	if answer.GetContexts() == nil || len(answer.GetContexts().Items) > maxContexts {
		return nil, s.unexpected()
	}
	known := map[string]ContextInfo{}
	for _, c := range answer.GetContexts().Items {
		if _, twice := known[c.GetContextId()]; twice || !cleanContext(c) {
			return nil, s.unexpected()
		}
		known[c.ContextId] = ContextInfo{c.Language, c.User}
	}
	s.mu.Lock()
	s.contexts = known
	s.mu.Unlock()
	return answer.GetContexts().Items, nil
}

// Context finds out about a context. One that this node has seen costs nothing, and may be gone.
func (s *Session) Context(ctx context.Context, id string) (ContextInfo, error) {
	s.mu.Lock()
	info, ok := s.contexts[id]
	s.mu.Unlock()
	if ok {
		return info, nil
	}
	if _, err := s.ListContexts(ctx); err != nil {
		return ContextInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if info, ok = s.contexts[id]; !ok {
		return info, cay.Errorf(cay.NotFound, "there is no context %q in the sandbox", cleanText(id, 64))
	}
	return info, nil
}

func (s *Session) contextCall(ctx context.Context, id string, m *guestv1.ToAgent, repeatable bool) (*guestv1.Context, error) {
	s.Touch()
	answer, err := s.call(ctx, m, repeatable)
	if err != nil {
		return nil, err
	}
	c := answer.GetContext()
	if c == nil || c.ContextId != id || !cleanContext(c) {
		return nil, s.unexpected()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.contexts[id]; known || len(s.contexts) < maxContexts {
		s.contexts[id] = ContextInfo{c.Language, c.User}
	}
	return c, nil
}

var contextWord = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

// cleanContext makes what an agent says of a context fit to be told; false: it cannot be one of ours.
func cleanContext(c *guestv1.Context) bool {
	if !contextWord.MatchString(c.GetContextId()) || !contextWord.MatchString(c.GetLanguage()) {
		return false
	}
	if c.Status != "busy" {
		c.Status = "idle"
	}
	c.Cwd, c.User = cleanText(c.Cwd, 4096), cleanText(c.User, 64)
	c.ExecutionCount, c.Pid = max(c.ExecutionCount, 0), max(c.Pid, 0)
	c.CreatedUnixMs, c.LastUsedUnixMs = max(c.CreatedUnixMs, 0), max(c.LastUsedUnixMs, 0)
	return true
}
