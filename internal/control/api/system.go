package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
)

type nothing struct{}

func (a *API) healthz(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	return writeJSON(w, map[string]string{"status": "ok"})
}

// readyWait bounds what GET /readyz waits for all checks together.
const readyWait = 2 * time.Second

func (a *API) readyz(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	ctx, cancel := context.WithTimeout(r.Context(), readyWait)
	defer cancel()
	checks := map[string]func(context.Context) error{"nodes": a.Nodes.Ready}
	maps.Copy(checks, a.Checks)
	faults := map[string]string{}
	select {
	case <-a.closing:
		faults["server"] = "the server is shutting down"
	default:
	}
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](ctx); err != nil {
			faults[name] = publicText(err)
		}
	}
	if len(faults) > 0 {
		names := slices.Sorted(maps.Keys(faults))
		return cay.Errorf(cay.Unavailable, "not ready: %s: %s", names[0], faults[names[0]]).After(time.Second).With("not_ready", faults)
	}
	return writeJSON(w, map[string]string{"status": "ready"})
}

// publicText is what may be said of an error to somebody without a key.
func publicText(err error) string {
	var e *cay.Error
	if errors.As(err, &e) && e.Reason != cay.Internal {
		return e.Detail
	}
	return "it does not answer as it should"
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
	return nil
}

func (a *API) showOpenAPI(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(a.openapi)
	return nil
}

func (a *API) showDocs(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	_, _ = w.Write(a.docs)
	return nil
}

// info is what the server says of itself.
type info struct {
	Version   string        `json:"version"`
	Isolation string        `json:"isolation"`
	Enforced  []string      `json:"enforced" doc:"Of cpu, memory_mb, disk_gb and pids, the limits that every worker keeps for real"`
	Features  []string      `json:"features"`
	Limits    cay.Limits    `json:"limits"`
	Runtimes  []cay.Runtime `json:"runtimes"`
}

type infoOutput struct {
	Body info
}

// features names the parts of the contract that this version has.
var features = []string{"sandboxes", "exec", "exec.sse", "exec.websocket", "terminal", "processes", "files", "tickets", "idempotency"}

// features names what this server has.
func (a *API) features() []string {
	all := slices.Clone(features)
	if a.Jobs != nil {
		all = append(all, "jobs")
	}
	if a.Sessions != nil && a.Sessions.Available() {
		all = append(all, "sessions")
	}
	return all
}

func (a *API) getInfo(ctx context.Context, _ *nothing) (*infoOutput, error) {
	runtimes, err := a.Sandboxes.Runtimes(ctx)
	if err != nil {
		return nil, err
	}
	return &infoOutput{Body: info{Version: a.Version, Isolation: a.Isolation, Enforced: a.Sandboxes.Enforced(), Features: a.features(), Limits: a.Sandboxes.Limits(), Runtimes: runtimes}}, nil
}

type runtimesOutput struct {
	Body page[cay.Runtime]
}

func (a *API) listRuntimes(ctx context.Context, _ *nothing) (*runtimesOutput, error) {
	runtimes, err := a.Sandboxes.Runtimes(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimesOutput{Body: pageOf(runtimes, "")}, nil
}
