package api

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestACreateAnswersTheWholeObject(t *testing.T) {
	r := newRig(t)
	a := r.status(r.do("POST", "/v1/sandboxes", `{"cpu":1.5,"ttl_seconds":0.5,"idle_timeout_seconds":null,"network":[],"env":{"A":"ü=1"},"metadata":{"k":"v"},"gpu":0,"secrets":[],"volumes":[]}`), 201)
	id := a.member(t, "id").(string)
	if a.Header.Get("Location") != "/v1/sandboxes/"+id || a.member(t, "sandbox_id") != id {
		t.Errorf("got %v %s", a.Header, a.body)
	}
	for _, field := range strings.Fields("status status_reason image cpu memory_mb disk_gb pids ttl_seconds idle_timeout_seconds on_timeout paused_ttl_seconds auto_resume network env metadata user workdir worker_id runtime_id created_at ready_at expires_at last_active_at ended_at create_ms usage") {
		if !strings.Contains(string(a.body), `"`+field+`":`) {
			t.Errorf("%s is missing", field)
		}
	}
	if got := a.member(t, "created_at").(string); len(got) != len("2026-01-02T15:04:05.000Z") || !strings.HasSuffix(got, "Z") {
		t.Errorf("created_at is %s", got)
	}
}

func TestWhatIsNotThereYetSaysSo(t *testing.T) {
	r := newRig(t)
	for body, field := range map[string]string{
		`{"network":["api.example.com:443"]}`: "network", `{"network":{"allow":["*"],"deny":[]}}`: "network", `{"gpu":1}`: "gpu",
		`{"snapshot":"snp_1"}`: "snapshot", `{"volumes":[{"name":"a"}]}`: "volumes",
	} {
		a := r.refused(r.do("POST", "/v1/sandboxes", body), cay.NotImplemented)
		if a.member(t, "field") != field {
			t.Errorf("%s: got %s", body, a.body)
		}
	}
	r.status(r.do("POST", "/v1/sandboxes", `{"network":{"allow":[],"deny":[]}}`), 201)
	a := r.refused(r.do("POST", "/v1/sandboxes", `{"network":"*"}`), cay.InvalidRequest)
	if a.member(t, "field") != "network" {
		t.Errorf("got %s", a.body)
	}
	id := string(r.boxes.add(projectA, cay.Ready))
	r.status(r.do("PUT", "/v1/sandboxes/"+id+"/network", `[]`), 200)
	r.status(r.do("GET", "/v1/sandboxes/"+id+"/network", ``), 200)
	r.refused(r.do("PUT", "/v1/sandboxes/"+id+"/network", `["*"]`), cay.NotImplemented)
}

func TestACreateThatTakesLongerAnswers202(t *testing.T) {
	r := newRig(t)
	r.boxes.status = cay.Creating
	for _, query := range []string{"?wait_seconds=0", "?wait=false", "?wait_seconds=0.05"} {
		a := r.status(r.do("POST", "/v1/sandboxes"+query, `{}`), 202)
		if a.member(t, "status") != "CREATING" || a.Header.Get("Location") == "" {
			t.Errorf("got %s", a.body)
		}
	}
}

// creating starts a create in the background and returns the id of its row.
func creating(r *rig) (cay.ID, <-chan answer) {
	r.boxes.status = cay.Creating
	answers := make(chan answer, 1)
	go func() { answers <- r.do("POST", "/v1/sandboxes", `{}`) }()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		r.boxes.mu.Lock()
		for id := range r.boxes.rows {
			r.boxes.mu.Unlock()
			return id, answers
		}
		r.boxes.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	r.Fatal("no row was written")
	return "", nil
}

func TestACreateWaitsForReady(t *testing.T) {
	r := newRig(t)
	id, answers := creating(r)
	r.boxes.change(id, func(sb *cay.Sandbox) { sb.Status = cay.Ready })
	r.status(<-answers, 201)
}

func TestASandboxThatFailsWhileAwaitedIsAProblem(t *testing.T) {
	r := newRig(t)
	id, answers := creating(r)
	r.boxes.change(id, func(sb *cay.Sandbox) {
		sb.Status, sb.StatusReason, sb.Detail = cay.Failed, cay.ReasonNoCapacity, "no worker had room"
	})
	a := r.refused(<-answers, cay.NoCapacity)
	if a.member(t, "sandbox_id") != string(id) || a.Header.Get("Retry-After") == "" {
		t.Errorf("got %s", a.body)
	}
}

func TestADeleteWhileCreatingGivesTheWaiter410(t *testing.T) {
	r := newRig(t)
	id, answers := creating(r)
	r.status(r.do("DELETE", "/v1/sandboxes/"+string(id), ""), 204)
	a := r.refused(<-answers, cay.Gone)
	if a.member(t, "status_reason") != "deleted" {
		t.Errorf("got %s", a.body)
	}
}

func TestAnEndedSandboxStillAnswersButCannotBeUsed(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	r.status(r.do("DELETE", "/v1/sandboxes/"+id, ""), 204)
	r.status(r.do("DELETE", "/v1/sandboxes/"+id, ""), 204)
	a := r.status(r.do("GET", "/v1/sandboxes/"+id, ""), 200)
	if a.member(t, "status_reason") != "deleted" {
		t.Errorf("got %s", a.body)
	}
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/exec", `{"command":"true"}`}, {"POST", "/pause", ""}, {"POST", "/resume", ""}, {"POST", "/keepalive", ""},
		{"POST", "/timeout", `{"ttl_seconds":5}`}, {"PATCH", "", `{"metadata":{}}`}, {"GET", "/files?path=/a", ""}, {"GET", "/network", ""},
	} {
		a := r.refused(r.do(call.method, "/v1/sandboxes/"+id+call.path, call.body), cay.Gone)
		if a.member(t, "status_reason") != "deleted" || a.member(t, "state") != "TERMINATED" {
			t.Errorf("%s: got %s", call.path, a.body)
		}
	}
	r.refused(r.do("GET", "/v1/sandboxes/"+string(cay.NewID(cay.PrefixSandbox)), ""), cay.NotFound)
	r.refused(r.do("GET", "/v1/sandboxes/nonsense", ""), cay.NotFound)
}

func TestUseBeforeReadyAsksToTryAgain(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Creating))
	a := r.refused(r.do("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"true"}`), cay.NotReady)
	if a.Header.Get("Retry-After") != "1" || a.member(t, "state") != "CREATING" {
		t.Errorf("got %v %s", a.Header, a.body)
	}
}

func TestPauseAndResume(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	if a := r.status(r.do("POST", "/v1/sandboxes/"+id+"/pause", ""), 200); a.member(t, "status") != "PAUSED" || a.member(t, "expires_at") != nil {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("POST", "/v1/sandboxes/"+id+"/exec", `{"command":"true"}`), cay.SandboxPaused)
	r.refused(r.do("POST", "/v1/sandboxes/"+id+"/keepalive", ""), cay.SandboxPaused)
	r.status(r.do("POST", "/v1/sandboxes/"+id+"/resume", ""), 200)
	r.status(r.do("POST", "/v1/sandboxes/"+id+"/resume", `{"ttl_seconds":60}`), 200)
	r.refused(r.do("POST", "/v1/sandboxes/"+id+"/resume", `{"ttl_seconds":0}`), cay.InvalidRequest)
}

func TestATimeoutAnswersTheValueInForce(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	if a := r.status(r.do("POST", "/v1/sandboxes/"+id+"/timeout", `{"ttl_seconds":90.5}`), 200); a.member(t, "ttl_seconds") != 90.5 {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("POST", "/v1/sandboxes/"+id+"/timeout", `{"ttl_seconds":2000000}`), 200); a.member(t, "ttl_seconds") != 86400.0 {
		t.Errorf("capped: got %s", a.body)
	}
	for _, body := range []string{`{"ttl_seconds":0}`, `{"ttl_seconds":-5}`, `{"ttl_seconds":2147483649}`, `{}`, `{"ttl_seconds":null}`} {
		r.refused(r.do("POST", "/v1/sandboxes/"+id+"/timeout", body), cay.InvalidRequest)
	}
}

func TestPatchChangesWhatItNames(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	a := r.status(r.do("PATCH", "/v1/sandboxes/"+id, `{"metadata":{"a":"b"},"idle_timeout_seconds":5}`), 200)
	if a.member(t, "idle_timeout_seconds") != 5.0 || a.member(t, "metadata").(map[string]any)["a"] != "b" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("PATCH", "/v1/sandboxes/"+id, `{"cpu":1}`), cay.InvalidRequest)
}

func TestGetWaitsForAStatus(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Creating)
	a := r.status(r.do("GET", "/v1/sandboxes/"+string(id)+"?wait_for=READY&wait_seconds=0.05", ""), 200)
	if a.member(t, "status") != "CREATING" {
		t.Errorf("got %s", a.body)
	}
	answers := make(chan answer, 1)
	go func() { answers <- r.do("GET", "/v1/sandboxes/"+string(id)+"?wait_for=READY", "") }()
	r.boxes.change(id, func(sb *cay.Sandbox) { sb.Status = cay.Ready })
	if a := <-answers; a.member(t, "status") != "READY" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", "/v1/sandboxes/"+string(id)+"?wait_for=HAPPY", ""), cay.InvalidRequest)
}

func TestAnIdempotencyKeyCreatesOnce(t *testing.T) {
	r := newRig(t)
	key := header("Idempotency-Key", "k1")
	var wg sync.WaitGroup
	ids := make(chan string, 8)
	for range 8 {
		wg.Go(func() {
			a := r.do("POST", "/v1/sandboxes", `{"cpu":1}`, key)
			ids <- a.member(t, "id").(string)
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Errorf("got %s and %s", first, id)
		}
	}
	if r.boxes.created != 1 {
		t.Errorf("%d sandboxes were made", r.boxes.created)
	}
	r.refused(r.do("POST", "/v1/sandboxes", `{"cpu":2}`, key), cay.IdempotencyMismatch)
	// Afterwards: the stored status and the object as it is now.
	r.status(r.do("DELETE", "/v1/sandboxes/"+first, ""), 204)
	if a := r.status(r.do("POST", "/v1/sandboxes", `{"cpu":1}`, key), 201); a.member(t, "status") != "TERMINATED" {
		t.Errorf("got %s", a.body)
	}
}

func TestARefusalIsStoredButAFaultIsNot(t *testing.T) {
	r := newRig(t)
	key := header("Idempotency-Key", "k1")
	for range 2 {
		a := r.refused(r.do("POST", "/v1/sandboxes", `{"cpu":2000}`, key), cay.Unprocessable)
		if a.member(t, "field") != "cpu" {
			t.Errorf("got %s", a.body)
		}
	}
	r.refused(r.do("POST", "/v1/sandboxes", `{}`, key), cay.IdempotencyMismatch)

	r.boxes.status, r.boxes.reason = cay.Failed, cay.ReasonBootFailed
	again := header("Idempotency-Key", "k2")
	r.refused(r.do("POST", "/v1/sandboxes", `{}`, again), cay.BootFailed)
	r.boxes.status, r.boxes.reason = cay.Ready, ""
	r.status(r.do("POST", "/v1/sandboxes", `{}`, again), 201)
}

func TestACallerThatGoesAwayDoesNotCancelACreate(t *testing.T) {
	r := newRig(t)
	r.boxes.status = cay.Creating
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req := r.request("POST", "/v1/sandboxes", `{}`, header("Idempotency-Key", "k")).WithContext(ctx)
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			t.Error("it answered")
		}
	}()
	deadline := time.Now().Add(time.Minute)
	for r.boxes.count() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-gone
	a := r.status(r.do("POST", "/v1/sandboxes?wait=false", `{}`, header("Idempotency-Key", "k")), 202)
	if r.boxes.count() != 1 || a.member(t, "status") != "CREATING" {
		t.Errorf("%d sandboxes: %s", r.boxes.count(), a.body)
	}
}

func (f *fakeSandboxes) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.created
}
