package router

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// What the agent answers below is bounded by the size of a frame; its strings are UTF-8 because they are proto strings, and go to
// clients as data, never to a path of the host.

// Claim gives the sandbox its identity inside.
func (s *Session) Claim(ctx context.Context, c *guestv1.Claim) error {
	return s.done(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Claim{Claim: c}}, true)
}

// Processes lists what runs inside, as the agent sees it.
func (s *Session) Processes(ctx context.Context) ([]*guestv1.Process, error) {
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_ListProcesses{ListProcesses: &guestv1.ListProcesses{}}}, true)
	if err != nil {
		return nil, err
	}
	if answer.GetProcesses() == nil {
		return nil, s.unexpected()
	}
	return answer.GetProcesses().Processes, nil
}

// Stats is what the agent says of disk and processes inside.
func (s *Session) Stats(ctx context.Context) (*guestv1.Stats, error) {
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_GetStats{GetStats: &guestv1.GetStats{}}}, true)
	if err != nil {
		return nil, err
	}
	if answer.GetStats() == nil {
		return nil, s.unexpected()
	}
	return answer.GetStats(), nil
}

// Victim is a process that was killed to free memory.
type Victim struct {
	Process string // an id, or the program's name
	PID     int64
	RSS     int64
}

// Reclaim has the agent kill for memory. The exits of processes it names say oom.
func (s *Session) Reclaim(ctx context.Context, promise int64) ([]Victim, error) {
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Reclaim{Reclaim: &guestv1.Reclaim{PromiseBytes: promise}}}, false)
	if err != nil {
		return nil, err
	}
	if answer.GetKilled() == nil {
		return nil, s.unexpected()
	}
	var victims []Victim
	for _, v := range answer.GetKilled().Victims {
		victim := Victim{Process: cleanText(v.Name, 64), PID: v.Pid, RSS: max(v.RssBytes, 0)}
		s.mu.Lock()
		p := s.processes[cay.ID(v.ProcessId)]
		s.mu.Unlock()
		if p != nil {
			victim.Process = string(p.id)
			p.mu.Lock()
			p.oom = true
			p.mu.Unlock()
		}
		victims = append(victims, victim)
	}
	return victims, nil
}

// Stat describes a path.
func (s *Session) Stat(ctx context.Context, r *guestv1.Stat) (*guestv1.FileInfo, error) {
	return s.file(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Stat{Stat: r}}, true)
}

// Mkdir makes a directory.
func (s *Session) Mkdir(ctx context.Context, r *guestv1.Mkdir) (*guestv1.FileInfo, error) {
	return s.file(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Mkdir{Mkdir: r}}, false)
}

// Move renames.
func (s *Session) Move(ctx context.Context, r *guestv1.Move) (*guestv1.FileInfo, error) {
	return s.file(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Move{Move: r}}, false)
}

// Remove deletes.
func (s *Session) Remove(ctx context.Context, r *guestv1.Remove) error {
	s.Touch()
	return s.done(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Remove{Remove: r}}, false)
}

// Chmod changes mode and owner.
func (s *Session) Chmod(ctx context.Context, r *guestv1.Chmod) (*guestv1.FileInfo, error) {
	return s.fileWithin(ctx, s.timing.Long, &guestv1.ToAgent{Message: &guestv1.ToAgent_Chmod{Chmod: r}}, true)
}

// Compose makes one file of several.
func (s *Session) Compose(ctx context.Context, r *guestv1.Compose) (*guestv1.FileInfo, error) {
	return s.fileWithin(ctx, s.timing.Long, &guestv1.ToAgent{Message: &guestv1.ToAgent_Compose{Compose: r}}, false)
}

// SearchFiles searches a tree, a page at a time.
func (s *Session) SearchFiles(ctx context.Context, r *guestv1.Search) (*guestv1.SearchResult, error) {
	s.Touch()
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Search{Search: r}}, true)
	if err != nil {
		return nil, err
	}
	found := answer.GetSearch()
	if found == nil {
		return nil, s.unexpected()
	}
	for _, m := range found.Items {
		if m.GetFile() == nil {
			return nil, s.unexpected()
		}
	}
	return found, nil
}

func (s *Session) file(ctx context.Context, m *guestv1.ToAgent, repeatable bool) (*guestv1.FileInfo, error) {
	return s.fileWithin(ctx, s.timing.Answer, m, repeatable)
}

func (s *Session) fileWithin(ctx context.Context, patience time.Duration, m *guestv1.ToAgent, repeatable bool) (*guestv1.FileInfo, error) {
	s.Touch()
	answer, err := s.callWithin(ctx, patience, m, repeatable, nil)
	if err != nil {
		return nil, err
	}
	if answer.GetFile() == nil {
		return nil, s.unexpected()
	}
	return answer.GetFile(), nil
}

// ListFiles lists a directory, a page at a time.
func (s *Session) ListFiles(ctx context.Context, r *guestv1.List) (*guestv1.FileList, error) {
	s.Touch()
	answer, err := s.call(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_List{List: r}}, true)
	if err != nil {
		return nil, err
	}
	if answer.GetFiles() == nil {
		return nil, s.unexpected()
	}
	return answer.GetFiles(), nil
}

// Quiesce gives running processes up to grace to end after a TERM to every one of them.
func (s *Session) Quiesce(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	s.mu.Lock()
	running := make([]*Process, 0, len(s.streams))
	for _, p := range s.streams {
		running = append(running, p)
	}
	s.mu.Unlock()
	for _, p := range running {
		s.tell(signalMessage(p.id, sigTerm, true))
	}
	for _, p := range running {
		select {
		case <-p.done:
		case <-ctx.Done():
			return
		}
	}
}
