package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// dispatch does what is quick at once and in order, and the rest beside the reader.
func (s *session) dispatch(ctx context.Context, m *guestv1.ToAgent) error {
	p := s.agent.processes
	switch ask := m.Message.(type) {
	case *guestv1.ToAgent_Ack:
		p.Ack(ask.Ack.GetProcessId(), ask.Ack.GetOffset())
		return nil
	case *guestv1.ToAgent_Forget:
		p.Forget(ask.Forget.GetProcessId())
		s.answer(m.Id, nil, nil)
	case *guestv1.ToAgent_CloseStdin:
		s.answer(m.Id, nil, p.CloseStdin(ask.CloseStdin.GetProcessId()))
	case *guestv1.ToAgent_Resize:
		s.answer(m.Id, nil, p.Resize(ask.Resize))
	case *guestv1.ToAgent_Ping:
		s.answer(m.Id, nil, nil)
	case *guestv1.ToAgent_Claim:
		s.answer(m.Id, nil, s.agent.accept(ask.Claim))
	case nil:
		return fmt.Errorf("%w: a message without content", wire.ErrFrame)
	default:
		s.slots <- struct{}{}
		s.requests.Go(func() {
			defer func() { <-s.slots }()
			s.work(ctx, m)
			s.flush()
		})
		return nil
	}
	s.flush()
	return nil
}

// answer queues a reply: the problem when there is one, else what was asked for, else Done.
func (s *session) answer(id uint64, m *guestv1.ToNode, err error) {
	switch {
	case err != nil:
		m = &guestv1.ToNode{Message: &guestv1.ToNode_Problem{Problem: problem(err)}}
	case m == nil:
		m = &guestv1.ToNode{Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}}
	}
	s.reply(id, m)
}

// work does a request that may take a while.
func (s *session) work(ctx context.Context, m *guestv1.ToAgent) {
	a := s.agent
	file := func(info *guestv1.FileInfo, err error) {
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_File{File: info}}, err)
	}
	opened := func(c *guestv1.Context, err error) {
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Context{Context: c}}, err)
	}
	switch ask := m.Message.(type) {
	case *guestv1.ToAgent_Start:
		started := func(started *guestv1.Started) {
			s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Started{Started: started}}, nil)
		}
		start := a.processes.Start
		if ask.Start.GetCode() != nil {
			start = a.contexts.Run
		}
		if err := start(ask.Start, started); err != nil {
			s.answer(m.Id, nil, err)
		}
	case *guestv1.ToAgent_Signal:
		s.answer(m.Id, nil, a.processes.Signal(ask.Signal))
	case *guestv1.ToAgent_ListProcesses:
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Processes{Processes: a.processes.List()}}, nil)
	case *guestv1.ToAgent_Reclaim:
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Killed{Killed: a.processes.Reclaim(ask.Reclaim.GetPromiseBytes())}}, nil)
	case *guestv1.ToAgent_GetStats:
		stats, err := a.stats()
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Stats{Stats: stats}}, err)
	case *guestv1.ToAgent_Stat:
		file(a.files.Stat(ask.Stat))
	case *guestv1.ToAgent_List:
		list, err := a.files.List(ask.List)
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Files{Files: list}}, err)
	case *guestv1.ToAgent_Mkdir:
		file(a.files.Mkdir(ask.Mkdir))
	case *guestv1.ToAgent_Move:
		file(a.files.Move(ask.Move))
	case *guestv1.ToAgent_Remove:
		s.answer(m.Id, nil, a.files.Remove(ask.Remove))
	case *guestv1.ToAgent_OpenContext:
		opened(a.contexts.Open(ask.OpenContext))
	case *guestv1.ToAgent_ListContexts:
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Contexts{Contexts: a.contexts.List()}}, nil)
	case *guestv1.ToAgent_CloseContext:
		s.answer(m.Id, nil, a.contexts.CloseContext(ask.CloseContext.GetContextId()))
	case *guestv1.ToAgent_InterruptContext:
		opened(a.contexts.Interrupt(ask.InterruptContext.GetContextId()))
	case *guestv1.ToAgent_RestartContext:
		opened(a.contexts.Restart(ask.RestartContext.GetContextId()))
	case *guestv1.ToAgent_Search:
		found, err := a.files.Search(ask.Search)
		s.answer(m.Id, &guestv1.ToNode{Message: &guestv1.ToNode_Search{Search: found}}, err)
	case *guestv1.ToAgent_Chmod:
		file(a.files.Chmod(ask.Chmod))
	case *guestv1.ToAgent_Compose:
		file(a.files.Compose(ask.Compose))
	case *guestv1.ToAgent_Bulk:
		s.answer(m.Id, nil, a.bulk(ctx, ask.Bulk))
	default:
		s.answer(m.Id, nil, cay.Errorf(cay.NotImplemented, "this agent does not know the request"))
	}
}

func (a *Agent) stats() (*guestv1.Stats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return nil, fmt.Errorf("measure the disk: %w", err)
	}
	return &guestv1.Stats{
		DiskTotalBytes: int64(fs.Blocks) * fs.Bsize, DiskUsedBytes: int64(fs.Blocks-fs.Bfree) * fs.Bsize, Pids: a.processes.Count(),
	}, nil
}

// accept gives the sandbox its identity, once. The same claim again is nil, one of another sandbox a cay.Conflict.
func (a *Agent) accept(c *guestv1.Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.claim != nil {
		if a.claim.SandboxId == c.GetSandboxId() {
			return nil
		}
		return cay.Errorf(cay.Conflict, "the sandbox belongs to another already")
	}
	if c.GetSandboxId() == "" {
		return cay.Errorf(cay.Unprocessable, "a claim names its sandbox")
	}
	if err := process.CheckEnv(c.Env); err != nil {
		return err
	}
	name := c.User
	if name == "" {
		name = user.Sandbox
	}
	account, err := a.config.Users.Lookup(name)
	if err != nil {
		return cay.Errorf(cay.Unprocessable, "there is no user %q in the sandbox", name).On("user").Because(err)
	}
	if a.config.Sandbox {
		for _, m := range c.Mounts { // first of all: the working directory may lie in one
			if err := a.mount(m, account); err != nil {
				return err
			}
		}
	}
	workdir := c.Workdir
	if workdir == "" {
		workdir = "/workspace"
	}
	if !strings.HasPrefix(workdir, "/") || strings.Contains(workdir, "\x00") {
		return cay.Errorf(cay.Unprocessable, "the working directory %q is not an absolute path", workdir).On("workdir")
	}
	if err := ensureDirectory(workdir, account); err != nil {
		return cay.Errorf(cay.Unprocessable, "the working directory %s: %w", workdir, err).On("workdir")
	}
	if a.config.Sandbox {
		if c.Hostname != "" {
			if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
				return cay.Errorf(cay.Unprocessable, "the host name %q: %w", c.Hostname, err).On("hostname")
			}
		}
		if err := a.limit(c.Pids); err != nil {
			return err
		}
	}
	a.processes.SetDefaults(process.Defaults{Env: maps.Clone(c.Env), User: name, Workdir: workdir})
	a.account = name
	a.claim = proto.CloneOf(c)
	return nil
}

// limit bounds the processes of the sandbox by their control group, and per uid by the resource limit that they inherit.
func (a *Agent) limit(pids int64) error {
	if pids <= 0 {
		return nil
	}
	if a.config.Groups != nil {
		if err := a.config.Groups.Limit(pids); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	limit := unix.Rlimit{Cur: uint64(pids), Max: uint64(pids)}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return fmt.Errorf("limit processes of a user: %w", err)
	}
	return nil
}

// ensureDirectory makes a directory that is not there, its owner being the account. One that is there is left as it is.
func ensureDirectory(dir string, account user.Account) error {
	dir = path.Clean(dir)
	info, err := os.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return unix.ENOTDIR
	case err == nil:
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chown(dir, int(account.UID), int(account.GID))
}
