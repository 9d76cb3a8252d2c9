package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

const (
	codeDirectory = "/sandbox" // where the program lies
	workspace     = "/workspace"
	maxOutput     = 64 << 20         // bytes of output kept of each stream
	stdinPiece    = 64 << 10         // of stdin in one message
	killPatience  = 15 * time.Second // for a program to end that is killed; then its sandbox is
	retryFirst    = 100 * time.Millisecond
	retryMost     = 2 * time.Second
)

func request[M any](m *M) *connect.Request[M] { return connect.NewRequest(m) }

// ending is how a program ended.
type ending struct {
	exit   *nodev1.Exit
	report *nodev1.CodeReport // nil: lost
}

// errUnkillable is why a job is canceled whose program could not be ended by itself.
var errUnkillable = errors.New("the program did not end")

// execute starts the program, or finds it, and waits for its end, through restarts of the node.
func (w *work) execute(ctx context.Context, sb *cay.Sandbox) (*ending, error) {
	var end *ending
	err := w.insist(ctx, sb, func(ctx context.Context) error {
		var err error
		end, err = w.follow(ctx, sb)
		return err
	})
	return end, err
}

// insist repeats what needs the attempt's sandbox until it succeeds, the sandbox has ended, its worker was out of reach for too long, or
// the error is one that would come again.
func (w *work) insist(ctx context.Context, sb *cay.Sandbox, do func(context.Context) error) error {
	alive, leave := w.whileAlive(ctx, sb)
	defer leave()
	wait := retryFirst
	for since := time.Now(); ; {
		began := time.Now()
		err := do(alive)
		if err == nil || ctx.Err() != nil || errors.As(err, new(*verdict)) || errors.As(err, new(storageError)) {
			return err
		}
		if alive.Err() != nil {
			return w.over(ctx, sb)
		}
		if errors.Is(err, errUnkillable) {
			return errCanceled
		}
		switch cay.ReasonOf(err) {
		case cay.Unprocessable, cay.InvalidRequest, cay.NotImplemented, cay.PayloadTooLarge:
			return failed(cay.JobError, string(cay.Unprocessable), publicDetail(err, "the program could not be started"))
		case cay.DiskFull:
			return failed(cay.JobFailed, string(cay.DiskFull), publicDetail(err, "the sandbox's disk is full"))
		}
		if time.Since(began) > w.j.cfg.Unreachable {
			since, wait = time.Now(), retryFirst // it went well for a while
		}
		if time.Since(since) > w.j.cfg.Unreachable {
			w.j.log.Warn("a job's worker was out of reach for too long", "job", w.id, "sandbox", sb.ID, "worker", sb.WorkerID, "error", err)
			return broken(string(cay.WorkerLost), "the worker of the job's sandbox could not be reached")
		}
		w.j.log.Debug("a job's worker is asked again", "job", w.id, "sandbox", sb.ID, "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-alive.Done():
			timer.Stop()
		}
		wait = min(2*wait, retryMost)
	}
}

// whileAlive is a context that ends as well when the sandbox does.
func (w *work) whileAlive(ctx context.Context, sb *cay.Sandbox) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		_, _ = w.j.sandboxes.Wait(ctx, sb.ProjectID, sb.ID, cay.Terminating, cay.Terminated, cay.Failed) // an error is a sandbox that is gone
		cancel()
	}()
	return ctx, func() { cancel(); <-watching }
}

// over is what the end of the attempt's sandbox means, once it is known why.
func (w *work) over(ctx context.Context, sb *cay.Sandbox) error {
	patient, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	last, err := w.j.sandboxes.Wait(patient, sb.ProjectID, sb.ID, cay.Terminating, cay.Terminated, cay.Failed)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil || last.Status.Active():
		return broken(string(cay.WorkerLost), "the job's sandbox is gone")
	}
	return w.ended(last)
}

// follow starts or attaches once, and waits for the end.
func (w *work) follow(ctx context.Context, sb *cay.Sandbox) (*ending, error) {
	node, err := w.j.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return nil, err
	}
	attach := func(context.Context) (*nodev1.ProcessInput, error) {
		return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
			SandboxId: string(sb.ID), ProcessId: string(w.row.ProcessID), Collect: true,
		}}}, nil
	}
	if w.row.Status == cay.JobRunning {
		return w.attend(ctx, node, sb, attach)
	}
	end, err := w.attend(ctx, node, sb, w.start)
	if cay.ReasonOf(err) == cay.InvalidRequest {
		// It may have been started by an earlier holder and have ended before the node was restarted: such a one can only be attached to.
		if ended, second := w.attend(ctx, node, sb, attach); second == nil || cay.ReasonOf(second) != cay.NotFound {
			return ended, second
		}
	}
	return end, err
}

// start is the first message for a program that may not have been started. A start of the same process id joins the first.
func (w *work) start(ctx context.Context) (*nodev1.ProcessInput, error) {
	in, err := w.j.openInput(ctx, w.row)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cwd := workspace
	if w.row.SessionID != "" {
		cwd = cay.SessionPath
	}
	return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: &nodev1.StartProcess{
		SandboxId: string(w.row.SandboxID), ProcessId: string(w.row.ProcessID), Collect: true, // of no kind: the job has a record of its own
		Spec: &nodev1.ProcessSpec{
			Code: &nodev1.CodeSpec{Language: w.row.Spec.Language, Source: in.code, Directory: codeDirectory},
			Env:  w.row.Spec.Env, Cwd: cwd, TimeoutMs: w.row.Spec.Timeout.Milliseconds(), MaxOutputBytes: maxOutput, StdinOpen: in.stdin != nil,
		},
	}}}, nil
}

// attend has one stream of the program: it notes that it runs, gives it its stdin, kills it when asked, and waits for its end.
func (w *work) attend(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox,
	first func(context.Context) (*nodev1.ProcessInput, error)) (*ending, error) {
	m, err := first(ctx) // held no longer than it takes to be sent: a program may be large, and run for long
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stream := node.Process(ctx)
	unblock := context.AfterFunc(ctx, func() { _ = stream.CloseRequest() }) // neither a send nor a receive notices the end of its context while it is open
	var beside sync.WaitGroup
	defer func() {
		cancel(nil)
		unblock()
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
		beside.Wait()
	}()
	if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		return nil, noderpc.Decode(err)
	}
	m = nil
	answer, err := stream.Receive()
	if err != nil {
		return nil, noderpc.Decode(err)
	}
	if answer.GetStarted() == nil {
		return nil, broken("internal", "the worker's answer makes no sense")
	}
	if w.row.Status == cay.JobQueued {
		if err := w.write(ctx, func(row *cay.Job) error { return row.Transition(cay.JobRunning, now()) }); err != nil {
			return nil, err
		}
	}
	beside.Go(func() { w.killWhenAsked(ctx, node, sb, cancel) })
	beside.Go(func() { w.feed(ctx, node, sb) })
	end := &ending{}
	for {
		m, err := stream.Receive()
		switch {
		case context.Cause(ctx) == errUnkillable:
			return nil, errUnkillable
		case err != nil && end.exit != nil && errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return nil, noderpc.Decode(err)
		}
		switch out := m.Output.(type) {
		case *nodev1.ProcessOutput_Exit:
			end.exit = out.Exit
		case *nodev1.ProcessOutput_Report:
			end.report = out.Report
			return end, nil // the output that follows is read by pages
		case *nodev1.ProcessOutput_Error:
			return nil, &cay.Error{Reason: cay.ErrorReason(out.Error.Reason), Detail: out.Error.Detail}
		case *nodev1.ProcessOutput_Data, *nodev1.ProcessOutput_Gap:
			if end.exit == nil {
				return nil, broken("internal", "the worker's answer makes no sense")
			}
			return end, nil // there is no report
		}
	}
}

// killWhenAsked kills the program and all that descends from it once the job is to be canceled. One that does not end is given up.
func (w *work) killWhenAsked(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox, giveUp context.CancelCauseFunc) {
	select {
	case <-w.asked:
	case <-ctx.Done():
		return
	}
	enough := time.NewTimer(killPatience)
	defer enough.Stop()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		// What fails is said again; a program that has ended needs none.
		_, _ = node.Signal(ctx, request(&nodev1.SignalRequest{SandboxId: string(sb.ID), ProcessId: string(w.row.ProcessID), Signal: "KILL", Tree: true}))
		select {
		case <-again.C:
		case <-enough.C:
			giveUp(errUnkillable)
			return
		case <-ctx.Done():
			return
		}
	}
}

// feed gives the program what it has not had of its stdin, and closes it. When the node goes away the next stream of the program begins
// it anew; a program that takes no more has had enough.
func (w *work) feed(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox) {
	for {
		err := w.feedOnce(ctx, node, sb)
		switch cay.ReasonOf(err) {
		case "", cay.Conflict, cay.NotFound, cay.Gone:
			return
		}
		if ctx.Err() == nil {
			w.j.log.Debug("a job's stdin is sent again", "job", w.id, "error", err)
		}
		again := time.NewTimer(retryMost)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

func (w *work) feedOnce(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox) error {
	in, err := w.j.openInput(ctx, w.row)
	if err != nil {
		return err
	}
	defer in.Close()
	if in.stdin == nil {
		return nil
	}
	in.code = nil
	return w.pour(ctx, node, sb, in.stdin)
}

func (w *work) pour(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox, stdin io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	stream := node.Process(ctx)
	unblock := context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })
	defer func() {
		cancel()
		unblock()
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}()
	send := func(m *nodev1.ProcessInput) error {
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return noderpc.Decode(err)
		} else if err != nil {
			_, err = stream.Receive()
			return noderpc.Decode(err)
		}
		return nil
	}
	if err := send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
		SandboxId: string(sb.ID), ProcessId: string(w.row.ProcessID), Collect: true, TakeStdin: true,
	}}}); err != nil {
		return err
	}
	m, err := stream.Receive()
	if err != nil {
		return noderpc.Decode(err)
	}
	if _, err := io.CopyN(io.Discard, stdin, m.GetStarted().GetStdinOffset()); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read stdin: %w", err)
	}
	piece := make([]byte, stdinPiece)
	for {
		n, err := io.ReadFull(stdin, piece)
		if n > 0 {
			if err := send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: piece[:n]}}); err != nil {
				return err
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("read stdin: %w", err)
			}
			break
		}
	}
	if err := send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_CloseStdin{CloseStdin: true}}); err != nil {
		return err
	}
	if err := send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}}); err != nil {
		return err
	}
	_, err = stream.Receive() // the node has taken all of it
	return noderpc.Decode(err)
}
