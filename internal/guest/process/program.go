package process

import (
	"io"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// inlineReport is up to which size a report travels with the exit.
const inlineReport = 32 << 10

// Report is an encoded guestv1.CodeReport. Close frees it; reads under way end with an error then.
type Report interface {
	io.ReaderAt
	Size() int64
	Close()
}

// Program is a source that a process runs.
type Program interface {
	// Prepare makes the source ready for account and returns the command that runs it. It may change env. After an error nothing
	// is left; else Report follows.
	Prepare(account user.Account, cwd string, env map[string]string) (argv []string, err error)
	// Report cleans up after the process has ended, or was not started, and says what it left behind. It may take a while.
	Report() Report
}

// StartProgram is Start with the command that prog prepares. The exit waits for the report.
func (t *Table) StartProgram(req *guestv1.Start, prog Program, started func(*guestv1.Started)) error {
	return t.open(req, started, func(p *process, defaults Defaults) error {
		once := &prepared{Program: prog}
		p.program = once
		err := p.start(req, defaults, started)
		if err != nil && once.done {
			prog.Report().Close()
		}
		return err
	})
}

// prepared notes whether Prepare succeeded: only then there is something to clean up.
type prepared struct {
	Program
	done bool
}

func (p *prepared) Prepare(account user.Account, cwd string, env map[string]string) ([]string, error) {
	argv, err := p.Program.Prepare(account, cwd, env)
	p.done = err == nil
	return argv, err
}

// reportSoon has the report made, which the exit then waits for. It expects p.mu.
func (p *process) reportSoon() {
	if p.program == nil {
		return
	}
	p.reporting = true
	p.table.running.Go(func() {
		report := p.program.Report()
		p.mu.Lock()
		p.reporting = false
		p.attach(report)
		p.settle()
		p.mu.Unlock()
		p.table.notify()
	})
}

// attach puts the report into the exit, or its size. It expects p.mu.
func (p *process) attach(report Report) {
	size := report.Size()
	if size > inlineReport {
		if p.forgotten {
			report.Close()
			return
		}
		p.exit.ReportBytes, p.report = size, report
		return
	}
	inline := make([]byte, size)
	if _, err := report.ReadAt(inline, 0); err == nil || err == io.EOF {
		p.exit.Report = inline
	}
	report.Close()
}

// Report is what the node has to fetch before it forgets a process. The reader fails once that was forgotten.
func (t *Table) Report(id string) (io.Reader, error) {
	p := t.find(id)
	if p == nil {
		return nil, errUnknown(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report == nil {
		return nil, cay.Errorf(cay.NotFound, "the process %s has no report to fetch", id)
	}
	return io.NewSectionReader(p.report, 0, p.report.Size()), nil
}

// Fate is how a process ended, in the terms of guestv1.Exited.
type Fate struct {
	Code   int32
	Signal int32
}

func fateOf(status syscall.WaitStatus) Fate {
	if status.Signaled() {
		return Killed(status.Signal())
	}
	return Fate{Code: int32(status.ExitStatus())}
}

// Killed is the fate of what a signal ended.
func Killed(sig syscall.Signal) Fate { return Fate{Code: 128 + int32(sig), Signal: int32(sig)} }
