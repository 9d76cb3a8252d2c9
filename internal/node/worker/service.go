package worker

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// service translates between the wire and the Worker; it decides nothing.
type service struct {
	nodev1connect.UnimplementedNodeServiceHandler // so that a call which is added later is refused as unknown, and not a failure to build

	w *Worker
}

// answer makes what a unary handler returns.
func answer[T any](m *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return connect.NewResponse(m), nil
}

func (s service) GetInfo(context.Context, *connect.Request[nodev1.GetInfoRequest]) (*connect.Response[nodev1.Info], error) {
	c, d := s.w.cfg, s.w.cfg.Driver.Info()
	return connect.NewResponse(&nodev1.Info{
		WorkerId: string(c.WorkerID), Version: c.Version, Isolation: d.Isolation, Rootless: d.Rootless, Enforced: d.Enforced,
		Runtimes: c.Runtimes, Cpu: c.CPU, MemoryMb: c.MemoryMB, DiskGb: c.DiskGB, CanFreeze: d.CanFreeze, Adopted: s.w.adopted(),
		Boot: s.w.bootID, MaxSandboxes: int64(c.MaxSandboxes), CanMount: s.w.cannotMount() == "",
	}), nil
}

func (s service) Create(ctx context.Context, r *connect.Request[nodev1.CreateRequest]) (*connect.Response[nodev1.CreateResponse], error) {
	return answer(s.w.create(ctx, r.Msg))
}

func (s service) Destroy(ctx context.Context, r *connect.Request[nodev1.DestroyRequest]) (*connect.Response[nodev1.DestroyResponse], error) {
	u, err := s.w.destroy(ctx, r.Msg)
	return answer(&nodev1.DestroyResponse{Usage: u}, err)
}

func (s service) Freeze(ctx context.Context, r *connect.Request[nodev1.FreezeRequest]) (*connect.Response[nodev1.FreezeResponse], error) {
	return answer(&nodev1.FreezeResponse{}, s.w.freeze(ctx, r.Msg.SandboxId))
}

func (s service) Thaw(ctx context.Context, r *connect.Request[nodev1.ThawRequest]) (*connect.Response[nodev1.ThawResponse], error) {
	return answer(&nodev1.ThawResponse{}, s.w.thaw(ctx, r.Msg.SandboxId))
}

func (s service) List(context.Context, *connect.Request[nodev1.ListRequest]) (*connect.Response[nodev1.ListResponse], error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	list := &nodev1.ListResponse{}
	for _, b := range s.w.boxes {
		b.mu.Lock()
		list.Sandboxes = append(list.Sandboxes, &nodev1.SandboxState{SandboxId: string(b.id), State: string(b.state), Attempt: b.attempt})
		b.mu.Unlock()
	}
	return connect.NewResponse(list), nil
}

func (s service) Adopt(ctx context.Context, r *connect.Request[nodev1.AdoptRequest]) (*connect.Response[nodev1.AdoptResponse], error) {
	return answer(s.w.adopt(ctx, r.Msg))
}

func (s service) Watch(ctx context.Context, _ *connect.Request[nodev1.WatchRequest], stream *connect.ServerStream[nodev1.Event]) error {
	w := s.w
	watcher, ok := w.events.subscribe()
	if !ok {
		return noderpc.Encode(cay.Errorf(cay.Unavailable, "the worker is restarting"))
	}
	defer w.events.unsubscribe(watcher)
	if err := stream.Send(&nodev1.Event{Event: &nodev1.Event_Hello{Hello: &nodev1.Hello{Boot: w.bootID}}}); err != nil {
		return err
	}
	// What ended before this watch began and was not destroyed yet; it may come twice.
	w.mu.Lock()
	var ended []*box
	for _, b := range w.boxes {
		b.mu.Lock()
		if b.ended != nil && b.state == dying {
			ended = append(ended, b)
		}
		b.mu.Unlock()
	}
	w.mu.Unlock()
	for _, b := range ended {
		if err := stream.Send(b.endedEvent()); err != nil {
			return err
		}
	}
	for {
		select {
		case e, ok := <-watcher.events:
			if !ok {
				return noderpc.Encode(cay.Errorf(cay.Unavailable, "the watch ended; begin another"))
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return noderpc.Encode(ctx.Err())
		}
	}
}

func (s service) Signal(ctx context.Context, r *connect.Request[nodev1.SignalRequest]) (*connect.Response[nodev1.SignalResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err == nil {
		err = session.Signal(ctx, r.Msg.ProcessId, r.Msg.Signal, r.Msg.Tree)
	}
	return answer(&nodev1.SignalResponse{}, err)
}

// left reports whether err is only the caller's leaving.
func left(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
