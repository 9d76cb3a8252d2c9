package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// maxStdinBody bounds the body of one request, in bytes.
const maxStdinBody = cay.MaxStdinInline

type writeStdinInput struct {
	Idempotent
	SandboxPath
	ProcessPath
	Offset string `query:"offset" doc:"Where in the process's stdin the body begins. What the process has been given already is skipped; beyond that: 409 with stdin_offset"`
	Close  bool   `query:"close" doc:"End stdin behind the body; on a terminal, send Ctrl-D"`
}

// stdinAnswer says how far a process's stdin is.
type stdinAnswer struct {
	StdinOffset int64 `json:"stdin_offset" doc:"Bytes that the process has been given so far, by everybody"`
}

// writeStdin streams the body to a process. Nobody else's input comes in between.
func (a *API) writeStdin(w http.ResponseWriter, r *http.Request, in *writeStdinInput) error {
	offset := int64(-1)
	if in.Offset != "" {
		var err error
		if offset, err = offsetOf("offset", in.Offset); err != nil {
			return err
		}
	}
	if r.ContentLength > maxStdinBody {
		return tooLarge(maxStdinBody)
	}
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	sb, node, err := a.enter(r.Context(), in.SandboxPath)
	if err != nil {
		return err
	}
	// The body is not at hand when the key is claimed: what goes before it has to do.
	asked := fmt.Sprintf("%d %t %d", offset, in.Close, r.ContentLength)
	once := a.once(sb.ProjectID, "POST /v1/sandboxes/"+string(sb.ID)+"/processes/"+in.Process+"/stdin", in.IdempotencyKey, sha256.Sum256([]byte(asked)))
	rec, fresh, err := once.begin(r.Context())
	if err != nil {
		return err
	}
	if !fresh {
		at, err := strconv.ParseInt(rec.ObjectID, 10, 64)
		if err != nil {
			return err
		}
		return writeJSON(w, stdinAnswer{at})
	}
	id, err := a.resolveProcess(r.Context(), node, sb.ID, in.Process)
	if err != nil {
		once.failed(r.Context(), err)
		return err
	}
	ctx, release := a.attended(r)
	defer release()
	first := controlOf(sb.ID, id)
	first.GetAttach().TakeStdin = true
	s, err := open(context.WithoutCancel(r.Context()), node, first)
	if err != nil {
		once.forget(r.Context())
		return err
	}
	defer s.end()
	// Neither end may stand still for long: whoever else writes to the process waits meanwhile. A client that leaves is not noticed
	// while its body waits to be read.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stalled := time.AfterFunc(a.WriteTimeout, func() { giveUp(errStdinStalled()) })
	defer stalled.Stop()
	stop := context.AfterFunc(ctx, s.giveUp)
	defer stop()
	body := &stdinBody{r: r, control: http.NewResponseController(w), patience: a.WriteTimeout}
	at, err := s.pour(ctx, body, offset, in.Close, func() { stalled.Reset(a.WriteTimeout) })
	if err != nil {
		once.forget(r.Context())
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	if err := once.finish(r.Context(), http.StatusOK, strconv.FormatInt(at, 10)); err != nil {
		return err
	}
	return writeJSON(w, stdinAnswer{at})
}

// stdinBody is a request's body, each read of which has a time of its own.
type stdinBody struct {
	r        *http.Request
	control  *http.ResponseController
	patience time.Duration
	read     int64
}

func errStdinStalled() error {
	return cay.Errorf(cay.Conflict, "the process has taken nothing of its stdin for too long; try again with `offset`, and what it has taken is skipped")
}

// Read implements io.Reader. Its errors are those of a request.
func (b *stdinBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.patience)) // not every ResponseWriter has one
	n, err := b.r.Body.Read(p)
	if b.read += int64(n); b.read > maxStdinBody {
		return 0, tooLarge(maxStdinBody)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = cay.Errorf(cay.InvalidRequest, "the body ended early; give `offset` to go on where the process's stdin is").Because(err)
	}
	return n, err
}

// pour gives the process a body as stdin, and says where its stdin is then. offset -1: wherever it is now.
// progress is called whenever it has gone on.
func (s *nodeStream) pour(ctx context.Context, body io.Reader, offset int64, closing bool, progress func()) (int64, error) {
	st, err := s.started(ctx)
	if err != nil {
		return 0, err
	}
	progress()
	skip := int64(0)
	switch have := st.GetStdinOffset(); {
	case offset > have:
		return 0, cay.Errorf(cay.Conflict, "the process has been given %d bytes of stdin; offset %d is beyond", have, offset).On("offset").With("stdin_offset", have)
	case offset >= 0:
		skip = have - offset
	}
	var sent error
	buf := make([]byte, stdinPiece)
	for whole := false; !whole && sent == nil; {
		n, err := fill(body, buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		whole = err != nil
		fresh := buf[min(skip, int64(n)):n]
		skip -= int64(n - len(fresh))
		if len(fresh) > 0 {
			sent = s.send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: fresh}})
		}
		progress()
	}
	if sent == nil && closing {
		sent = s.closeStdin()
	}
	if sent == nil {
		sent = s.send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}})
	}
	if sent != nil && !errors.Is(sent, io.EOF) { // EOF: the answer says why
		return 0, decode(sent)
	}
	st, err = s.started(ctx)
	return st.GetStdinOffset(), err
}

type resizeRequest struct {
	Cols uint16 `json:"cols" minimum:"1"`
	Rows uint16 `json:"rows" minimum:"1"`
}

func (b *resizeRequest) validate() error {
	for field, n := range map[string]uint16{"cols": b.Cols, "rows": b.Rows} {
		if n == 0 {
			return cay.Errorf(cay.InvalidRequest, "`%s` must be from 1 to 65535", field).On(field)
		}
	}
	return nil
}

type resizeInput struct {
	Idempotent
	SandboxPath
	ProcessPath
	Payload payload[resizeRequest]
}

// resizeProcess sets the size of a process's terminal. Done twice, it is done once, so that a key needs no memory.
func (a *API) resizeProcess(ctx context.Context, in *resizeInput) (*noContent, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	id, err := a.resolveProcess(ctx, node, sb.ID, in.Process)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, node, controlOf(sb.ID, id))
	if err != nil {
		return nil, err
	}
	defer s.end()
	if _, err := s.started(ctx); err != nil {
		return nil, err
	}
	size := in.Payload.value
	for _, m := range []*nodev1.ProcessInput{
		{Input: &nodev1.ProcessInput_Resize{Resize: &nodev1.Resize{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}}},
		{Input: &nodev1.ProcessInput_Detach{Detach: true}},
	} {
		if err := s.send(m); err != nil && !errors.Is(err, io.EOF) {
			return nil, decode(err)
		}
	}
	switch m, err := s.next(ctx); {
	case errors.Is(err, io.EOF):
		return &noContent{Status: http.StatusNoContent}, nil
	case err != nil:
		return nil, err
	case m.GetExit() != nil:
		return nil, cay.Errorf(cay.Conflict, "process %s has ended", id)
	}
	return nil, cay.Errorf(cay.Internal, "the worker sent output before the exit")
}
