package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// look lets a call see a sandbox that lives without using it: it is no activity, and one that is paused stays so.
func (a *API) look(ctx context.Context, p SandboxPath) (*cay.Sandbox, nodev1connect.NodeServiceClient, error) {
	id, err := p.id()
	if err != nil {
		return nil, nil, err
	}
	sb, err := a.Sandboxes.Get(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, nil, err
	}
	if sb.Status != cay.Paused {
		if err := sb.Usable(); err != nil {
			return nil, nil, err
		}
	}
	node, err := a.Nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return nil, nil, err
	}
	return sb, node, nil
}

// sample is what a sandbox used at a time.
type sample struct {
	At           moment  `json:"at"`
	CPUCores     float64 `json:"cpu_cores" doc:"Used, on average since the sample before"`
	CPUSeconds   float64 `json:"cpu_seconds" doc:"Used since the start"`
	MemoryMB     int64   `json:"memory_mb"`
	PeakMemoryMB int64   `json:"peak_memory_mb" doc:"At most so far"`
	DiskMB       int64   `json:"disk_mb"`
	PIDs         int64   `json:"pids"`
	NetworkRx    int64   `json:"network_rx_bytes"`
	NetworkTx    int64   `json:"network_tx_bytes"`
}

type sampleList struct {
	Items           []sample `json:"items"`
	IntervalSeconds float64  `json:"interval_seconds" doc:"Between samples as they are taken; those of a long span are further apart"`
}

type getMetricsInput struct {
	SandboxPath
	From  string `query:"from" doc:"RFC 3339; default: an hour before to" example:"2026-01-02T15:04:05Z"`
	To    string `query:"to" doc:"RFC 3339; default: now" example:"2026-01-02T16:04:05Z"`
	Limit int    `query:"limit" default:"720" minimum:"1" maximum:"5000" doc:"Of more samples, neighbours are thinned out"`
}

type getMetricsOutput struct {
	Body sampleList
}

// defaultSpan of time is shown when nothing is said.
const defaultSpan = time.Hour

func (a *API) getMetrics(ctx context.Context, in *getMetricsInput) (*getMetricsOutput, error) {
	to, err := timeOf("to", in.To, time.Now())
	if err != nil {
		return nil, err
	}
	from, err := timeOf("from", in.From, to.Add(-defaultSpan))
	if err != nil {
		return nil, err
	}
	if from.After(to) {
		return nil, cay.Errorf(cay.InvalidRequest, "`from` must not be after `to`").On("from")
	}
	sb, node, err := a.look(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	res, err := node.GetMetrics(ctx, connect.NewRequest(&nodev1.GetMetricsRequest{
		SandboxId: string(sb.ID), FromUnixMs: from.UnixMilli(), ToUnixMs: to.UnixMilli(), Limit: int64(in.Limit),
	}))
	if err != nil {
		return nil, decode(err)
	}
	list := sampleList{Items: make([]sample, len(res.Msg.GetSamples())), IntervalSeconds: float64(res.Msg.GetIntervalMs()) / 1000}
	for i, s := range res.Msg.GetSamples() {
		list.Items[i] = sample{
			At: unixMilli(s.GetAtUnixMs()), CPUCores: s.GetCpuCores(), CPUSeconds: s.GetCpuSeconds(), MemoryMB: s.GetMemoryMb(), PeakMemoryMB: s.GetPeakMemoryMb(),
			DiskMB: s.GetDiskMb(), PIDs: s.GetPids(), NetworkRx: s.GetNetworkRxBytes(), NetworkTx: s.GetNetworkTxBytes(),
		}
	}
	return &getMetricsOutput{Body: list}, nil
}

func timeOf(field, s string, otherwise time.Time) (time.Time, error) {
	if s == "" {
		return otherwise, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, cay.Errorf(cay.InvalidRequest, "`%s` must be a time such as 2026-01-02T15:04:05Z", field).On(field)
	}
	return t, nil
}

// logEntry is one thing that was said about a sandbox.
type logEntry struct {
	ID      string `json:"id" doc:"Digits; grows with every entry"`
	At      moment `json:"at"`
	Source  string `json:"source" doc:"boot, agent, packages; further ones may come"`
	Level   string `json:"level" enum:"debug,info,warn,error"`
	Message string `json:"message"`
}

func logEntryOf(e *nodev1.LogEntry) logEntry {
	return logEntry{
		ID: strconv.FormatInt(e.GetSeq(), 10), At: unixMilli(e.GetAtUnixMs()), Source: e.GetSource(), Level: e.GetLevel(), Message: e.GetMessage(),
	}
}

type logsInput struct {
	SandboxPath
	FeedQuery
}

func (a *API) readLogs(w http.ResponseWriter, r *http.Request, in *logsInput) error {
	after, err := in.position()
	if err != nil {
		return err
	}
	live, follow := in.streamed(r)
	if live {
		if err := noHead(r); err != nil {
			return err
		}
	}
	sb, node, err := a.look(r.Context(), in.SandboxPath)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	log := nodeLog{open: func() (*connect.ServerStreamForClient[nodev1.LogEntry], error) {
		return node.ReadLogs(ctx, connect.NewRequest(&nodev1.ReadLogsRequest{SandboxId: string(sb.ID), After: after, Follow: follow}))
	}}
	defer func() {
		cancel() // first: closing a stream that is alive would wait for its end
		log.close()
	}()
	if live {
		return a.sendFeed(w, r, feedBatch{}, func(reading context.Context) feedBatch {
			stop := context.AfterFunc(reading, cancel)
			defer stop()
			e, err := log.next()
			if e == nil {
				return feedBatch{end: true, err: err}
			}
			return feedBatch{events: []feedEvent{{"log", e.ID, e}}}
		})
	}
	list := page[logEntry]{Items: []logEntry{}}
	for {
		e, err := log.next()
		if err != nil {
			return err
		}
		if e == nil {
			return writeJSON(w, list)
		}
		if len(list.Items) == in.Limit {
			list.NextCursor = &list.Items[in.Limit-1].ID
			return writeJSON(w, list)
		}
		list.Items = append(list.Items, *e)
	}
}

// nodeLog reads a node's log, which it opens at the first next: the node says nothing, not even that it has begun, before there is an
// entry.
type nodeLog struct {
	open    func() (*connect.ServerStreamForClient[nodev1.LogEntry], error)
	entries *connect.ServerStreamForClient[nodev1.LogEntry]
}

// next is the next entry; nil at the end, or when nobody waits any more.
func (l *nodeLog) next() (*logEntry, error) {
	if l.entries == nil {
		var err error
		if l.entries, err = l.open(); err != nil {
			return nil, ended(err)
		}
	}
	if !l.entries.Receive() {
		return nil, ended(l.entries.Err())
	}
	e := logEntryOf(l.entries.Msg())
	return &e, nil
}

func (l *nodeLog) close() {
	if l.entries != nil {
		_ = l.entries.Close()
	}
}

// ended is why a node's stream ended before it was whole, or nil.
func ended(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return decode(err)
}
