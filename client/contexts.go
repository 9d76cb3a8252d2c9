package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Contexts are the interpreters of one sandbox that keep their state from one run of code to the next.
type Contexts struct {
	c       *Client
	sandbox string
}

// Contexts are those of a sandbox.
func (c *Client) Contexts(sandbox string) *Contexts { return &Contexts{c: c, sandbox: sandbox} }

// CodeContext is an interpreter that keeps its state. Give its ID to [CodeRequest].
type CodeContext struct {
	ID             string    `json:"id"`
	Language       string    `json:"language"`
	Cwd            string    `json:"cwd"`
	User           string    `json:"user"`
	Status         string    `json:"status"` // idle, busy
	ExecutionCount int       `json:"execution_count"`
	CreatedAt      time.Time `json:"created_at"`
	LastUsedAt     time.Time `json:"last_used_at"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (x *CodeContext) UnmarshalJSON(data []byte) error {
	type plain CodeContext
	return keeping(data, (*plain)(x), &x.Raw)
}

// MarshalJSON writes the object as it came.
func (x CodeContext) MarshalJSON() ([]byte, error) {
	type plain CodeContext
	return orRaw(x.Raw, plain(x))
}

// ContextRequest asks for a context; what is left zero is the server's choice.
type ContextRequest struct {
	Language string            `json:"language,omitempty"` // "": python
	Cwd      string            `json:"cwd,omitempty"`      // "": the sandbox's workdir
	User     string            `json:"user,omitempty"`     // "": the sandbox's user
	Env      map[string]string `json:"env,omitempty"`

	// IdempotencyKey makes a repeated request find the first one's context; one is made where it is empty.
	IdempotencyKey string `json:"-"`
}

// Create starts an interpreter.
func (x *Contexts) Create(ctx context.Context, r ContextRequest) (*CodeContext, error) {
	call, err := keyedPost(x.path(), r, r.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return x.one(ctx, call, "create a context in "+x.sandbox)
}

// List answers the contexts that are open.
func (x *Contexts) List(ctx context.Context) ([]CodeContext, error) {
	return collect[CodeContext](ctx, x.c, x.path(), nil, "list contexts of "+x.sandbox)
}

// Get answers one context.
func (x *Contexts) Get(ctx context.Context, id string) (*CodeContext, error) {
	return x.one(ctx, &call{method: http.MethodGet, path: x.path(id)}, "get context "+id)
}

// Close ends a context with its interpreter.
func (x *Contexts) Close(ctx context.Context, id string) error {
	if _, err := x.c.json(ctx, &call{method: http.MethodDelete, path: x.path(id)}, nil); err != nil {
		return fmt.Errorf("close context %s: %w", id, err)
	}
	return nil
}

// Interrupt stops the code that runs in a context, as Ctrl-C does; its variables stay. It does nothing to an idle one.
func (x *Contexts) Interrupt(ctx context.Context, id string) (*CodeContext, error) {
	return x.act(ctx, id, "interrupt")
}

// Restart gives a context a new interpreter, without the old one's variables.
func (x *Contexts) Restart(ctx context.Context, id string) (*CodeContext, error) {
	return x.act(ctx, id, "restart")
}

func (x *Contexts) act(ctx context.Context, id, action string) (*CodeContext, error) {
	call, err := keyedPost(x.path(id, action), nil, "")
	if err != nil {
		return nil, err
	}
	return x.one(ctx, call, action+" context "+id)
}

func (x *Contexts) path(more ...string) []string {
	return sandboxPath(x.sandbox, append([]string{"contexts"}, more...)...)
}

func (x *Contexts) one(ctx context.Context, r *call, attempted string) (*CodeContext, error) {
	out := new(CodeContext)
	if _, err := x.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("%s: %w", attempted, err)
	}
	return out, nil
}
