package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

// Contenders of the code groups.
const (
	codeInContext = "Cay, code in a context"
	codeAlone     = "Cay, code without a context"
	firstCode     = "Cay, first code in a new sandbox"
	firstExec     = "Cay, first exec of python3 -c in a new sandbox"
)

// printOne is the program, in the language of the API and as the machine's own interpreter is told it.
const printOne = "print(1)"

// runCode runs the program, which has to print 1. context "": without one.
func (s *server) runCode(ctx context.Context, id, contextID string) error {
	body := testkit.Fields{"code": printOne, "language": "python"}
	if contextID != "" {
		body["context_id"] = contextID
	}
	var result struct {
		OK     bool
		Stdout string
		Stderr string
	}
	resp, err := s.Do(ctx, "POST", "/v1/sandboxes/"+id+"/code", body)
	if err == nil {
		err = resp.Decode(200, &result)
	}
	if err == nil && (!result.OK || result.Stdout != "1\n") {
		err = fmt.Errorf("it printed %q, stderr %q", result.Stdout, result.Stderr)
	}
	if err != nil {
		return fmt.Errorf("run code: %w", err)
	}
	return nil
}

// newContext makes one of Python and uses it once, so that it is warm.
func (s *server) newContext(ctx context.Context, id string) (string, error) {
	var made struct{ ID string }
	resp, err := s.Do(ctx, "POST", "/v1/sandboxes/"+id+"/contexts", testkit.Fields{"language": "python"})
	if err == nil {
		err = resp.Decode(201, &made)
	}
	if err != nil {
		return "", fmt.Errorf("make a context: %w", err)
	}
	return made.ID, s.runCode(ctx, id, made.ID)
}

// code measures print(1) in a sandbox that is up, beside the machine's own interpreter, which starts anew each time.
func (b *bench) code(ctx context.Context, budget time.Duration) harness.Group {
	group := harness.Group{Name: "code", Title: "Code print(1) in a sandbox that is up", Unit: "ms", Base: peer.NativeName}
	contextID, err := b.cold.newContext(ctx, b.box)
	if err != nil {
		group.Series = []harness.Series{harness.Absent(codeInContext, err.Error())}
		return group
	}
	group.Series = harness.Interleave(ctx, b.plan(60, budget), []harness.Contender{
		{Name: codeInContext, Sample: func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error { return b.cold.runCode(ctx, b.box, contextID) })
		}},
		{Name: codeAlone, Sample: func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error { return b.cold.runCode(ctx, b.box, "") })
		}},
		{Name: peer.NativeName, Sample: func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error {
				var n counter
				return peer.Native{}.Exec(ctx, &n, pythonPath, "-c", printOne)
			})
		}},
	})
	if resp, err := b.cold.Do(ctx, "DELETE", "/v1/sandboxes/"+b.box+"/contexts/"+contextID, nil); err != nil || resp.Status != 204 {
		group.Notes = append(group.Notes, fmt.Sprintf("the context was not deleted: %v %v", resp, err))
	}
	return group
}

// firstCodes measures the first use of sandboxes that have just become READY: of code, and of an exec of the interpreter.
func (b *bench) firstCodes(ctx context.Context, budget time.Duration) harness.Group {
	var id string
	fresh := func(use func(context.Context) error) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			made, err := b.cold.create(ctx)
			if err != nil {
				return 0, err
			}
			id = made.ID
			return harness.Millis(func() error { return use(ctx) })
		}
	}
	after := func(ctx context.Context) error {
		if err := b.cold.DeleteSandbox(ctx, id); err != nil {
			return err
		}
		return b.cold.rest(ctx)
	}
	group := harness.Group{Name: "code-first", Title: "The first code of a new sandbox, print(1)", Unit: "ms", Base: firstExec}
	group.Series = harness.Interleave(ctx, b.plan(12, budget), []harness.Contender{
		{Name: firstCode, After: after, Sample: fresh(func(ctx context.Context) error { return b.cold.runCode(ctx, id, "") })},
		{Name: firstExec, After: after, Sample: fresh(func(ctx context.Context) error {
			return b.cold.exec(ctx, id, "1\n", pythonPath, "-c", printOne)
		})},
	})
	return group
}
