package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const (
	codeTimedOut  = 124      // of a program that ended itself well when its time was over, as of timeout(1)
	maxInputBytes = 64 << 20 // of a program or its input, as the server takes them
)

func (a *app) jobCommand() *cobra.Command {
	return parent("job", "Programs that run once, whether or not anyone waits", nil,
		a.jobRunCommand(), a.jobSubmitCommand(), a.jobListCommand(), a.jobInspectCommand(), a.jobLogsCommand(), a.jobWaitCommand(),
		a.jobCancelCommand())
}

// jobFlags are those of a submission.
type jobFlags struct {
	language, code, stdin string
	session               sessionFlags
	timeout, queueTimeout duration
	priority              int
	cpu                   float64
	memory, disk          size
	pids                  int64
	metadata              metadataFlags
	env                   envFlags
}

func (f *jobFlags) register(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.language, "language", "l", "", "`NAME`: python, javascript, typescript, bash, sh, php, ruby, go, … (default by FILE's name, else python)")
	fs.StringVarP(&f.code, "code", "c", "", "`CODE` to run, instead of FILE")
	fs.StringVar(&f.stdin, "stdin", "", "`FILE` with the program's input; - is standard input (default none)")
	f.session.register(a, cmd)
	fs.Var(&f.timeout, "timeout", "end of the program, as in 30s or 10m (default 1m)")
	fs.Var(&f.queueTimeout, "queue-timeout", "give up if it cannot run by then, as in 10m (default 1h)")
	fs.IntVar(&f.priority, "priority", 5, "`N` from 0 to 9: which of your own jobs comes first")
	fs.Float64Var(&f.cpu, "cpu", 0, "`CORES`, decimals allowed")
	fs.VarP(&f.memory, "memory", "m", "memory, as in 512m or 2g")
	fs.Var(&f.disk, "disk", "disk, as in 10g")
	fs.Int64Var(&f.pids, "pids", 0, "`NUMBER` of processes and threads at once")
	f.metadata.register(fs)
	f.env.register(fs)
	cmd.RegisterFlagCompletionFunc("language", completeLanguages)
}

var completeLanguages = cobra.FixedCompletions(slices.Compact(slices.Sorted(mapValues(languageOf))), cobra.ShellCompDirectiveNoFileComp)

func (f *jobFlags) request(ctx context.Context, a *app, c *client.Client, cmd *cobra.Command, args []string) (client.JobRequest, error) {
	r := client.JobRequest{
		Language: f.language, Timeout: time.Duration(f.timeout), QueueTimeout: time.Duration(f.queueTimeout), CPU: f.cpu, MemoryMB: f.memory.mb(),
		DiskGB: f.disk.gb(), Pids: f.pids,
	}
	inline := cmd.Flags().Changed("code")
	if (len(args) == 1) == inline {
		return r, usagef("give FILE, - for standard input, or -c CODE, one of them; usage: %s", cmd.UseLine())
	}
	if len(args) == 1 && args[0] == "-" && f.stdin == "-" {
		return r, usagef("standard input is the program with -; its own input needs a FILE")
	}
	if cmd.Flags().Changed("priority") {
		r.Priority = &f.priority
	}
	var err error
	if r.Metadata, err = f.metadata.collect(); err != nil {
		return r, err
	}
	if r.Env, err = f.env.collect(a); err != nil {
		return r, err
	}
	if r.Code = f.code; !inline {
		code, err := a.readInput(args[0])
		if err != nil {
			return r, err
		}
		r.Code = string(code)
		if r.Language == "" {
			r.Language = languageOf[strings.ToLower(filepath.Ext(args[0]))]
		}
	}
	if r.Code == "" {
		return r, usagef("there is no code to run")
	}
	if f.stdin != "" {
		if r.Stdin, err = a.readInput(f.stdin); err != nil {
			return r, err
		}
	}
	r.SessionID, r.SessionShared, err = f.session.resolve(ctx, c)
	return r, err
}

// readInput reads a local file, or standard input for -.
func (a *app) readInput(name string) ([]byte, error) {
	in := a.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	} else {
		name = "standard input"
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInputBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxInputBytes {
		return nil, fmt.Errorf("%s has more than %s; put it into a session (cay session create, cay cp) and read it from there", name, formatBytes(maxInputBytes))
	}
	return data, nil
}

func (a *app) jobRunCommand() *cobra.Command {
	var (
		flags jobFlags
		save  string
	)
	cmd := &cobra.Command{
		Use:   "run [flags] [FILE | -]",
		Short: "Run a program as a job, with its output here",
		Long: "Run submits the program in FILE (- is standard input) or in --code, shows its output live and exits with its code. With -o json\n" +
			"it prints the API's object of the job once that has finished.\n\n" +
			"Ctrl-C cancels the job; a second one leaves it. A lost connection, or a restart of the server, neither ends the job nor\n" +
			"loses output. SIGHUP, such as a closed window sends, leaves it running: see cay job logs.\n\n" +
			"A program that was ended at its timeout has the code 137 as when it is killed, or 124 where it ended itself well.\n\n" + exitCodes,
		Example: "  cay job run train.py\n  cay job run -l bash -c 'echo hello'\n  cay job run --session planner --stdin data.csv --timeout 10m report.py\n" +
			"  echo 'print(1)' | cay job run -",
		Args: between(0, 1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
			if save != "" && a.json() {
				return usagef("-o json prints files itself; leave out --save")
			}
			r, err := flags.request(ctx, a, c, cmd, args)
			if err != nil {
				return err
			}
			return a.runJob(ctx, c, r, save)
		})
	}
	flags.register(a, cmd)
	cmd.Flags().StringVar(&save, "save", "", "put files written to /output into the folder `DIR`")
	return cmd
}

func (a *app) jobSubmitCommand() *cobra.Command {
	var flags jobFlags
	cmd := &cobra.Command{
		Use:   "submit [flags] [FILE | -]",
		Short: "Submit a program as a job and print its id",
		Long: "Submit takes the program in FILE (- is standard input) or in --code and prints the job's id, or with -o json the API's object,\n" +
			"without waiting for anything.",
		Example: "  job=$(cay job submit train.py); cay job logs -f $job\n  cay job submit -l bash -c 'make all' --session planner --priority 9",
		Args:    between(0, 1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.do(func(ctx context.Context, c *client.Client, args []string) error {
			r, err := flags.request(ctx, a, c, cmd, args)
			if err != nil {
				return err
			}
			j, err := c.Jobs().Submit(ctx, r)
			if err != nil {
				return err
			}
			return a.printJob(j)
		})(cmd, args)
	}
	flags.register(a, cmd)
	return cmd
}

// printJob prints a job's id, or the object.
func (a *app) printJob(j *client.Job) error {
	if a.json() {
		return a.printJSON(j)
	}
	_, err := fmt.Fprintln(a.Stdout, j.ID)
	return err
}

// runJob is one job from its submission to its end. signals are caught from the beginning, so that none leaves a job behind that
// nobody knows of.
func (a *app) runJob(ctx context.Context, c *client.Client, r client.JobRequest, save string) error {
	signals, stop := catchSignals()
	defer stop()
	submitting, cancel := context.WithTimeout(context.WithoutCancel(ctx), firstAnswer)
	defer cancel()
	submitted, err := c.Jobs().Submit(submitting, r)
	if err != nil {
		return err
	}
	id := submitted.ID
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	var canceled atomic.Bool
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { a.cancelOnSignal(ctx, c, id, signals, ended, leave, &canceled) })
	j, err := a.seeJobThrough(ctx, c, id)
	close(ended)
	wg.Wait()
	switch {
	case err != nil:
		a.note("the job %s may run on; see: cay job logs -f %s", id, id)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	case a.json():
		err = a.printJSON(j)
	default:
		err = a.keepOutcome(a.outputsOf(ctx, c, id), &client.CodeOutcome{Outputs: j.Outputs}, save, "see: cay job wait --save DIR "+id)
	}
	if err != nil {
		return err
	}
	if canceled.Load() && j.Status == client.JobCanceled {
		return errInterrupted
	}
	return a.exitOfJob(j)
}

// seeJobThrough shows a job's output until its end, and answers it.
func (a *app) seeJobThrough(ctx context.Context, c *client.Client, id string) (*client.Job, error) {
	if a.json() {
		return c.Jobs().Wait(ctx, id)
	}
	for f, err := range c.Jobs().Stream(ctx, id, 0) {
		if err == nil {
			err = a.printFrame(f)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.Jobs().Wait(ctx, id) // it has finished
}

// cancelOnSignal is on duty until ended is closed. The first INT or TERM cancels the job; the second, and HUP, leaves it.
func (a *app) cancelOnSignal(ctx context.Context, c *client.Client, id string, signals <-chan os.Signal, ended <-chan struct{},
	leave context.CancelCauseFunc, canceled *atomic.Bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		var sig os.Signal
		select {
		case sig = <-signals:
		case <-ended:
			return
		}
		switch {
		case !isEnding(sig):
			continue
		case sig == syscall.SIGHUP || canceled.Load():
			leave(errInterrupted)
			return
		}
		canceled.Store(true)
		wg.Go(func() {
			if _, err := c.Jobs().Cancel(ctx, id); err != nil && ctx.Err() == nil {
				a.note("%v", err)
			}
		})
	}
}

func (a *app) outputsOf(ctx context.Context, c *client.Client, job string) opener {
	return func(path string) (io.ReadCloser, error) { return c.Jobs().OpenOutput(ctx, job, path) }
}

// printFrame writes a program's output, and says what is missing of it.
func (a *app) printFrame(f *client.JobFrame) (err error) {
	switch f.Type {
	case client.FrameStdout:
		_, err = a.Stdout.Write(f.Data)
	case client.FrameStderr, client.FrameInstall:
		_, err = a.Stderr.Write(f.Data)
	case client.FrameGap:
		a.note("%d bytes of %s are missing here", f.Bytes, printable(f.Stream))
	case client.FrameStatus:
		if f.Status == client.JobRunning && f.Attempt > 1 {
			a.note("its sandbox was lost: the program runs again from its beginning")
		}
	}
	return err
}

// exitOfJob is a job's end as an exit code, with what its code does not say.
func (a *app) exitOfJob(j *client.Job) error {
	if j.Status == client.JobSuccess {
		return nil
	}
	why := fmt.Sprintf("the job %s ended with %s", j.ID, printable(string(j.Status)))
	if j.Fault != nil {
		why += ": " + printable(j.Fault.Error())
	}
	switch {
	case j.ExitCode == nil && j.Status != client.JobTimeout:
		return &codedError{codeFailed, fmt.Errorf("%s", why)}
	case j.Status == client.JobTimeout:
		a.note("the program was ended at its timeout of %s", j.Timeout)
	case j.Fault != nil || j.Status == client.JobCanceled:
		a.note("%s", why)
	}
	if j.ExitCode != nil && *j.ExitCode != 0 {
		return exitWith(*j.ExitCode)
	}
	if j.Status == client.JobTimeout {
		return exitWith(codeTimedOut)
	}
	return exitWith(codeFailed)
}
