package process

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/reaper"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// processID is what a node may call a process.
var processID = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

// Start runs a process and calls started before any of its output becomes pending. A repeated start of the same id is answered the
// same. What cannot be found or executed is started all the same: it ends at once, with 127 or 126 and a line on stderr, pid 0.
func (t *Table) Start(req *guestv1.Start, started func(*guestv1.Started)) error {
	return t.open(req, started, func(p *process, defaults Defaults) error { return p.start(req, defaults, started) })
}

// open makes a process known under its id and stream and has begin start it; an id that is known already is answered as it was.
func (t *Table) open(req *guestv1.Start, started func(*guestv1.Started), begin func(*process, Defaults) error) error {
	if !processID.MatchString(req.ProcessId) || req.Stream == 0 {
		return cay.Errorf(cay.Unprocessable, "a start needs an id and a stream")
	}
	p := &process{table: t, id: req.ProcessId, stream: req.Stream, stdin: stdin{fd: -1}, asked: time.Now()}
	for i := range p.sources {
		p.sources[i].fd = -1
	}
	p.mu.Lock() // whoever finds p in the table waits until it is started
	defer p.notifyAndUnlock()

	t.mu.Lock()
	if earlier := t.byID[p.id]; earlier != nil {
		t.mu.Unlock()
		earlier.mu.Lock()
		defer earlier.mu.Unlock()
		if earlier.failure == nil {
			earlier.announce(started)
		}
		return earlier.failure
	}
	if t.byStream[p.stream] != nil {
		t.mu.Unlock()
		return cay.Errorf(cay.Conflict, "stream %d is in use", p.stream)
	}
	if len(t.byID) >= maxProcesses {
		t.mu.Unlock()
		return cay.Errorf(cay.QuotaExceeded, "%d processes run or ended unread in the sandbox, more are not possible", maxProcesses)
	}
	t.byID[p.id], t.byStream[p.stream] = p, p
	defaults := t.defaults
	t.mu.Unlock()

	if p.failure = begin(p, defaults); p.failure != nil {
		t.remove(p)
	}
	return p.failure
}

func (p *process) notifyAndUnlock() {
	p.mu.Unlock()
	p.table.notify()
}

// announce answers the start: it runs, or was not run. With p.mu.
func (p *process) announce(started func(*guestv1.Started)) {
	if p.took == 0 {
		p.took = time.Since(p.asked)
	}
	started(&guestv1.Started{Pid: int64(p.pid), TookUs: p.took.Microseconds()})
}

// program is a start with everything resolved.
type program struct {
	path    string
	argv    []string
	env     []string
	cwd     string
	account user.Account
}

func (p *process) start(req *guestv1.Start, defaults Defaults, started func(*guestv1.Started)) error {
	prog, missing, err := p.table.resolve(req, defaults, p.program)
	if err != nil {
		return err
	}
	p.started = time.Now()
	if missing != nil {
		p.endUnstarted(missing, started)
		return nil
	}
	err = p.run(prog, req, p.ended)
	if errors.Is(err, unix.ENOEXEC) { // as execvp does: a script without an interpreter line
		prog.argv = append([]string{"sh", prog.path}, prog.argv[1:]...)
		prog.path = "/bin/sh"
		err = p.run(prog, req, p.ended)
	}
	switch {
	case err == nil:
		p.announce(started)
		return nil
	case errors.Is(err, unix.EAGAIN):
		return cay.Errorf(cay.Unprocessable, "process limit reached: the sandbox has as many processes and threads as it may have")
	case errors.Is(err, unix.E2BIG):
		return cay.Errorf(cay.Unprocessable, "arguments and environment are too long to be executed").On("env")
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		return cay.Errorf(cay.Unprocessable, "the sandbox has no room for another process: %w", err)
	}
	if err := prog.enter(); err != nil {
		return err
	}
	p.endUnstarted(describe(prog.argv[0], err), started)
	return nil
}

// enter reports a working directory that the user may not enter.
func (g program) enter() error {
	err := g.account.As(func() error {
		fd, err := unix.Open(path.Join(g.cwd, "."), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Faccessat(fd, ".", unix.X_OK, unix.AT_EACCESS)
	})
	if err != nil {
		return cay.Errorf(cay.Unprocessable, "the working directory %s cannot be entered by the user: %w", g.cwd, err).On("cwd")
	}
	return nil
}

// unstarted says why nothing was run.
type unstarted struct {
	code int32
	text string
}

func describe(name string, err error) *unstarted {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return &unstarted{127, fmt.Sprintf("%s: not found\n", name)}
	}
	if errors.Is(err, unix.EACCES) {
		return &unstarted{126, fmt.Sprintf("%s: permission denied\n", name)}
	}
	return &unstarted{126, fmt.Sprintf("%s: cannot be executed: %v\n", name, err)}
}

// endUnstarted makes p a process that ended with a line on stderr.
func (p *process) endUnstarted(why *unstarted, started func(*guestv1.Started)) {
	p.announce(started)
	p.say(why.text)
	p.exit = &guestv1.Exited{ProcessId: p.id, Code: why.code, DurationMs: time.Since(p.started).Milliseconds()}
	p.reportSoon()
	p.settle()
}

// say adds a line of the agent's own to stderr.
func (p *process) say(text string) {
	block := blocks.Get().(*[wire.MaxDataRun]byte)
	n := copy(block[:minRead], text)
	if !p.keep(wire.FrameStderr, block, n) {
		blocks.Put(block)
	}
}

// resolve checks everything that can be checked before the fork.
func (t *Table) resolve(req *guestv1.Start, defaults Defaults, source Program) (program, *unstarted, error) {
	for i, arg := range req.Argv {
		if strings.Contains(arg, "\x00") || i == 0 && arg == "" {
			return program{}, nil, cay.Errorf(cay.Unprocessable, "arguments hold no NUL and the first is not empty").On("command")
		}
	}
	if strings.Contains(req.Shell, "\x00") {
		return program{}, nil, cay.Errorf(cay.Unprocessable, "a command holds no NUL").On("command")
	}
	if err := CheckEnv(req.Env); err != nil {
		return program{}, nil, err
	}
	account, err := t.users.Lookup(firstOf(req.User, defaults.User))
	if err != nil {
		var e *cay.Error
		if errors.As(err, &e) {
			e.On("user")
		}
		return program{}, nil, err
	}
	cwd := firstOf(req.Cwd, defaults.Workdir)
	if !strings.HasPrefix(cwd, "/") || strings.Contains(cwd, "\x00") {
		return program{}, nil, cay.Errorf(cay.Unprocessable, "the working directory %q is not an absolute path", cwd).On("cwd")
	}
	var st unix.Stat_t
	if err := unix.Stat(cwd, &st); err != nil {
		return program{}, nil, cay.Errorf(cay.Unprocessable, "the working directory %s: %w", cwd, err).On("cwd")
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return program{}, nil, cay.Errorf(cay.Unprocessable, "the working directory %s is not a directory", cwd).On("cwd")
	}

	shell := "/bin/bash"
	if unix.Stat(shell, &st) != nil {
		shell = "/bin/sh"
	}
	var tag map[string]string
	if t.groups == nil {
		tag = map[string]string{tagVariable: req.ProcessId}
	}
	env := environment(account, shell, cwd, req.Tty, defaults.Env, req.Env, tag)
	argv := req.Argv
	if source != nil {
		if argv, err = source.Prepare(account, cwd, env); err != nil {
			return program{}, nil, err
		}
	}
	prog := program{cwd: cwd, account: account, env: flatten(env)}

	if len(argv) == 0 {
		prog.path, prog.argv = shell, []string{path.Base(shell)}
		if req.Login {
			prog.argv[0] = "-" + prog.argv[0]
		}
		if req.Shell != "" || !req.Tty && !req.Login {
			prog.argv = append(prog.argv, "-c", req.Shell)
		}
		return prog, nil, nil
	}
	prog.argv = argv
	file, missing := search(argv[0], cwd, env["PATH"], account)
	prog.path = file
	return prog, missing, nil
}

func firstOf(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// search finds an executable as execvp does: names without a slash in PATH, where one that may not be executed is passed over but
// remembered.
func search(name, cwd, list string, account user.Account) (string, *unstarted) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = strings.Split(list, ":")
		for i := range candidates {
			candidates[i] = path.Join(firstOf(candidates[i], "."), name)
		}
	}
	var found error = unix.ENOENT
	for _, file := range candidates {
		if !path.IsAbs(file) {
			file = path.Join(cwd, file)
		}
		var st unix.Stat_t
		switch err := unix.Stat(file, &st); {
		case err != nil:
			if err != unix.ENOENT && err != unix.ENOTDIR {
				found = err
			}
		case st.Mode&unix.S_IFMT == unix.S_IFREG && executable(&st, account):
			return file, nil
		default:
			found = unix.EACCES
		}
	}
	return "", describe(name, found)
}

// executable reports whether account may execute the file, as far as its mode says.
func executable(st *unix.Stat_t, account user.Account) bool {
	switch {
	case account.Root():
		return st.Mode&0o111 != 0
	case st.Uid == account.UID:
		return st.Mode&0o100 != 0
	case account.In(st.Gid):
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// run forks; ended is told how it ends. On error nothing of it is left.
func (p *process) run(g program, req *guestv1.Start, ended func(reaper.End)) error {
	attr := &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: g.account.UID, Gid: g.account.GID, Groups: g.account.Groups}
	}
	files := make([]uintptr, 3, 4)
	var child []int // descriptors that only the child needs
	defer func() {
		for _, fd := range child {
			unix.Close(fd)
		}
	}()
	err := p.connect(req, g.account, attr, files, &child)
	files = p.control.add(files)
	if err == nil && p.table.groups != nil {
		if p.group, err = p.table.groups.Create(p.groupName()); err == nil {
			attr.UseCgroupFD, attr.CgroupFD = true, p.group.FD()
		}
	}
	if err == nil {
		p.pid, err = p.table.reaper.Start(func() (int, error) {
			return syscall.ForkExec(g.path, g.argv, &syscall.ProcAttr{Dir: g.cwd, Env: g.env, Files: files, Sys: attr})
		}, ended)
	}
	if err != nil {
		for i := range p.sources {
			p.closeSource(&p.sources[i])
		}
		p.stdin.close(p)
		p.terminal = nil
		if p.group != nil {
			p.group.Remove()
			p.group = nil
		}
	}
	return err
}

func (p *process) groupName() string {
	if p.stream == 0 {
		return p.id // a kernel
	}
	return "p" + strconv.FormatUint(p.stream, 10)
}

// connect makes the pipes or the terminal.
func (p *process) connect(req *guestv1.Start, account user.Account, attr *syscall.SysProcAttr, files []uintptr, child *[]int) error {
	if req.Tty {
		return p.connectTerminal(req, account, attr, files, child)
	}
	files[0] = p.table.null.Fd()
	if req.Stdin {
		read, write, err := pipe(child, 0)
		if err != nil {
			return err
		}
		p.stdin.fd = write
		files[0] = uintptr(read)
	}
	for i, stream := range []wire.FrameType{wire.FrameStdout, wire.FrameStderr} {
		read, write, err := pipe(child, 1)
		if err != nil {
			return err
		}
		files[i+1] = uintptr(write)
		if err := p.watch(i, read, stream); err != nil {
			return err
		}
	}
	return nil
}

// pipe makes a pipe whose end for the child (0: reading, 1: writing) blocks and is noted in child, and whose other end does not.
func pipe(child *[]int, end int) (read, write int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	*child = append(*child, fds[end])
	if _, err := unix.FcntlInt(uintptr(fds[1-end]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		unix.Close(fds[1-end])
		return 0, 0, err
	}
	return fds[0], fds[1], nil
}

func (p *process) connectTerminal(req *guestv1.Start, account user.Account, attr *syscall.SysProcAttr, files []uintptr, child *[]int) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	defer slave.Close()
	size := &pty.Winsize{Cols: uint16(min(req.Cols, 1<<16-1)), Rows: uint16(min(req.Rows, 1<<16-1))}
	if size.Cols == 0 || size.Rows == 0 {
		size.Cols, size.Rows = 80, 24
	}
	_ = pty.Setsize(master, size)
	_ = os.Chown(slave.Name(), int(account.UID), int(account.GID)) // programs open it by name; not every devpts allows it

	fd := int(master.Fd()) // blocking from now on, as far as package os knows
	input, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	tty, err2 := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, err2); err != nil {
		master.Close()
		return err
	}
	*child = append(*child, tty)
	p.terminal, p.stdin.fd, p.stdin.terminal = master, input, true
	files[0], files[1], files[2] = uintptr(tty), uintptr(tty), uintptr(tty)
	attr.Setctty = true // of descriptor 0 in the child
	return p.watch(0, fd, wire.FrameStdout)
}

// Resize tells a terminal its size.
func (t *Table) Resize(req *guestv1.Resize) error {
	p := t.find(req.ProcessId)
	if p == nil {
		return errUnknown(req.ProcessId)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal == nil {
		return cay.Errorf(cay.Unprocessable, "the process has no terminal")
	}
	if p.sources[0].fd < 0 {
		return nil
	}
	return pty.Setsize(p.terminal, &pty.Winsize{Cols: uint16(min(req.Cols, 1<<16-1)), Rows: uint16(min(req.Rows, 1<<16-1))})
}
