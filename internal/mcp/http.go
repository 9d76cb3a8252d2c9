package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ConversationHeader names the conversation of a request; the query's conversation does as well.
const (
	ConversationHeader = "Cay-Conversation"
	conversationQuery  = "conversation"
)

const (
	maxBody       = 4 << 20          // of a request
	commentEvery  = 15 * time.Second // without anything else on a stream
	writePatience = 75 * time.Second // with a client that takes nothing
)

// HTTPConfig is what a [Handler] needs besides a server's config, whose Caller it sets.
type HTTPConfig struct {
	Config

	// Caller answers on whose behalf r is made, but for the conversation; r has been let in by its key. An error is r's own fault.
	Caller func(r *http.Request) (Caller, error)
	// Refuse answers a request that cannot be served before it has become a message of the protocol.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, detail string)
}

// Handler serves the protocol over Streamable HTTP: each request for itself, without sessions, so that any server answers it, in the
// revision of 2026-07-28 and the earlier ones. It knows nothing of keys, origins and hosts: who is in front of it does.
type Handler struct {
	c      HTTPConfig
	stream http.Handler

	mu      sync.Mutex
	running map[*exchange]struct{} // guarded by mu
	closed  bool                   // guarded by mu
	done    sync.WaitGroup         // of running
}

// sessionHeader carries an id that clients of the earlier revisions are given when they begin, and send with every request since. It
// is not kept here: it only tells which of their calls a cancellation means.
const sessionHeader = "Mcp-Session-Id"

// exchange is a request while it is served.
type exchange struct {
	caller  Caller
	session string // what tells the client's connection apart, as far as that is known: the id it was given, else its address
	call    string // the id of the tool call that it is, as JSON; "" for others
	end     context.CancelCauseFunc
	out     *eventWriter
}

type exchangeKey struct{}

type lifetimeKey struct{}

// WithLifetime makes ctx the life of the calls on a connection that is made with it: they are canceled when it ends. The SDK detaches
// calls from it, so that answers could be fetched later, which here they cannot.
func WithLifetime(ctx context.Context) context.Context {
	return context.WithValue(ctx, lifetimeKey{}, ctx)
}

// withLifetime is the context of a call that ends with its connection as well.
func withLifetime(ctx context.Context) (context.Context, context.CancelFunc) {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		x.out.begin()
	}
	life, ok := ctx.Value(lifetimeKey{}).(context.Context)
	if !ok {
		return context.WithCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// NewHandler makes a handler. The caller closes it before what its clients speak to.
func NewHandler(c HTTPConfig) *Handler {
	h := &Handler{c: c, running: map[*exchange]struct{}{}}
	c.Config.Caller = func(ctx context.Context) (Caller, error) {
		x, ok := ctx.Value(exchangeKey{}).(*exchange)
		if !ok {
			return Caller{}, errors.New("the request has no caller")
		}
		return x.caller, nil
	}
	server := New(c.Config)
	h.stream = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxBody, Logger: slog.New(slog.DiscardHandler),
		DisableLocalhostProtection: true, // who is in front checks the host, with the names that were allowed
	})
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	named, err := conversationOf(r)
	if err != nil {
		h.c.Refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	caller, err := h.c.Caller(r)
	if err != nil {
		h.c.Refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	caller.Conversation = named
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			h.c.Refuse(w, r, http.StatusRequestEntityTooLarge, "the body is longer than 4 MiB")
			return
		}
		h.c.Refuse(w, r, http.StatusBadRequest, "the body cannot be read")
		return
	}
	x := &exchange{caller: caller, session: cmpOr(r.Header.Get(sessionHeader), hostOf(r.RemoteAddr))}
	life, end := context.WithCancelCause(r.Context())
	defer end(nil)
	x.end = end
	method, canceled := x.look(body)
	if method == "initialize" {
		w.Header().Set(sessionHeader, rand.Text())
	}
	leave, ok := h.enter(x)
	if !ok {
		w.Header().Set("Retry-After", "1")
		h.c.Refuse(w, r, http.StatusServiceUnavailable, errStopping.Error())
		return
	}
	defer leave()
	if canceled != "" {
		h.cancel(x, canceled)
	}
	x.out = newEventWriter(w)
	defer x.out.stop()
	// The request's own context stays as it is: an answer about the end of a call still has to go out.
	r = r.WithContext(context.WithValue(context.WithValue(r.Context(), exchangeKey{}, x), lifetimeKey{}, life))
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.stream.ServeHTTP(x.out, r)
}

// conversationOf reads a request's conversation from its header or query.
func conversationOf(r *http.Request) (string, error) {
	name := r.Header.Get(ConversationHeader)
	query := r.URL.Query()[conversationQuery]
	switch {
	case len(query) > 1 || len(r.Header.Values(ConversationHeader)) > 1:
		return "", errors.New("the conversation is named twice")
	case len(query) == 1 && name != "" && name != query[0]:
		return "", errors.New("the header Cay-Conversation and the parameter conversation name different conversations")
	case len(query) == 1:
		name = query[0]
	case name == "":
		return "", nil
	}
	if !ValidConversation(name) {
		return "", errors.New("`conversation` must be 1 to 64 letters, digits, dots, dashes and underscores")
	}
	return name, nil
}

func hostOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}

// look notes which call of a tool a message is, and answers its method and which call it cancels.
func (x *exchange) look(body []byte) (method, canceled string) {
	var message struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			RequestID json.RawMessage `json:"requestId"`
		} `json:"params"`
	}
	if json.Unmarshal(body, &message) != nil {
		return "", "" // the SDK says what is wrong with it
	}
	switch message.Method {
	case "tools/call":
		x.call = string(message.ID)
	case "notifications/cancelled":
		canceled = string(message.Params.RequestID)
	}
	return message.Method, canceled
}

// enter counts a request that Close has to wait for; leave ends it.
func (h *Handler) enter(x *exchange) (leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false
	}
	h.running[x] = struct{}{}
	h.done.Add(1)
	return func() {
		h.mu.Lock()
		delete(h.running, x)
		h.mu.Unlock()
		h.done.Done()
	}, true
}

// cancel ends the call that a notification names. Ids of calls are unique to a client only, so that it has to be of the same key,
// conversation and session, and no other call may fit.
func (h *Handler) cancel(from *exchange, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found *exchange
	for x := range h.running {
		if x.call != id || x.session != from.session || x.caller.mark() != from.caller.mark() {
			continue
		}
		if found != nil {
			return
		}
		found = x
	}
	if found != nil {
		found.end(errCanceled)
	}
}

// Close has every call answer that the server stops, refuses new ones, and returns when all have ended or ctx has. What runs in
// sandboxes runs on. Idempotent.
func (h *Handler) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	for x := range h.running {
		x.end(errStopping)
	}
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		h.done.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
