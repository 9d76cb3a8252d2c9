package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

// call is one call of a tool while it runs.
type call struct {
	*server
	*client.Client
	caller  Caller
	request *sdk.CallToolRequest
}

// answer is what a tool answers: Out is its structured content, text what people and models without structured content read.
type answer[Out any] struct {
	out  Out
	text string
	more []sdk.Content // images, links, embedded files
}

// hints are a tool's annotations.
type hints struct {
	title       string
	readOnly    bool
	destructive bool
	idempotent  bool
	openWorld   bool
}

func (h hints) annotations() *sdk.ToolAnnotations {
	return &sdk.ToolAnnotations{
		Title: h.title, ReadOnlyHint: h.readOnly, DestructiveHint: &h.destructive, IdempotentHint: h.idempotent, OpenWorldHint: &h.openWorld,
	}
}

// add registers a tool. Its schemas are those of In and Out; limits adds to properties of In, by name, what their type cannot say.
func add[In, Out any](
	s *server, to *sdk.Server, name, description string, h hints, limits limits, handle func(context.Context, *call, In) (answer[Out], error),
) {
	in, resolved, err := inputSchema[In](limits)
	if err != nil {
		panic(fmt.Sprintf("mcp: input of %s: %v", name, err))
	}
	out, err := schemaOf[Out]()
	if err != nil {
		panic(fmt.Sprintf("mcp: output of %s: %v", name, err))
	}
	tool := &sdk.Tool{Name: name, Title: h.title, Description: description, Annotations: h.annotations(), InputSchema: in, OutputSchema: out}
	to.AddTool(tool, func(ctx context.Context, request *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return s.serve(ctx, request, func(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
			args, err := arguments[In](request.Params.Arguments, resolved)
			if err != nil {
				return nil, err
			}
			a, err := handle(ctx, c, args)
			if err != nil {
				return nil, err
			}
			structured, err := json.Marshal(a.out)
			if err != nil {
				return nil, fmt.Errorf("encode the result: %w", err)
			}
			content := append([]sdk.Content{&sdk.TextContent{Text: a.text}}, a.more...)
			return &sdk.CallToolResult{Content: content, StructuredContent: json.RawMessage(structured)}, nil
		})
	})
}

// arguments decodes what a client sent once it fits the schema, which refuses unknown names.
func arguments[In any](data json.RawMessage, schema *jsonschema.Resolved) (In, error) {
	var in In
	values := map[string]any{}
	if len(data) > 0 && string(data) != "null" {
		if err := json.Unmarshal(data, &values); err != nil {
			return in, badArguments(err)
		}
	}
	if err := schema.ApplyDefaults(&values); err != nil {
		return in, badArguments(err)
	}
	if err := schema.Validate(values); err != nil {
		return in, badArguments(err)
	}
	whole, err := json.Marshal(values)
	if err != nil {
		return in, badArguments(err)
	}
	if err := json.Unmarshal(whole, &in); err != nil {
		return in, badArguments(err)
	}
	return in, nil
}

// serve runs one call: on whose behalf, within bounds, until it is done or the request's life is over, and never with a panic.
func (s *server) serve(
	ctx context.Context, request *sdk.CallToolRequest, work func(context.Context, *call) (*sdk.CallToolResult, error),
) (res *sdk.CallToolResult, err error) {
	tool, result := request.Params.Name, "ok"
	defer func() {
		if p := recover(); p != nil {
			s.Logger.Error("a tool panicked", "tool", tool, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			result, err = "panic", nil
			res = failure(&fault{reason: "internal", detail: "the tool failed inside", advice: "Try again; if it happens again, report it."})
		}
		if s.Observe != nil {
			s.Observe(tool, result)
		}
	}()
	ctx, cancel := withLifetime(ctx)
	defer cancel()
	res, err = s.try(ctx, request, work)
	switch {
	case err == nil:
		return res, nil
	case errors.Is(context.Cause(ctx), errStopping):
		result, err = "error", stoppingFault(err)
	case ctx.Err() != nil:
		result, err = "canceled", &fault{reason: "canceled", detail: "the call was canceled"}
	default:
		result = "error"
	}
	return failure(s.explained(err)), nil
}

func (s *server) try(
	ctx context.Context, request *sdk.CallToolRequest, work func(context.Context, *call) (*sdk.CallToolResult, error),
) (*sdk.CallToolResult, error) {
	caller, err := s.Caller(ctx)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter(caller.Scope)
	if err != nil {
		return nil, err
	}
	defer leave()
	return work(ctx, &call{server: s, Client: caller.Client, caller: caller, request: request})
}

// join puts lines together that are not empty.
func join(lines ...string) string {
	var kept []string
	for _, l := range lines {
		if l != "" {
			kept = append(kept, l)
		}
	}
	return strings.Join(kept, "\n")
}
