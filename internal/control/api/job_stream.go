package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/control/api/streams"
)

type streamJobInput struct {
	JobPath
	SeqQuery
}

// SeqQuery is where a job's stream begins.
type SeqQuery struct {
	Seq         string `query:"seq" doc:"The seq of the last frame seen: what came after it; default: from the beginning"`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that came; goes before seq"`
}

func (q SeqQuery) position() (int64, error) {
	if q.LastEventID != "" {
		return position("Last-Event-ID", q.LastEventID)
	}
	return position("seq", q.Seq)
}

// streamJob answers a job's stream as server-sent events, or as a WebSocket where the client upgrades.
func (a *API) streamJob(w http.ResponseWriter, r *http.Request, in *streamJobInput) error {
	return a.watchJob(w, r, in.JobPath, in.SeqQuery, inSnake)
}

func (a *API) watchJob(w http.ResponseWriter, r *http.Request, job JobPath, from SeqQuery, names spelling) error {
	if err := noHead(r); err != nil {
		return err
	}
	id, err := job.id()
	if err != nil {
		return err
	}
	after, err := from.position()
	if err != nil {
		return err
	}
	upgrade := isUpgrade(r)
	if upgrade {
		if err := checkHandshake(r); err != nil {
			return err
		}
	}
	project := exchangeOf(r.Context()).identity.ProjectID
	if _, err := a.Jobs.Get(r.Context(), project, id); err != nil {
		return err
	}
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	follow := func(ctx context.Context) *follower { return a.follow(ctx, project, id, after, names) }
	if upgrade {
		return a.sendFrames(w, r, follow)
	}
	a.sendFrameEvents(w, r, follow)
	return nil
}

// sendFrameEvents sends frames as server-sent events. A stream that ends without an exit or error is broken; its client goes on from
// the last event's id.
func (a *API) sendFrameEvents(w http.ResponseWriter, r *http.Request, follow func(context.Context) *follower) {
	attended, release := a.attended(r)
	defer release()
	ctx, cancel := context.WithCancel(attended)
	f := follow(ctx)
	defer f.wait()
	defer cancel()

	beginEvents(w.Header())
	out := a.patient(w)
	defer out.reset()
	feed := streams.NewFeed(out)
	alive := time.NewTicker(a.Keepalive)
	defer alive.Stop()
	for first := true; ; first = false {
		if !first {
			select {
			case <-alive.C:
				feed.Comment()
			case next, ok := <-f.frames:
				if done := f.addEvents(feed, next, ok); done {
					if f.err != nil && ctx.Err() == nil {
						exchangeOf(r.Context()).err = f.err
						feed.Remark(string(problem.From(f.err, "").Reason))
					}
					_ = out.flush(feed) // a client that left needs no last word
					return
				}
			case <-ctx.Done():
				return
			}
		}
		if out.flush(feed) != nil { // the client is gone, or took nothing for too long
			return
		}
	}
}

// addEvents adds a frame and those that follow it at once. done: it was the end.
func (f *follower) addEvents(feed *streams.Feed, next frame, ok bool) (done bool) {
	for range frameWindow {
		if !ok || feed.Event(next.kind, next.id(), next.body) != nil { // what a write says, it says again at the flush
			return true
		}
		select {
		case next, ok = <-f.frames:
		default:
			return false
		}
	}
	return !ok || feed.Event(next.kind, next.id(), next.body) != nil
}

// flush sends what the feed holds, and the header where nothing was sent yet.
func (p *patientWriter) flush(feed *streams.Feed) error {
	if err := feed.Flush(); err != nil {
		return err
	}
	return p.control.Flush()
}

// frameSocket is a WebSocket on which frames are sent, one a message. What the client says is read and thrown away.
type frameSocket struct {
	a       *API
	r       *http.Request
	conn    *websocket.Conn
	helpers sync.WaitGroup
	pinging atomic.Bool
	written atomic.Int64 // messages sent
}

// sendFrames accepts the upgrade and sends frames until the last one.
func (a *API) sendFrames(w http.ResponseWriter, r *http.Request, follow func(context.Context) *follower) error {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the origin has been checked
	if err != nil {
		exchangeOf(r.Context()).err = err
		return nil // Accept has answered
	}
	conn.SetReadLimit(streams.MaxMessage)
	s := &frameSocket{a: a, r: r, conn: conn}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	stop := a.whenClosing(func() { cancel(errClosing()) })
	defer stop()
	f := follow(ctx)
	defer f.wait()
	defer s.helpers.Wait()
	defer conn.CloseNow()
	defer cancel(nil)
	s.helpers.Go(func() { cancel(connError{s.ignore()}) })
	s.end(s.send(ctx, cancel, f))
	return nil
}

// ignore reads the client's messages until the connection ends.
func (s *frameSocket) ignore() error {
	for {
		_, message, err := s.conn.Reader(context.Background()) // a context that ends would cut the connection without a word
		if err == nil {
			_, err = io.Copy(io.Discard, message)
		}
		if err != nil {
			return err
		}
	}
}

// send sends frames; nil: the last one is out.
func (s *frameSocket) send(ctx context.Context, cancel context.CancelCauseFunc, f *follower) error {
	alive := time.NewTicker(s.a.Keepalive)
	defer alive.Stop()
	for {
		select {
		case next, ok := <-f.frames:
			if !ok {
				if cause := context.Cause(ctx); cause != nil {
					return cause
				}
				return f.err
			}
			text, err := json.Marshal(next.body, json.Deterministic(true))
			if err != nil {
				return err
			}
			writing, over := context.WithTimeout(context.WithoutCancel(ctx), s.a.WriteTimeout)
			err = s.conn.Write(writing, websocket.MessageText, text)
			over()
			if err != nil {
				return connError{err}
			}
			s.written.Add(1)
		case <-alive.C:
			s.ping(ctx, cancel)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ping finds out, without holding up frames, whether the client is there. Silence means nothing while frames go out all the same.
func (s *frameSocket) ping(ctx context.Context, cancel context.CancelCauseFunc) {
	if !s.pinging.CompareAndSwap(false, true) {
		return
	}
	written := s.written.Load()
	s.helpers.Go(func() {
		defer s.pinging.Store(false)
		ctx, over := context.WithTimeout(ctx, s.a.WriteTimeout)
		defer over()
		if err := s.conn.Ping(ctx); err != nil && s.written.Load() == written {
			cancel(connError{err})
		}
	})
}

// end closes the connection: 1000 after the last frame, 1012 when the server goes away, 4000 and the status of what went wrong else. It
// says nothing in frames: those are the job's.
func (s *frameSocket) end(err error) {
	if err == nil {
		_ = s.conn.Close(websocket.StatusNormalClosure, "")
		return
	}
	if isConnError(err) || errors.Is(err, context.Canceled) {
		return
	}
	exchangeOf(s.r.Context()).err = err
	d := problem.From(err, "")
	code := websocket.StatusCode(closeBase + d.Status)
	select {
	case <-s.a.closing:
		code = websocket.StatusServiceRestart
	default:
		if d.Reason == cay.Internal {
			code = websocket.StatusInternalError
		}
	}
	_ = s.conn.Close(code, string(d.Reason)) // bounded by the library: 5 s to write, 5 s for the answer
}
