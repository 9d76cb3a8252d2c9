package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/app/inprocess"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/control/api"
	"github.com/cayhq/cay/internal/control/auth"
	"github.com/cayhq/cay/internal/control/blobs"
	"github.com/cayhq/cay/internal/control/history"
	"github.com/cayhq/cay/internal/control/jobs"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/nodes"
	"github.com/cayhq/cay/internal/control/ports"
	"github.com/cayhq/cay/internal/control/scheduler"
	"github.com/cayhq/cay/internal/control/scrape"
	"github.com/cayhq/cay/internal/control/sessions"
	"github.com/cayhq/cay/internal/control/store/sqlite"
	"github.com/cayhq/cay/internal/observe"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// Version of the build; set by the linker.
var Version = "dev"

// The parts fit the holes that the API leaves.
var (
	_ api.Sandboxes = (*lifecycle.Sandboxes)(nil)
	_ api.Nodes     = (*nodes.Nodes)(nil)
	_ api.Auth      = (*auth.Auth)(nil)
	_ api.Ports     = (*ports.Ports)(nil)
	_ api.Jobs      = (*jobs.Jobs)(nil)
	_ api.Sessions  = (*sessions.Sessions)(nil)
	_ api.History   = (*history.History)(nil)
)

// drainTimeout is how long open requests may take once the server is told to stop.
const drainTimeout = 10 * time.Second

// Server runs the control plane until ctx ends. Started by `cay up` it takes its settings, its listener and the pipe for its readiness
// from there; alone, it reads its own configuration and prints `ready URL` to out.
func Server(ctx context.Context, c config.Config, fromUp bool, out, errOut io.Writer) error {
	var listener, metrics net.Listener
	var err error
	if fromUp {
		in, err := readInherited()
		if err != nil {
			return err
		}
		c = in.Config
		ready := os.NewFile(4, "ready")
		defer ready.Close()
		out = ready
		if listener, err = inheritListener(5); err != nil {
			return err
		}
		if c.MetricsListen != "" {
			if metrics, err = inheritListener(6); err != nil {
				return err
			}
		}
	} else {
		if listener, err = net.Listen("tcp", c.Listen); err != nil {
			return fmt.Errorf("listen on %s: %w; choose another address with CAY_LISTEN", c.Listen, err)
		}
		if metrics, err = listenForMetrics(ctx, c.MetricsListen, ""); err != nil {
			return err
		}
	}
	defer listener.Close()
	if metrics != nil {
		defer metrics.Close()
	}
	log := observe.Logger(errOut, c.LogLevel, c.LogFormat).With("process", "server")
	observe.TakeStandardLog(log)
	if err := forgoPrivileges(); err != nil {
		log.Warn("the server could gain privileges by a setuid program", "error", err)
	}

	flush, err := tracing.Setup(ctx, tracing.Config{Service: "cay-server", Version: Version, Log: log})
	if err != nil {
		return err
	}
	defer flush()

	p := pathsOf(c)
	if err := os.MkdirAll(p.server(), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", p.server(), err)
	}
	lock, err := lockFile(p.serverLock())
	if err != nil {
		return fmt.Errorf("the store is in use: %w", err)
	}
	defer lock.Close()
	return serve(ctx, c, p, listener, metrics, log, func() error {
		_, err := fmt.Fprintf(out, "ready http://%s\n", reachableAddr(listener.Addr().(*net.TCPAddr)))
		return err
	})
}

// forgoPrivileges makes sure that nothing this process may be brought to execute has more rights than it has itself. It fails in a
// build with cgo, in which not all threads can be reached.
func forgoPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	return nil
}

// serve puts the control plane together. Order: the store, who may come in, the rules, the connections to nodes, the queue, and at
// last the listener; and the other way round to stop. scrapes is the listener for metrics; nil: none.
func serve(ctx context.Context, c config.Config, p paths, listener, scrapes net.Listener, log *slog.Logger, ready func() error) (err error) {
	st, err := sqlite.Open(ctx, p.store())
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer func() { err = errors.Join(err, st.Close()) }()

	keys := auth.New(st)
	if _, _, err := keys.EnsureBootstrap(ctx, c.BootstrapKey); err != nil {
		return fmt.Errorf("set up the first key: %w", err)
	}

	bucket, err := blobs.Open(ctx, c.BlobURL, p.blobs())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()

	metrics := newRegistry()
	workers := nodes.New(nodes.DefaultConfig(p.nodeSocket()), st, log)
	life := lifecycle.New(lifeConfig(c, metrics), st, workers, log)
	volumes := sessions.New(sessionConfig(c), st, life, workers, bucket, log)
	queue := scheduler.New(queueConfig(c, metrics), st, workers, life, volumes, log)
	programs := jobs.New(jobConfig(c, metrics), st, life, workers, bucket, log)
	if err := life.Start(ctx, queue.Wake); err != nil {
		return fmt.Errorf("read the sandboxes: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, life.Stop(closing))
	}()
	// adopted hears of every worker that can be asked; the first time the server is ready.
	adopted := make(chan struct{}, 1)
	if err := workers.Start(ctx, life, func() {
		queue.Wake()
		select {
		case adopted <- struct{}{}:
		default:
		}
	}); err != nil {
		return fmt.Errorf("connect to the node: %w", err)
	}
	defer workers.Stop()
	if err := queue.Start(ctx); err != nil {
		return fmt.Errorf("start the queue: %w", err)
	}
	defer queue.Stop()
	volumes.Start()
	defer volumes.Stop()
	if err := programs.Start(ctx); err != nil {
		return err
	}
	defer programs.Stop()
	past := history.New(historyConfig(c), st, workers, log)
	past.Start()
	defer past.Stop()

	proxy := ports.New(portConfig(c, listener.Addr(), log), st, life, workers, keys)
	if err := metrics.Register(past); err != nil {
		return fmt.Errorf("register metrics of the history: %w", err)
	}
	within := inprocess.New(api.MCPPath, log)
	tools, err := newMCP(within, metrics, log)
	if err != nil {
		return err
	}
	handler, err := api.New(api.Config{
		Sandboxes: life, Nodes: workers, Auth: keys, Ports: proxy, Jobs: programs, Sessions: volumes, History: past, JobCounts: st, Idempotency: st.Idempotency(),
		SandboxCounts: st, Metrics: metrics, Exposition: scrape.New(metrics, workers, log),
		MCP: tools, Version: Version, AllowedOrigins: c.Origins, AllowedHosts: c.Hosts, Logger: log,
	})
	if err != nil {
		return err
	}
	within.Serve(handler)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if scrapes != nil {
		defer serveMetrics(handler.MetricsOnly(), scrapes, log)()
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-adopted:
		if err := ready(); err != nil {
			return fmt.Errorf("say that the server is ready: %w", err)
		}
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	}
	select {
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	}
	log.Info("stopping: open requests have a moment to end", "timeout", drainTimeout)
	drain, cancelDrain := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancelDrain()
	if err := errors.Join(tools.Close(drain), handler.Close(drain), within.Close(drain), proxy.Close(drain), server.Shutdown(drain)); err != nil {
		server.Close()
	}
	return nil
}

func lifeConfig(c config.Config, metrics prometheus.Registerer) lifecycle.Config {
	l := lifecycle.DefaultConfig()
	l.Metrics = metrics
	l.MaxCPU = float64(runtime.NumCPU())
	l.MaxTTL = seconds(c.MaxTTLSeconds)
	l.MaxSandboxes = c.MaxSandboxesProject
	l.DefaultCPU, l.DefaultMemoryMB, l.DefaultDiskGB, l.DefaultPids = c.DefaultCPU, c.DefaultMemoryMB, c.DefaultDiskGB, c.DefaultPids
	l.DefaultTTL = seconds(c.DefaultTTLSeconds)
	l.AllowUnenforcedLimits = c.AllowUnenforcedLimits
	l.Retention.Records, l.Retention.MaxRecords = seconds(c.HistoryRetentionSeconds), c.MaxHistoryRecords
	l.Retention.Usage, l.Retention.Audit = seconds(c.UsageRetentionSeconds), seconds(c.AuditRetentionSeconds)
	return l
}

// portConfig says what the URLs of ports look like. Names below localhost lead to this listener; others to a proxy in front, which
// ends TLS.
func portConfig(c config.Config, listener net.Addr, log *slog.Logger) ports.Config {
	p := ports.Config{Domain: c.SandboxDomain, Scheme: c.SandboxURLScheme, Log: log}
	host, _, err := net.SplitHostPort(p.Domain)
	if err != nil {
		host = p.Domain
	}
	local := host == "localhost" || strings.HasSuffix(host, ".localhost")
	if p.Scheme == "" {
		p.Scheme = "https"
		if local {
			p.Scheme = "http"
		}
	}
	if at, ok := listener.(*net.TCPAddr); ok && local && host == p.Domain {
		p.Domain = net.JoinHostPort(host, strconv.Itoa(at.Port))
	}
	return p
}

func queueConfig(c config.Config, metrics prometheus.Registerer) scheduler.Config {
	q := scheduler.DefaultConfig()
	q.Overcommit.CPU, q.Metrics = c.CPUOvercommit, metrics
	return q
}

func jobConfig(c config.Config, metrics prometheus.Registerer) jobs.Config {
	j := jobs.DefaultConfig()
	j.Metrics = metrics
	if c.JobConcurrency > 0 {
		j.Concurrency = int(c.JobConcurrency)
	}
	j.MaxQueued, j.Retention = c.MaxJobsProject, seconds(c.JobRetentionSeconds)
	return j
}

func sessionConfig(c config.Config) sessions.Config {
	s := sessions.DefaultConfig()
	s.DefaultDiskGB, s.MaxDiskGB, s.MaxSessions = c.DefaultSessionDiskGB, c.MaxSessionDiskGB, c.MaxSessionsProject
	s.DefaultTTL, s.MaxTTL = seconds(c.DefaultSessionTTLSeconds), seconds(c.MaxSessionTTLSeconds)
	s.ArchiveAfter = seconds(c.SessionArchiveAfterSeconds)
	return s
}

func historyConfig(c config.Config) history.Config {
	h := history.DefaultConfig()
	h.Commands = c.HistoryCommands
	return h
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
