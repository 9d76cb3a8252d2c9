package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
)

// Idempotent is the header of any POST that may be repeated.
type Idempotent struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"Makes a repeated request answer as the first; good for 24 h"`
}

// once runs one request once for each idempotency key. Without a key it does nothing.
type once struct {
	store       Idempotency
	project     cay.ID
	route, key  string
	fingerprint [32]byte
	object      string // the id of what a fresh request is to make; "": it is not chosen beforehand
}

func (a *API) once(project cay.ID, route, key string, fingerprint [32]byte) once {
	return once{a.Idempotency, project, route, key, fingerprint, ""}
}

// making is once for a request that makes an object of a kind, of the id in the record that begin answers: so that one which is repeated
// because the server died in the middle of it finds what it had made.
func (o once) making(prefix string) once {
	if o.key != "" {
		o.object = string(cay.NewID(prefix))
	}
	return o
}

const (
	joinPoll = 50 * time.Millisecond
	joinWait = 75 * time.Second // longer than what is waited for without being asked
)

// begin claims the key. Not fresh: the answer that was stored, for which it waits while the first request runs; a refusal that was
// stored is the error.
func (o once) begin(ctx context.Context) (rec cay.IdempotencyRecord, fresh bool, err error) {
	if o.key == "" {
		return cay.IdempotencyRecord{}, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		rec, fresh, err = o.store.Begin(ctx, o.project, o.route, o.key, o.fingerprint, o.object)
		if err != nil || fresh {
			return rec, fresh, err
		}
		if rec.Done {
			return rec, false, storedRefusal(rec.ObjectID)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return rec, false, cay.Errorf(cay.Conflict, "the first request with this Idempotency-Key is still running").After(time.Second).Because(ctx.Err())
		}
	}
}

// settling bounds the write that settles a key. It goes on when the caller has gone away.
const settling = 10 * time.Second

func (o once) finish(ctx context.Context, status int, object string) error {
	if o.key == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settling)
	defer cancel()
	return o.store.Finish(ctx, o.project, o.route, o.key, status, object)
}

// forget makes the key fresh again.
func (o once) forget(ctx context.Context) {
	if o.key == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settling)
	defer cancel()
	if err := o.store.Abandon(ctx, o.project, o.route, o.key); err != nil {
		x := exchangeOf(ctx)
		x.err = errors.Join(x.err, err)
	}
}

// refusalMark begins the stored object of a request that was refused.
const refusalMark = "refused:"

type refusal struct {
	Reason cay.ErrorReason `json:"reason"`
	Detail string          `json:"detail"`
	Field  string          `json:"field,omitzero"`
	Extra  map[string]any  `json:"extra,omitzero"`
}

// failed stores a refusal. Faults of the server, and what asks to be tried again, are not stored.
func (o once) failed(ctx context.Context, err error) {
	if o.key == "" {
		return
	}
	d := problem.From(err, "")
	var e *cay.Error
	if d.Status >= 500 || d.RetryAfter() > 0 || !errors.As(err, &e) || ctx.Err() != nil {
		o.forget(ctx)
		return
	}
	body, marshalErr := json.Marshal(refusal{e.Reason, e.Detail, e.Field, e.Extra})
	if marshalErr != nil {
		o.forget(ctx)
		return
	}
	if err := o.finish(ctx, d.Status, refusalMark+string(body)); err != nil {
		x := exchangeOf(ctx)
		x.err = errors.Join(x.err, err)
	}
}

func storedRefusal(object string) error {
	body, ok := strings.CutPrefix(object, refusalMark)
	if !ok {
		return nil
	}
	var r refusal
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		return err
	}
	return &cay.Error{Reason: r.Reason, Detail: r.Detail, Field: r.Field, Extra: r.Extra}
}
