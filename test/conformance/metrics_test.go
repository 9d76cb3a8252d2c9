package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafana "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prom "github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/cayhq/cay/internal/testkit"
)

const (
	dashboardFile = "../../deploy/grafana/cay.json"
	alertsFile    = "../../deploy/prometheus/alerts.yml"
)

// activity makes the server do at least one of everything that is counted.
func activity(t *testing.T) {
	server := testkit.Server(t)
	sb := box(t)
	sb.Must("echo counted")
	if res := sb.Call("POST", "/code", fields{"code": "print(1)"}); res.Status != 200 {
		t.Fatal(res)
	}
	if res := sb.Call("POST", "/processes", fields{"command": []string{"true"}}); res.Status != 201 {
		t.Fatal(res)
	}
	if res := sb.Call("GET", "/files?path=/nowhere", nil); res.Status != 404 {
		t.Fatal(res)
	}
	server.Job(t, "print('counted')")
	if err := server.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	call := fields{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": fields{"name": "list_sandboxes", "arguments": fields{}}}
	if res, err := server.Do(t.Context(), "POST", "/mcp", call, "Accept", "application/json, text/event-stream"); err != nil || res.Status != 200 {
		t.Fatal(res, err)
	}
}

// scraped is what Prometheus would read at the listener without a key.
func scraped(ctx context.Context) (families map[string]*dto.MetricFamily, page []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+scrapes+"/metrics", nil)
	if err != nil {
		return nil, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if page, err = io.ReadAll(res.Body); err != nil {
		return nil, nil, err
	}
	if res.StatusCode != 200 {
		return nil, nil, fmt.Errorf("status %d: %s", res.StatusCode, page)
	}
	parser := expfmt.NewTextParser(prom.LegacyValidation)
	families, err = parser.TextToMetricFamilies(bytes.NewReader(page))
	return families, page, err
}

// query is a PromQL expression, and where it stands.
type query struct{ place, expr string }

// dashboardQueries reads the dashboard as strictly as Grafana's own schema does.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	cog.NewRuntime().RegisterPanelcfgVariant(timeseries.VariantConfig())
	cog.NewRuntime().RegisterDataqueryVariant(grafana.VariantConfig())
	raw, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard.Dashboard
	if err := someFault(d.UnmarshalJSONStrict(raw)); err != nil {
		t.Fatalf("Grafana would not load the dashboard: %v", err)
	}
	if err := someFault(d.Validate()); err != nil {
		t.Fatalf("Grafana would find the dashboard invalid: %v", err)
	}
	var plain struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(raw, &plain); err != nil {
		t.Fatal(err)
	}
	var all []query
	ids := map[int]bool{}
	for _, p := range plain.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, strings.NewReplacer("$__rate_interval", "5m", "$worker", ".*").Replace(target.Expr)})
		}
	}
	for _, v := range plain.Templating.List {
		if inner, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			metric, label, _ := strings.Cut(strings.TrimSuffix(inner, ")"), ", ")
			all = append(all, query{"variable " + v.Name, "sum by (" + label + ") (" + metric + ")"})
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d queries were found", len(all))
	}
	return all
}

// someFault is nil for an empty list of faults, which Grafana's library answers as an error.
func someFault(err error) error {
	var faults cog.BuildErrors
	if errors.As(err, &faults) && len(faults) == 0 {
		return nil
	}
	return err
}

func alertQueries(t *testing.T) []query {
	t.Helper()
	raw, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	var all []query
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s lacks severity, summary or description", r.Alert)
			}
			all = append(all, query{"alert " + r.Alert, r.Expr})
		}
	}
	if len(all) < 10 {
		t.Fatalf("only %d alerts were found", len(all))
	}
	return all
}

// ofPrometheus are what Prometheus itself adds to what it reads.
var ofPrometheus = []string{"job", "instance"}

// missing says what a query names that a scrape does not have: a metric, a label, or a value that a matcher asks for.
func missing(families map[string]*dto.MetricFamily, q query) error {
	expr, err := metricsql.Parse(q.expr)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", q.place, q.expr, err)
	}
	var faults []error
	var selectors func(e metricsql.Expr) (found []*metricsql.MetricExpr)
	selectors = func(e metricsql.Expr) (found []*metricsql.MetricExpr) {
		metricsql.VisitAll(e, func(e metricsql.Expr) {
			if m, ok := e.(*metricsql.MetricExpr); ok {
				found = append(found, m)
			}
		})
		return found
	}
	for _, m := range selectors(expr) {
		faults = append(faults, selectorFault(families, q, m))
	}
	metricsql.VisitAll(expr, func(e metricsql.Expr) {
		a, ok := e.(*metricsql.AggrFuncExpr)
		if !ok {
			return
		}
		for _, m := range selectors(a) {
			for _, label := range a.Modifier.Args {
				if labels := labelsOf(families, nameOf(m)); labels != nil && !slices.Contains(labels, label) && !slices.Contains(ofPrometheus, label) {
					faults = append(faults, fmt.Errorf("%s: %s has no label %s in the scrape", q.place, nameOf(m), label))
				}
			}
		}
	})
	return errors.Join(faults...)
}

func nameOf(m *metricsql.MetricExpr) string {
	for _, filters := range m.LabelFilterss {
		for _, f := range filters {
			if f.Label == "__name__" {
				return f.Value
			}
		}
	}
	return ""
}

// family finds a series' family: those of a histogram have suffixes.
func family(families map[string]*dto.MetricFamily, name string) *dto.MetricFamily {
	if f := families[name]; f != nil && f.GetType() != dto.MetricType_HISTOGRAM {
		return f
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && families[base].GetType() == dto.MetricType_HISTOGRAM {
			return families[base]
		}
	}
	return nil
}

func labelsOf(families map[string]*dto.MetricFamily, name string) []string {
	f := family(families, name)
	if f == nil {
		return nil
	}
	labels := []string{"__name__"}
	if strings.HasSuffix(name, "_bucket") {
		labels = append(labels, "le")
	}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName())
		}
	}
	return labels
}

func selectorFault(families map[string]*dto.MetricFamily, q query, m *metricsql.MetricExpr) error {
	name := nameOf(m)
	if name == "up" { // Prometheus's own
		return nil
	}
	f := family(families, name)
	if f == nil {
		return fmt.Errorf("%s: there is no metric %s in the scrape", q.place, name)
	}
	var faults []error
	for _, filters := range m.LabelFilterss {
		for _, filter := range filters {
			if filter.Label == "__name__" || slices.Contains(ofPrometheus, filter.Label) {
				continue
			}
			wanted := []string{filter.Value}
			if filter.IsRegexp {
				wanted = strings.Split(filter.Value, "|")
			}
			for _, value := range wanted {
				if !slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool { return has(m, filter.Label, value) }) {
					faults = append(faults, fmt.Errorf("%s: no series of %s has %s=%q", q.place, name, filter.Label, value))
				}
			}
		}
	}
	return errors.Join(faults...)
}

func has(m *dto.Metric, label, pattern string) bool {
	return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
		return l.GetName() == label && regexp.MustCompile("^(?:"+pattern+")$").MatchString(l.GetValue())
	})
}

func TestEveryQueryOfDashboardAndAlertsFindsItsMetrics(t *testing.T) {
	t.Parallel()
	queries := append(dashboardQueries(t), alertQueries(t)...)
	activity(t)
	err := testkit.Until(2*time.Minute, func() error { // records of processes are fetched a moment later
		families, _, err := scraped(t.Context())
		if err != nil {
			return err
		}
		var faults []error
		for _, q := range queries {
			faults = append(faults, missing(families, q))
		}
		return errors.Join(faults...)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestMetricsAreNamedAndExplainedAsPrometheusAsks(t *testing.T) {
	t.Parallel()
	activity(t)
	families, page, err := scraped(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "cay_") && p.Metric != "cay_node_memory_mb" { // MB is the unit of memory in the whole API
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for name, f := range families {
		if strings.HasPrefix(name, "cay_") && !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("the help of %s is no sentence: %q", name, f.GetHelp())
		}
	}
}

// private is what would lead back to somebody: ids of anything but workers, and keys.
var private = regexp.MustCompile(`\b(sbx|prj|key|job|ses|prc|req)_[0-9a-z]{8}|cay_[0-9a-f]{64}`)

func TestMetricsNameNobodyAndHoldNoSecret(t *testing.T) {
	t.Parallel()
	server := testkit.Server(t)
	const hostile = "hostile\"} 1\ncay_evil_total{x=\""
	sb := box(t, fields{"metadata": fields{"who": hostile}, "env": fields{"TOKEN": "hostile-secret"}})
	for i := range 3 {
		sb.X(fmt.Sprintf("echo hostile-%d", i))
		sb.Call("GET", testkit.FilePath(fmt.Sprintf("/hostile-%d", i)), nil)
		sb.Call("POST", "/processes", fields{"command": []string{"true"}, "name": fmt.Sprintf("hostile-%d", i)})
		if _, err := server.Do(t.Context(), "GET", fmt.Sprintf("/hostile/%d", i), nil, "User-Agent", "hostile"); err != nil {
			t.Fatal(err)
		}
	}
	families, page, err := scraped(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(page, []byte(server.Key)) || bytes.Contains(page, []byte("hostile")) || private.Match(page) {
		t.Errorf("the metrics hold what is nobody's business: %q %q", private.Find(page), server.Key)
	}
	if families["cay_evil_total"] != nil {
		t.Error("a client has made a metric of its own")
	}
	res, err := server.Do(t.Context(), "GET", "/metrics", nil)
	if err != nil || res.Status != 200 {
		t.Fatalf("with the admin's key: %v %v", res, err)
	}
}
