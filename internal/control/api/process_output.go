package api

import (
	"context"
	"errors"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// minPage is the least that is read of a process's output for a page, in bytes: one character of each stream.
const minPage = 8

type processLogsInput struct {
	SandboxPath
	ProcessPath
	Offset   int64  `query:"offset" minimum:"0" doc:"From here on, counting stdout and stderr together; default 0"`
	Limit    int64  `query:"limit" minimum:"1" maximum:"8388608" default:"1048576" doc:"At most about this many bytes of output"`
	Encoding string `query:"encoding" enum:"utf8,base64" doc:"Default utf8"`
}

// processLogs is a page of a process's output.
type processLogs struct {
	ProcessID    string            `json:"process_id"`
	Offset       int64             `json:"offset"`
	NextOffset   int64             `json:"next_offset" doc:"Where the next page begins. Equal to size, and the process not running: all was read"`
	Size         int64             `json:"size" doc:"Bytes of both streams so far"`
	Stdout       *string           `json:"stdout,omitzero" doc:"With encoding utf8"`
	Stderr       *string           `json:"stderr,omitzero" doc:"With encoding utf8"`
	StdoutBase64 *[]byte           `json:"stdout_base64,omitzero" doc:"With encoding base64"`
	StderrBase64 *[]byte           `json:"stderr_base64,omitzero" doc:"With encoding base64"`
	Gaps         []streams.LogGap  `json:"gaps" doc:"Runs that were not kept"`
	Lossy        streams.PerStream `json:"lossy" doc:"Bytes that are no UTF-8 became U+FFFD"`
	Status       string            `json:"status" enum:"running,exited,failed"`
	ExitCode     *int32            `json:"exit_code"`
}

type processLogsOutput struct {
	Body processLogs
}

// processLogs reads a page of what is kept of a process's output. It never waits.
func (a *API) processLogs(ctx context.Context, in *processLogsInput) (*processLogsOutput, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	id, err := a.resolveProcess(ctx, node, sb.ID, in.Process)
	if err != nil {
		return nil, err
	}
	res, err := node.ReadOutput(ctx, connect.NewRequest(&nodev1.ReadOutputRequest{
		SandboxId: string(sb.ID), ProcessId: string(id), Offset: in.Offset, Limit: max(in.Limit, minPage),
	}))
	if err != nil {
		return nil, decode(err)
	}
	page := pageOfOutput(res.Msg, in.Offset, streams.Encoding(in.Encoding))
	page.ProcessID = string(id)
	a.metrics.output.Add(float64(page.NextOffset - page.Offset))
	return &processLogsOutput{Body: page}, nil
}

func pageOfOutput(m *nodev1.ReadOutputResponse, offset int64, encoding streams.Encoding) processLogs {
	p := processLogs{Offset: offset, NextOffset: m.GetNextOffset(), Size: m.GetProduced(), Status: m.GetProcess().GetStatus(), Gaps: []streams.LogGap{}}
	if e := m.GetProcess().GetExit(); e != nil {
		code := e.GetCode()
		p.ExitCode = &code
	}
	if encoding == streams.Base64 {
		var data [2][]byte
		for _, run := range m.GetRuns() {
			s := streamOf(run.GetStream())
			if run.GetGap() > 0 {
				p.Gaps = append(p.Gaps, streams.LogGap{Stream: s.String(), Offset: run.GetOffset(), Bytes: run.GetGap()})
			}
			data[s-1] = append(data[s-1], run.GetData()...)
		}
		p.StdoutBase64, p.StderrBase64 = &data[0], &data[1]
		return p
	}
	text := streams.NewPage(offset)
	for _, run := range m.GetRuns() {
		if run.GetGap() > 0 {
			text.Gap(streamOf(run.GetStream()), run.GetGap())
		} else {
			text.Data(streamOf(run.GetStream()), run.GetData())
		}
	}
	more := p.NextOffset < p.Size
	p.NextOffset = text.End(!more && p.Status != processRunning, more)
	stdout, stderr := string(text.Text[0]), string(text.Text[1])
	p.Stdout, p.Stderr, p.Lossy = &stdout, &stderr, text.Lossy
	p.Gaps = append(p.Gaps, text.Gaps...)
	return p
}

type waitProcessInput struct {
	SandboxPath
	ProcessPath
	TimeoutSeconds float64 `query:"timeout_seconds" default:"60" doc:"0 to 300, decimals allowed"`
}

const maxProcessWait = 300 * time.Second

// waitProcess answers when the process has ended, or when the time is over.
func (a *API) waitProcess(ctx context.Context, in *waitProcessInput) (*processOutput, error) {
	if s := in.TimeoutSeconds; math.IsNaN(s) || s < 0 || s > maxProcessWait.Seconds() {
		return nil, cay.Errorf(cay.InvalidRequest, "`timeout_seconds` must be from 0 to %.0f", maxProcessWait.Seconds()).On("timeout_seconds")
	}
	leave, err := a.enterStream()
	if err != nil {
		return nil, err
	}
	defer leave()
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	id, err := a.resolveProcess(ctx, node, sb.ID, in.Process)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := a.whenClosing(func() { cancel(errClosing()) })
	defer stop()
	s, err := open(waiting, node, attachTo(sb.ID, id, 0, true))
	if err != nil {
		return nil, err
	}
	defer s.end()
	if _, err := s.started(waiting); err != nil {
		return nil, err
	}
	waiting, over := context.WithTimeout(waiting, time.Duration(in.TimeoutSeconds*float64(time.Second)))
	defer over()
	m, err := s.next(waiting)
	switch {
	case err == nil && m.GetExit() == nil:
		return nil, cay.Errorf(cay.Internal, "the worker sent output before the exit")
	case err != nil && !(errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil):
		return nil, err
	}
	p, err := findProcess(ctx, node, sb.ID, string(id))
	if err != nil {
		return nil, err
	}
	return &processOutput{Body: processOf(sb, p)}, nil
}
