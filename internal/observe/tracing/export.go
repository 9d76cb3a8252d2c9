package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
)

// StopTimeout bounds how long the last spans may take to be taken by the collector.
const StopTimeout = 3 * time.Second

// Config says whose spans are exported.
type Config struct {
	Service string // of this process's own
	Agent   string // of those that it makes in the place of agents; "": it makes none
	Version string
	Log     *slog.Logger
}

// Target says where the standard variables have traces exported to, without what may be secret in it; "" when they do not ask for an
// export. An error names the variable that cannot be used.
func Target() (string, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || strings.EqualFold(os.Getenv("OTEL_TRACES_EXPORTER"), "none") {
		return "", nil
	}
	name, address := firstOf("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	if kind := os.Getenv("OTEL_TRACES_EXPORTER"); kind != "" && kind != "otlp" {
		return "", errors.New("OTEL_TRACES_EXPORTER may be otlp or none")
	} else if address == "" && kind == "" {
		return "", nil
	}
	if err := checkHeaders(); err != nil {
		return "", err
	}
	protocol, err := protocol()
	if err != nil {
		return "", err
	}
	if address == "" {
		address = map[string]string{"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}[protocol]
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%s is not an address such as http://localhost:4318", name)
	}
	target := url.URL{Scheme: u.Scheme, Host: u.Host}
	if protocol != "grpc" {
		target.Path = u.Path
		if name != "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" {
			target.Path = strings.TrimSuffix(u.Path, "/") + "/v1/traces"
		}
	}
	return target.String() + " (" + protocol + ")", nil
}

func protocol() (string, error) {
	switch name, p := firstOf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p {
	case "", "http/protobuf":
		return "http/protobuf", nil
	case "grpc":
		return p, nil
	default:
		return "", fmt.Errorf("%s may be http/protobuf or grpc", name)
	}
}

var headerVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}

// checkHeaders refuses what the exporter would leave out without saying where it stands.
func checkHeaders() error {
	for _, name := range headerVariables {
		value := os.Getenv(name)
		if value == "" {
			continue
		}
		for pair := range strings.SplitSeq(value, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if _, err := url.PathUnescape(value); !ok || err != nil || strings.TrimSpace(key) == "" {
				return fmt.Errorf("%s is not of the form NAME=VALUE,NAME=VALUE, with values escaped as in a URL", name)
			}
		}
	}
	return nil
}

func firstOf(names ...string) (name, value string) {
	i := slices.IndexFunc(names, func(n string) bool { return os.Getenv(n) != "" })
	if i < 0 {
		return "", ""
	}
	return names[i], os.Getenv(names[i])
}

// Setup makes this process export its spans, where the standard variables ask for it, and says so in the log. Spans are sent in batches
// from a bounded queue: a collector that is slow or away costs spans and a line in the log at most once a minute, never a request. stop sends
// what is left, for StopTimeout at most; it is never nil.
//
// The provider is not made the global one of OpenTelemetry: libraries would add spans that say what they like.
func Setup(ctx context.Context, c Config) (stop func(), err error) {
	nothing := func() {}
	target, err := Target()
	if err != nil || target == "" {
		return nothing, err
	}
	complaints := &complaints{log: c.Log}
	otel.SetErrorHandler(complaints)
	otel.SetLogger(logr.New(quiet{complaints}))
	var exporter sdk.SpanExporter
	if protocol, _ := protocol(); protocol == "grpc" {
		exporter, err = otlptracegrpc.New(ctx)
	} else {
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nothing, fmt.Errorf("set up the export of traces: %w", err)
	}
	uninstall, err := Install(ctx, c, sdk.NewBatchSpanProcessor(exporter))
	if err != nil {
		return nothing, err
	}
	c.Log.Info("traces are exported", "to", target)
	return sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
		defer cancel()
		if err := uninstall(ctx); err != nil {
			c.Log.Warn("the last spans were not exported", "error", complaints.clean(err))
			cancel()
			_ = exporter.Shutdown(ctx) // calls off what is under way
		}
	}), nil
}

// Install hands the spans of this process to a processor, for Setup and for tests. uninstall shuts the processor down.
func Install(ctx context.Context, c Config, to sdk.SpanProcessor) (uninstall func(context.Context) error, err error) {
	own, err := provider(ctx, c.Service, c.Version, to)
	if err != nil {
		return nil, err
	}
	t := &tracers{own: own.Tracer(scope)}
	if c.Agent != "" { // of the same processor: one queue, one connection
		agent, err := provider(ctx, c.Agent, c.Version, to)
		if err != nil {
			return nil, err
		}
		t.agent = agent.Tracer(scope)
	}
	current.Store(t)
	return func(ctx context.Context) error {
		current.CompareAndSwap(t, nil)
		return own.Shutdown(ctx)
	}, nil
}

// provider makes spans of a service. OTEL_RESOURCE_ATTRIBUTES is added to, and OTEL_SERVICE_NAME is not read: server, node and agent are told
// apart by their names.
func provider(ctx context.Context, service, version string, to sdk.SpanProcessor) (*sdk.TracerProvider, error) {
	about := []attribute.KeyValue{semconv.ServiceName(service)}
	if version != "" {
		about = append(about, semconv.ServiceVersion(version))
	}
	r, err := resource.New(ctx, resource.WithFromEnv(), resource.WithAttributes(about...))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this process to the collector of traces: %w", err)
	}
	return sdk.NewTracerProvider(sdk.WithSpanProcessor(to), sdk.WithResource(r)), nil
}

// complainEvery is the time between two lines in the log on traces that could not be exported.
const complainEvery = time.Minute

// complaints takes what the exporter could not do. It is safe for concurrent use.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // guarded by mu
	held int       // since then; guarded by mu
}

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.last.IsZero() || now.Sub(c.last) >= complainEvery {
		c.log.Warn("traces could not be exported", "error", c.clean(err), "failures_before", c.held)
		c.last, c.held = now, 0
		return
	}
	c.held++
}

const maxComplaint = 300

// clean is an error without the values of the headers that are sent to the collector, which may repeat them.
func (c *complaints) clean(err error) string {
	text := err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		text = op.Error()
	}
	for _, name := range headerVariables {
		for pair := range strings.SplitSeq(os.Getenv(name), ",") {
			_, value, _ := strings.Cut(pair, "=")
			plain, err := url.PathUnescape(value)
			for _, secret := range []string{strings.TrimSpace(value), strings.TrimSpace(plain)} {
				if err == nil && secret != "" {
					text = strings.ReplaceAll(text, secret, "…")
				}
			}
		}
	}
	return strings.ToValidUTF8(text[:min(len(text), maxComplaint)], "")
}

// quiet is the log of the OpenTelemetry library. Of faults it says what it was about, without values: they may be those of headers.
type quiet struct{ to *complaints }

func (quiet) Init(logr.RuntimeInfo)    {}
func (quiet) Enabled(int) bool         { return false }
func (quiet) Info(int, string, ...any) {}
func (q quiet) Error(_ error, what string, _ ...any) {
	q.to.Handle(errors.New(what))
}
func (q quiet) WithValues(...any) logr.LogSink { return q }
func (q quiet) WithName(string) logr.LogSink   { return q }
