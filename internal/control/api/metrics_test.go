package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// series is how many lines of values the metrics have.
func (r *rig) series() (n int, page string) {
	r.Helper()
	page = string(r.status(r.do("GET", "/metrics", ""), 200).body)
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n, page
}

func TestWhatClientsChooseMakesNoSeries(t *testing.T) {
	r := newRig(t)
	hostile := func(i int) {
		name := fmt.Sprintf("hostile-%d\"} 1\ncay_evil_total{x=\"", i)
		r.do("POST", "/v1/sandboxes", fmt.Sprintf(`{"metadata":{%q:%q}}`, name, name))
		r.do("GET", "/v1/sandboxes/"+string(r.boxes.add(projectA, cay.Ready))+"/files?path=/"+url.QueryEscape(name), "")
		r.do("GET", "/v1/sandboxes/"+url.PathEscape(name), "")
		r.do("GET", "/nowhere/"+url.PathEscape(name), "")
		r.do("GET", "/v1/info", "", header("X-Request-Id", fmt.Sprintf("hostile-%d", i)), header("User-Agent", fmt.Sprintf("hostile-%d", i)))
	}
	hostile(0)
	r.series() // asking makes series of its own
	before, _ := r.series()
	for i := range 50 {
		hostile(i + 1)
	}
	after, page := r.series()
	if after != before {
		t.Errorf("%d series became %d", before, after)
	}
	if strings.Contains(page, "hostile") || strings.Contains(page, "evil") || strings.Contains(page, "sbx_") || strings.Contains(page, string(projectA)) {
		t.Errorf("the metrics name what a client chose:\n%s", page)
	}
}

func TestStatusesThatOnlyAGuestWouldAnswerShareOneSeries(t *testing.T) {
	r := newRig(t)
	for status := 200; status < 1000; status++ {
		r.api.metrics.answered("port", status, time.Millisecond)
	}
	_, page := r.series()
	if n := strings.Count(page, `cay_http_requests_total{route="port"`); n > 70 {
		t.Errorf("%d series", n)
	}
	if !strings.Contains(page, `cay_http_requests_total{route="port",status="other"}`) {
		t.Error("the others are not counted")
	}
}

func TestProblemsAreCountedByReason(t *testing.T) {
	r := newRig(t)
	r.do("GET", "/v1/sandboxes/"+string(cay.NewID(cay.PrefixSandbox)), "")
	r.do("GET", "/v1/info", "", noKey)
	r.do("GET", "/v1/info", "")
	_, page := r.series()
	for _, line := range []string{`cay_errors_total{reason="not_found"} 1`, `cay_errors_total{reason="unauthorized"} 1`, `cay_errors_total{reason="internal"} 0`, `cay_errors_total{reason="slow_consumer"} 0`} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("%s is missing in\n%s", line, page)
		}
	}
}

func TestAClientThatHasGoneWasToldNothing(t *testing.T) {
	r := newRig(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.api.metrics.told(gone, fmt.Errorf("ask the node: %w", context.Canceled))
	r.api.metrics.told(t.Context(), fmt.Errorf("read: %w", errClientGone))
	if _, page := r.series(); strings.Contains(page, `cay_errors_total{reason="unavailable"} 1`) || strings.Contains(page, `cay_errors_total{reason="invalid_request"} 1`) {
		t.Errorf("the metrics are\n%s", page)
	}
}

func TestTheStartOfAProcessIsMeasuredByItsKindAndAnAttachIsNot(t *testing.T) {
	r := newRig(t)
	start := &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: &nodev1.StartProcess{Kind: "code"}}}
	r.api.metrics.running(start, time.Now())
	r.api.metrics.running(attachTo("sbx_1", "prc_1", 0, false), time.Now())
	start.GetStart().Kind = "made up"
	r.api.metrics.running(start, time.Now())
	_, page := r.series()
	if !strings.Contains(page, `cay_exec_start_duration_seconds_count{kind="code"} 1`) || !strings.Contains(page, `cay_exec_start_duration_seconds_count{kind="exec"} 0`) || strings.Contains(page, "made up") {
		t.Errorf("the metrics are\n%s", page)
	}
}

func TestMetricsComeInTheFormatThatTheScraperAccepts(t *testing.T) {
	r := newRig(t)
	for accept, want := range map[string]string{
		"": "text/plain", "application/openmetrics-text;version=1.0.0": "application/openmetrics-text",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf",
	} {
		a := r.status(r.do("GET", "/metrics", "", header("Accept", accept)), 200)
		if got := a.Header.Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("with Accept %q the type is %q", accept, got)
		}
		if strings.HasPrefix(want, "application/openmetrics") && !strings.HasSuffix(string(a.body), "# EOF\n") {
			t.Error("OpenMetrics has no end")
		}
	}
}

func TestTheListenerForMetricsHasMetricsAlone(t *testing.T) {
	r := newRig(t)
	srv := httptest.NewServer(r.api.MetricsOnly())
	defer srv.Close()
	ask := func(method, path, host string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	for _, c := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/metrics", "", 200}, {"HEAD", "/metrics", "", 200}, {"POST", "/metrics", "", 405}, {"DELETE", "/metrics", "", 405},
		{"GET", "/", "", 404}, {"GET", "/v1/info", "", 404}, {"GET", "/v1/sandboxes", "", 404}, {"GET", "/metrics/", "", 404}, {"GET", "/healthz", "", 404},
		{"GET", "/metrics", "attacker.example", 403}, // a page that a browser was made to take for this address
	} {
		if got := ask(c.method, c.path, c.host); got != c.want {
			t.Errorf("%s %s for %q is %d, want %d", c.method, c.path, c.host, got, c.want)
		}
	}
}

// fixedSandboxes answers the same counts each time, but for what was sent.
type fixedSandboxes struct {
	sent []int64
	err  error
}

func (c *fixedSandboxes) CountSandboxes(context.Context) (map[cay.Status]int64, int64, time.Time, error) {
	return map[cay.Status]int64{cay.Ready: 4, cay.Creating: 1}, 2, time.Now().Add(-time.Hour), c.err
}

func (c *fixedSandboxes) EgressBytes(context.Context) (int64, error) {
	sent := c.sent[0]
	if len(c.sent) > 1 {
		c.sent = c.sent[1:]
	}
	return sent, c.err
}

func TestTheMetricsSayHowManySandboxesThereAreAndHowLongTheyWait(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SandboxCounts = &fixedSandboxes{sent: []int64{100}} })
	_, page := r.series()
	for _, line := range []string{`cay_sandboxes{status="READY"} 4`, `cay_sandboxes{status="CREATING"} 1`, `cay_sandboxes{status="PAUSED"} 0`, "cay_sandbox_queue 2", "cay_sandbox_queue_oldest_seconds 36", "cay_egress_bytes_total 100"} {
		if !strings.Contains(page, line) {
			t.Errorf("%s is missing in\n%s", line, page)
		}
	}
}

func TestSandboxesThatCannotBeCountedLeaveAllOtherMetrics(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.SandboxCounts = &fixedSandboxes{sent: []int64{1}, err: errors.New("the disk is gone")}
	})
	_, page := r.series()
	if !strings.Contains(page, "cay_http_requests_in_flight") || strings.Contains(page, "cay_sandboxes") || strings.Contains(page, "cay_egress") {
		t.Errorf("the metrics are\n%s", page)
	}
}

func TestEgressDoesNotFallWhenOldUsageIsPurged(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SandboxCounts = &fixedSandboxes{sent: []int64{100, 150, 70, 90}} })
	for _, want := range []string{"100", "150", "150", "170"} {
		if _, page := r.series(); !strings.Contains(page, "cay_egress_bytes_total "+want+"\n") {
			t.Errorf("want %s in\n%s", want, page)
		}
	}
}
