package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

const eventStream = "text/event-stream"

// errClientGone is why a session ends whose client has left.
var errClientGone error = cay.Errorf(cay.InvalidRequest, "the client has gone away")

// enter lets a call use a sandbox: it counts as activity, and resumes one that may be.
func (a *API) enter(ctx context.Context, p SandboxPath) (*cay.Sandbox, nodev1connect.NodeServiceClient, error) {
	id, err := p.id()
	if err != nil {
		return nil, nil, err
	}
	sb, err := a.Sandboxes.Enter(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, nil, err
	}
	node, err := a.Nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return nil, nil, err
	}
	return sb, node, nil
}

// actorOf is the key that a request came with, for the record of what it starts.
func actorOf(ctx context.Context) string { return string(exchangeOf(ctx).identity.KeyID) }

// attended is a context that ends when the client goes away or Close is called; its cause says which.
func (a *API) attended(r *http.Request) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	unlink := context.AfterFunc(r.Context(), func() { cancel(errClientGone) })
	stop := a.whenClosing(func() { cancel(errClosing()) })
	return ctx, func() {
		unlink()
		stop()
		cancel(nil)
	}
}

type execInput struct {
	Idempotent
	SandboxPath
	Payload payload[ExecRequest]
}

// exec runs a command and answers its result, or its events with Accept: text/event-stream. A client that goes away leaves the
// process running, unless kill_on_disconnect; what it sent as stdin still arrives.
func (a *API) exec(w http.ResponseWriter, r *http.Request, in *execInput) error {
	if r.Header.Get("Last-Event-ID") != "" {
		return cay.Errorf(cay.InvalidRequest, "Last-Event-ID attaches to a process that runs: GET …/processes/{id}/stream").On("Last-Event-ID")
	}
	body := &in.Payload.value
	run := &execution{a: a, w: w, r: r, req: &body.RunFields, live: accepts(r, eventStream)}
	return run.run(in.SandboxPath, "exec", in.IdempotencyKey, in.Payload.sum, func(*cay.Sandbox) (*nodev1.ProcessSpec, error) {
		return body.spec(), nil
	})
}

// run starts what spec says, or attaches to what its key has started, and answers how it went. route is also the kind of its record.
func (x *execution) run(box SandboxPath, route, key string, sum [sha256.Size]byte, spec func(*cay.Sandbox) (*nodev1.ProcessSpec, error)) error {
	leave, err := x.a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	sb, node, err := x.a.enter(x.r.Context(), box)
	if err != nil {
		return err
	}
	x.process, x.sandbox = cay.NewID(cay.PrefixProcess), sb
	settle := func(bool) {}
	if key != "" {
		x.process = keyedProcess(route, sb.ProjectID, sb.ID, key)
		var first bool
		if settle, first, err = x.a.execs.claim(x.r.Context(), x.process, sum); err != nil {
			return err
		}
		if !first {
			return x.serve(node, attachTo(sb.ID, x.process, 0, !x.live), func(bool) {})
		}
		defer settle(false)
	}
	what, err := spec(sb)
	if err != nil {
		return err
	}
	_, what.StdinOpen = x.req.input()
	return x.serve(node, &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: &nodev1.StartProcess{
		SandboxId: string(sb.ID), ProcessId: string(x.process), Spec: what, Collect: !x.live, Foreground: true,
		KillOnDisconnect: x.req.KillOnDisconnect, Kind: route, Actor: actorOf(x.r.Context()),
	}}}, settle)
}

func attachTo(sandbox, process cay.ID, offset int64, collect bool) *nodev1.ProcessInput {
	return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
		SandboxId: string(sandbox), ProcessId: string(process), Offset: offset, Collect: collect, Foreground: true,
	}}}
}

// execution is one command or program over HTTP, as JSON or as events.
type execution struct {
	a       *API
	w       http.ResponseWriter
	r       *http.Request
	req     *RunFields
	sandbox *cay.Sandbox
	process cay.ID
	live    bool
	program bool // its exit is followed by a report
}

func (x *execution) serve(node nodev1connect.NodeServiceClient, first *nodev1.ProcessInput, settle func(started bool)) error {
	ctx, release := x.a.attended(x.r)
	defer release()
	s, err := open(context.WithoutCancel(x.r.Context()), node, first)
	if err != nil {
		return err
	}
	defer s.end()
	st, err := s.started(ctx)
	if errors.Is(err, errClientGone) && !x.req.KillOnDisconnect { // the process starts all the same, and is to have its stdin
		starting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer x.a.whenClosing(func() { cancel(errClosing()) })()
		st, err = s.started(starting)
	}
	if err != nil {
		return err
	}
	settle(true)
	x.a.metrics.running(first, exchangeOf(ctx).began)
	if x.process == "" || st.GetProcessId() != "" {
		x.process = cay.ID(st.GetProcessId())
	}
	fed := make(chan struct{})
	if data, ok := x.req.input(); ok && first.GetStart() != nil {
		s.pumps.Go(func() {
			defer close(fed)
			_ = s.feed(data, st.GetStdinOffset()) // a process that takes no more input has ended, or the stream says why not
		})
	} else {
		close(fed)
	}
	lost := false
	if x.live {
		v := &eventView{process: x.process, encoding: x.req.Encoding, maxOutput: x.req.maxOutput()}
		if x.program {
			v.outcome = &programOutcome{a: x.a, node: node, sandbox: x.sandbox}
		}
		err = x.a.sendEvents(ctx, x.w, s, st, v)
		lost = v.lost
	} else {
		err = x.sendResult(ctx, s, &programOutcome{a: x.a, node: node, sandbox: x.sandbox})
	}
	switch cause := context.Cause(ctx); {
	case (errors.Is(cause, errClientGone) || cause == nil && lost) && !x.req.KillOnDisconnect:
		x.a.deliverInput(s, fed)
		s.detach()
	case cause != nil && !errors.Is(cause, errClientGone):
		s.detach()
	}
	return err
}

// deliverInput waits, for a client that has gone away, until its stdin has reached the process.
func (a *API) deliverInput(s *nodeStream, fed <-chan struct{}) {
	for {
		select {
		case <-fed:
			return
		case m, ok := <-s.outputs:
			if !ok || m.GetExit() != nil {
				return
			}
		case <-a.closing:
			s.detach()
			return
		}
	}
}

// sendResult answers the JSON result, written while it arrives.
func (x *execution) sendResult(ctx context.Context, s *nodeStream, program *programOutcome) error {
	m, err := s.next(ctx)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return errBroken()
		}
		return err
	}
	exit := m.GetExit()
	if exit == nil {
		return cay.Errorf(cay.Internal, "the worker sent output before the exit")
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Cache-Control", "no-store")
	out := x.a.patient(x.w)
	defer out.reset()
	encoding := x.req.Encoding
	if encoding == "" {
		encoding = streams.UTF8
	}
	result, err := streams.NewResult(out, encoding, outcome(x.process, exit))
	if err != nil {
		return err
	}
	defer result.Release()
	var report *nodev1.CodeReport
	for {
		m, err := s.next(ctx)
		if errors.Is(err, io.EOF) {
			if !x.program {
				return result.End(nil)
			}
			return result.End(func(w io.Writer) error { return program.write(ctx, w, report) })
		}
		if err != nil {
			return err
		}
		switch {
		case m.GetReport() != nil:
			report = m.GetReport()
		case m.GetData() != nil:
			x.a.metrics.output.Add(float64(len(m.GetData().GetData())))
			err = result.Data(streamOf(m.GetData().GetStream()), m.GetData().GetData())
		case m.GetGap() != nil:
			err = result.Gap(streamOf(m.GetGap().GetStream()), cay.Gap{Offset: m.GetGap().GetOffset(), Bytes: m.GetGap().GetBytes()})
		}
		if err != nil {
			return err
		}
	}
}

// eventView is how a process is shown as events.
type eventView struct {
	process   cay.ID
	encoding  streams.Encoding
	maxOutput int64           // 0 where it is not known
	outcome   *programOutcome // nil: it is known to be no program
	exited    bool            // the exit was shown
	lost      bool            // the client took no more
}

// sendEvents answers a live stream as server-sent events, from after started to exit, result or error.
func (a *API) sendEvents(ctx context.Context, w http.ResponseWriter, s *nodeStream, st *nodev1.Started, v *eventView) error {
	if v.encoding == "" {
		v.encoding = streams.UTF8
	}
	beginEvents(w.Header())
	out := a.patient(w)
	defer out.reset()
	e := streams.NewSSE(out, v.encoding)
	defer e.Release()
	if err := e.Start(v.process, st.GetOffset()); err != nil {
		return err
	}
	alive := time.NewTicker(a.Keepalive)
	defer alive.Stop()
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	for {
		if err := out.send(e); err != nil {
			v.lost = true
			return nil //nolint:nilerr // the client is gone, or took nothing for too long: there is nobody to tell
		}
		select {
		case <-alive.C:
			e.Comment()
			continue
		default:
		}
		select {
		case <-alive.C:
			e.Comment()
		case m, ok := <-s.outputs:
			for more := true; more; {
				if m.GetReport() != nil {
					return v.sendReport(ctx, out, e, m.GetReport())
				}
				done, err := a.addEvent(e, s, m, ok, v)
				if done || err != nil {
					return errors.Join(err, ignoreGone(out.send(e)))
				}
				if e.Full() {
					break
				}
				select {
				case m, ok = <-s.outputs:
				default:
					more = false
				}
			}
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if !errors.Is(cause, errClientGone) {
				d := problem.From(cause, "")
				a.metrics.told(ctx, cause)
				_ = e.Error(d.Reason, d.Detail)
				_ = out.send(e)
			}
			return nil
		}
	}
}

// ignoreGone: a client that left before the last event needs no answer.
func ignoreGone(error) error { return nil }

// addEvent adds what the node said. done: it was the last.
func (a *API) addEvent(e *streams.SSE, s *nodeStream, m *nodev1.ProcessOutput, ok bool, v *eventView) (done bool, err error) {
	failure := error(nil)
	switch {
	case !ok && errors.Is(s.err, io.EOF) && v.exited:
		return true, nil // it was no program
	case !ok && errors.Is(s.err, io.EOF):
		failure = errBroken()
	case !ok:
		failure = s.err
	case m.GetError() != nil:
		failure = streamError(m.GetError())
	}
	if failure != nil {
		d := problem.From(failure, "")
		a.metrics.told(context.Background(), failure)
		return true, e.Error(d.Reason, d.Detail)
	}
	switch {
	case m.GetData() != nil:
		d := m.GetData()
		a.metrics.output.Add(float64(len(d.GetData())))
		e.Data(streamOf(d.GetStream()), d.GetOffset(), d.GetData())
	case m.GetGap() != nil:
		g := m.GetGap()
		return false, e.Gap(streamOf(g.GetStream()), cay.Gap{Offset: g.GetOffset(), Bytes: g.GetBytes()})
	case m.GetExit() != nil:
		x := m.GetExit()
		v.exited = true
		return v.outcome == nil, e.Exit(outcome(v.process, x), streams.PerStream{
			Stdout: v.maxOutput > 0 && x.GetStdoutSize() > v.maxOutput, Stderr: v.maxOutput > 0 && x.GetStderrSize() > v.maxOutput,
		})
	}
	return false, nil
}

// patientWriter writes to a client in pieces, each of which the client has the write timeout to take.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

const writePiece = 64 << 10

func (a *API) patient(w http.ResponseWriter) *patientWriter {
	return &patientWriter{w: w, control: http.NewResponseController(w), timeout: a.WriteTimeout}
}

// Write implements io.Writer.
func (p *patientWriter) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		_ = p.control.SetWriteDeadline(time.Now().Add(p.timeout)) // not every ResponseWriter has one
		n, err := p.w.Write(b[written:min(len(b), written+writePiece)])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// send writes and flushes what the encoder holds.
func (p *patientWriter) send(e *streams.SSE) error {
	if e.Buffered() == 0 {
		return nil
	}
	if err := e.Flush(); err != nil {
		return err
	}
	return p.control.Flush()
}

func (p *patientWriter) reset() { _ = p.control.SetWriteDeadline(time.Time{}) }

// accepts reports whether the Accept header names the type.
func accepts(r *http.Request, kind string) bool {
	for _, line := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
			if strings.EqualFold(strings.TrimSpace(name), kind) && strings.ReplaceAll(params, " ", "") != "q=0" {
				return true
			}
		}
	}
	return false
}

// offsetOf reads an offset into a process's output.
func offsetOf(field, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, cay.Errorf(cay.InvalidRequest, "`%s` must be an offset: a whole number from 0 on", field).On(field)
	}
	return n, nil
}
