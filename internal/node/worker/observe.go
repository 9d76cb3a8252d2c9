package worker

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/journal"
	"github.com/cayhq/cay/internal/node/samples"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	samplesKept = 24 * 60 * 60 / 5 // a day of them, at one each 5 s: 1.3 MB
	maxSamples  = 5000             // in one answer
	journalSize = 1 << 20
	journalPage = 64 // entries that are read at once
)

// note adds to a sandbox's journal, which its owner can read: neither secrets nor anything of the host belongs in a message.
func (w *Worker) note(p *prepared, source, level, message string) {
	if p == nil {
		return
	}
	if err := p.journal.Add(source, level, message); err != nil && !p.unnoted.Swap(true) { // once: a full disk of the host meets every entry
		w.log.Warn("a sandbox's journal could not be kept", "handle", string(p.handle), "error", err)
	}
}

// milliseconds since a moment, for people.
func milliseconds(since time.Time) string {
	return fmt.Sprintf("%d ms", time.Since(since).Milliseconds())
}

// record keeps the last measurement of a sandbox when one is due.
func (w *Worker) record(b *box) {
	p := b.speaker()
	if p == nil {
		return
	}
	b.usage.mu.Lock()
	u := &b.usage
	due := u.at.Sub(u.kept) >= w.timing.Record-w.timing.Sample/2 // measurements come when they come
	if due {
		u.kept = u.at
	}
	s := samples.Sample{At: u.at, CPU: u.last.CPU, Memory: u.last.MemoryBytes, Peak: u.peak, Disk: u.last.DiskBytes, PIDs: u.last.HostPids}
	u.mu.Unlock()
	if !due {
		return
	}
	if err := p.samples.Append(s); err != nil && !p.unsampled.Swap(true) {
		w.log.Warn("a sandbox's samples could not be kept", "sandbox", b.id, "error", err)
	}
}

// diskBytes is the size of the sandbox's disk.
func (b *box) diskBytes() int64 { return int64(b.shape.DiskGB * (1 << 30)) }

// full reports whether a disk has no room left, so to speak: from 99 % on, until there is a tenth again.
func (u *usage) full(size int64, was bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if was {
		return u.last.DiskBytes > size/10*9
	}
	return size > 0 && u.last.DiskBytes >= size-size/100
}

func (s service) GetMetrics(ctx context.Context, r *connect.Request[nodev1.GetMetricsRequest]) (*connect.Response[nodev1.GetMetricsResponse], error) {
	return answer(s.w.metrics(ctx, r.Msg))
}

func (w *Worker) metrics(ctx context.Context, req *nodev1.GetMetricsRequest) (*nodev1.GetMetricsResponse, error) {
	p, err := w.kept(req.SandboxId)
	if err != nil {
		return nil, err
	}
	if req.Limit < 1 || req.Limit > maxSamples {
		return nil, cay.Errorf(cay.InvalidRequest, "limit is between 1 and %d", maxSamples).On("limit")
	}
	found, err := p.samples.Read(time.UnixMilli(req.FromUnixMs), time.UnixMilli(req.ToUnixMs), int(req.Limit))
	if err != nil {
		return nil, &cay.Error{Reason: cay.Internal, Detail: "the sandbox's samples cannot be read", Cause: err}
	}
	out := &nodev1.GetMetricsResponse{IntervalMs: w.timing.Record.Milliseconds(), Samples: make([]*nodev1.Sample, len(found))}
	if b, err := w.find(req.SandboxId); err == nil {
		w.sample(ctx, b)
		out.Usage = b.usage.message()
	}
	for i, s := range found {
		out.Samples[i] = &nodev1.Sample{
			AtUnixMs: s.At.UnixMilli(), CpuCores: s.Cores, CpuSeconds: s.CPU.Seconds(), MemoryMb: s.Memory >> 20, PeakMemoryMb: s.Peak >> 20,
			DiskMb: s.Disk >> 20, Pids: s.PIDs, NetworkRxBytes: s.Rx, NetworkTxBytes: s.Tx,
		}
	}
	return out, nil
}

// kept finds what is kept of a sandbox: also of one that is frozen, or that ended and is not destroyed yet.
func (w *Worker) kept(id string) (*prepared, error) {
	b, err := w.find(id)
	if err != nil {
		return nil, err
	}
	if p := b.speaker(); p != nil {
		return p, nil
	}
	return nil, cay.Errorf(cay.NotReady, "the sandbox is still booting").After(time.Second)
}

func (s service) ReadLogs(ctx context.Context, r *connect.Request[nodev1.ReadLogsRequest], stream *connect.ServerStream[nodev1.LogEntry]) error {
	p, err := s.w.kept(r.Msg.SandboxId)
	if err != nil {
		return noderpc.Encode(err)
	}
	at := journal.Position{Seq: r.Msg.After}
	for {
		entries, next, grown, err := p.journal.Read(at, journalPage)
		if err != nil {
			return noderpc.Encode(&cay.Error{Reason: cay.Internal, Detail: "the sandbox's log cannot be read", Cause: err})
		}
		at = next
		for _, e := range entries {
			if err := stream.Send(&nodev1.LogEntry{Seq: e.Seq, AtUnixMs: e.At.UnixMilli(), Source: e.Source, Level: e.Level, Message: e.Message}); err != nil {
				return err
			}
		}
		switch {
		case len(entries) == journalPage:
			continue
		case p.journal.Closed():
			return noderpc.Encode(s.w.restarting())
		case !r.Msg.Follow:
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return noderpc.Encode(ctx.Err())
		}
	}
}

// restarting is why what a sandbox is followed by ends although the sandbox may go on, or nil.
func (w *Worker) restarting() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
	}
	return nil
}
