package api

import (
	"context"
	"net/http"

	"github.com/cayhq/cay"
)

const sessionsCollection = "/v1/sessions"

// sessionsThere answers why a request that names a session cannot be served here, or nil.
func (a *API) sessionsThere() error {
	if a.Sessions == nil {
		return cay.Errorf(cay.NotImplemented, "`session_id`: this server has no sessions").On("session_id")
	}
	return nil
}

// SessionPath is the {id} of a session's routes.
type SessionPath struct {
	ID string `path:"id" doc:"The session, ses_…"`
}

func (p SessionPath) id() (cay.ID, error) {
	id, ok := cay.ParseID(cay.PrefixSession, p.ID)
	if !ok {
		return "", cay.Errorf(cay.NotFound, "there is no session %q", clip(p.ID, 100))
	}
	return id, nil
}

type createSessionInput struct {
	Idempotent
	Payload payload[sessionRequest]
}

type sessionAnswer struct {
	Status   int
	Location string `header:"Location"`
	Body     session
}

func (a *API) createSession(ctx context.Context, in *createSessionInput) (*sessionAnswer, error) {
	return a.newSession(ctx, sessionsCollection, in)
}

// newSession makes a session, once for each idempotency key of the route.
func (a *API) newSession(ctx context.Context, route string, in *createSessionInput) (*sessionAnswer, error) {
	req, err := in.Payload.value.domain()
	if err != nil {
		return nil, err
	}
	who := exchangeOf(ctx).identity
	project := who.ProjectID
	req.KeyID = who.KeyID
	once := a.once(project, "POST "+route, in.IdempotencyKey, in.Payload.sum).making(cay.PrefixSession)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	var s *cay.Session
	if !fresh {
		if s, err = a.Sessions.Get(ctx, project, cay.ID(rec.ObjectID)); err != nil {
			return nil, err
		}
	} else {
		req.ID = cay.ID(rec.ObjectID)
		if s, err = a.Sessions.Create(ctx, project, req); err != nil {
			once.failed(ctx, err)
			return nil, err
		}
		if err := once.finish(ctx, http.StatusCreated, string(s.ID)); err != nil {
			return nil, err
		}
	}
	exchangeOf(ctx).object = s.ID
	out, err := a.describeSession(ctx, s)
	if err != nil {
		return nil, err
	}
	return &sessionAnswer{Status: http.StatusCreated, Location: sessionsCollection + "/" + string(s.ID), Body: out}, nil
}

// describeSession is a session with who uses it.
func (a *API) describeSession(ctx context.Context, s *cay.Session) (session, error) {
	var users []*cay.Sandbox
	if s.Status == cay.SessionActive || s.Status == cay.SessionRestoring { // others have none
		var err error
		if users, err = a.Sessions.Users(ctx, s.ProjectID, s.ID); err != nil {
			return session{}, err
		}
	}
	return sessionOf(s, users), nil
}

func (a *API) getSession(ctx context.Context, in *SessionPath) (*sessionAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	s, err := a.Sessions.Get(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, err
	}
	out, err := a.describeSession(ctx, s)
	if err != nil {
		return nil, err
	}
	return &sessionAnswer{Status: http.StatusOK, Body: out}, nil
}

type listSessionsInput struct {
	ListQuery
	Name   string `query:"name" doc:"Only the one of this name"`
	Status string `query:"status" doc:"Comma-joined; default: those that have not ended" example:"active,archived"`
}

type listSessionsAnswer struct {
	Body page[session]
}

func (a *API) listSessions(ctx context.Context, in *listSessionsInput) (*listSessionsAnswer, error) {
	after, err := in.check()
	if err != nil {
		return nil, err
	}
	q := cay.SessionQuery{Limit: in.Limit, Cursor: in.Cursor, Ascending: in.Order == "asc", Metadata: in.metadata, CreatedAfter: after, Name: in.Name}
	if in.Name != "" {
		if err := checkSessionName(in.Name); err != nil {
			return nil, err
		}
	}
	never := func(cay.SessionStatus) bool { return false } // active is a status of its own
	if q.Statuses, err = listed("status", in.Status, cay.SessionStatuses, never); err != nil {
		return nil, err
	}
	found, next, err := a.Sessions.List(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	items := make([]session, len(found))
	for i, s := range found {
		if items[i], err = a.describeSession(ctx, s); err != nil {
			return nil, err
		}
	}
	return &listSessionsAnswer{Body: pageOf(items, next)}, nil
}

type deleteSessionInput struct {
	SessionPath
	Force bool `query:"force" doc:"Also while sandboxes or jobs use it: they end first"`
}

type deleteSessionAnswer struct {
	Status int
	Body   *session
}

func (a *API) deleteSession(ctx context.Context, in *deleteSessionInput) (*deleteSessionAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, deleteWait)
	defer cancel()
	stop := a.whenClosing(cancel)
	defer stop()
	s, err := a.Sessions.Delete(waiting, exchangeOf(ctx).identity.ProjectID, id, in.Force)
	if err != nil {
		return nil, err
	}
	if s.Status == cay.SessionDeleted {
		return &deleteSessionAnswer{Status: http.StatusNoContent}, nil
	}
	body, err := a.describeSession(ctx, s)
	if err != nil {
		return nil, err
	}
	return &deleteSessionAnswer{Status: http.StatusAccepted, Body: &body}, nil
}
