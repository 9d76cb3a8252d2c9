package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/bundle"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/driver/gvisor"
	"github.com/cayhq/cay/internal/node/image"
	"github.com/cayhq/cay/internal/node/volume"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/observe"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// closeTimeout is how long a part may take to let go of what it holds: prepared sandboxes, rows in memory.
const closeTimeout = 15 * time.Second

// Node runs the node until ctx ends. Its sandboxes live on and are taken over by the next start. Started by `cay up` it takes its
// settings from there.
func Node(ctx context.Context, c config.Config, fromUp bool, errOut io.Writer) error {
	var uid, gid int
	var err error
	if fromUp {
		in, err := readInherited()
		if err != nil {
			return err
		}
		c, uid, gid = in.Config, in.ServerUID, in.ServerGID
	} else if uid, gid, err = serverUser(c); err != nil {
		return err
	}
	log := observe.Logger(errOut, c.LogLevel, c.LogFormat).With("process", "node")
	flush, err := tracing.Setup(ctx, tracing.Config{Service: "cay-node", Agent: "cay-agent", Version: Version, Log: log})
	if err != nil {
		return err
	}
	defer flush()
	p := pathsOf(c)
	if err := p.create(uid, gid); err != nil {
		return err
	}
	lock, err := lockFile(p.nodeLock())
	if err != nil {
		return fmt.Errorf("the node's directory is in use: %w", err)
	}
	defer lock.Close()
	return runNode(ctx, c, p, uid, gid, log)
}

// runNode puts the node together. Order: executables, driver (which takes over what runs), socket, worker, and at last the service
// on the socket; and the other way round to stop.
func runNode(ctx context.Context, c config.Config, p paths, uid, gid int, log *slog.Logger) (err error) {
	executables, err := bundle.Unpack(ctx, p.bin())
	if err != nil {
		return fmt.Errorf("unpack gVisor and the agent: %w", err)
	}
	id, err := workerID(filepath.Join(p.data, "worker.json"))
	if err != nil {
		return err
	}
	d, err := gvisor.New(ctx, gvisor.Config{
		DataDir: p.data, RunDir: p.run, Runsc: executables.Runsc, Agent: executables.Agent, Digest: executables.Digest,
		Instance: p.instance(), Logger: log,
	})
	if err != nil {
		return fmt.Errorf("open the gVisor driver: %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := bundle.Prune(p.bin(), d.InUse()); err != nil {
		log.Warn("old executables stay", "error", err)
	}
	info := d.Info()
	for _, note := range info.Notes {
		log.Warn("not everything is enforced here", "note", note)
	}
	capacity, err := capacityOf(c, diskInUse(ctx, d))
	if err != nil {
		return err
	}
	var runtimes []*nodev1.Runtime
	for _, r := range d.Runtimes() {
		runtimes = append(runtimes, &nodev1.Runtime{Name: r.Name, Version: r.Version, Image: r.Image, Exec: r.Exec})
	}
	volumes, err := volume.Open(p.volumes(), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, volumes.Close()) }()
	if why := volumes.Unusable(); why != "" {
		log.Warn("there are no sessions here", "why", why)
	}
	listener, err := listenPrivate(p.nodeSocket(), uid, gid)
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Config{
		Driver: d, DataDir: p.data, WorkerID: id, Version: Version,
		CPU: capacity.cpu, MemoryMB: capacity.memoryMB, DiskGB: capacity.diskGB, MaxSandboxes: int(c.MaxSandboxes),
		Runtimes: runtimes, AllowUnenforced: c.AllowUnenforcedLimits, Volumes: volumes,
		PoolSize:    int(c.PoolSize),
		PoolShape:   driver.Shape{Image: image.HostName, CPU: math.Ceil(c.DefaultCPU), MemoryMB: c.DefaultMemoryMB, DiskGB: c.DefaultDiskGB, Pids: c.DefaultPids},
		Fingerprint: hostFingerprint(log),
		Log:         log,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("take over the sandboxes: %w", err), listener.Close())
	}
	closeWorker := func() error {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return w.Close(closing)
	}

	path, handler := w.Handler()
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	mux.Handle(w.PortHandler())
	server := &http.Server{Handler: mux, HTTP2: worker.HTTP2(), Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	server.Protocols.SetUnencryptedHTTP2(true)
	server.Protocols.SetHTTP1(true) // for connections to ports
	running := make(chan error, 2)
	runCtx, stop := context.WithCancel(ctx)
	go func() { running <- server.Serve(listener) }()
	go func() { running <- w.Run(runCtx) }()
	log.Info("the node is up", "worker", id, "isolation", info.Isolation, "rootless", info.Rootless, "enforced", info.Enforced)
	ended := 0
	select {
	case <-ctx.Done():
	case err = <-running:
		ended++
	}
	stop()
	err = errors.Join(err, closeWorker())
	server.Close() // streams are attached to again; there is nothing to drain
	for ; ended < 2; ended++ {
		if e := <-running; !errors.Is(e, http.ErrServerClosed) && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// hostFingerprint tells when the programs of the host have changed, so that what was prepared from the old ones is not given away.
func hostFingerprint(log *slog.Logger) func() string {
	var mu sync.Mutex // creates and the pool ask at the same time
	last := ""
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		now, err := image.HostFingerprint()
		if err != nil {
			log.Warn("cannot tell whether the host's programs have changed", "error", err)
			return last
		}
		last = now
		return now
	}
}

// listenPrivate listens on a unix socket that only root and the given user can connect to, from its first moment on. It changes the
// umask of the whole process for that moment: nothing else may make files meanwhile.
func listenPrivate(path string, uid, gid int) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace the node's socket: %w", err)
	}
	previous := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(previous)
	if err != nil {
		return nil, fmt.Errorf("listen for the server: %w", err)
	}
	if uid >= 0 {
		if err := os.Chown(path, uid, gid); err != nil {
			l.Close()
			return nil, fmt.Errorf("hand the node's socket to the server's user: %w", err)
		}
	}
	return l, nil
}

// workerID is the node's name, made once.
func workerID(path string) (cay.ID, error) {
	var doc struct {
		ID string `json:"id"`
	}
	raw, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(raw, &doc); err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
		id, ok := cay.ParseID(cay.PrefixWorker, doc.ID)
		if !ok {
			return "", fmt.Errorf("read %s: %q is no worker's id", path, doc.ID)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the worker's id: %w", err)
	}
	id := cay.NewID(cay.PrefixWorker)
	doc.ID = string(id)
	if raw, err = json.Marshal(doc); err != nil {
		return "", fmt.Errorf("encode the worker's id: %w", err)
	}
	return id, writeFile(path, append(raw, '\n'), 0o644)
}

type capacity struct {
	cpu      float64
	memoryMB int64
	diskGB   float64
}

// diskInUse is what the sandboxes that run hold of the disk, bytes.
func diskInUse(ctx context.Context, d *gvisor.Driver) int64 {
	var sum int64
	listed, _ := d.List(ctx) // what cannot be read counts as nothing: the capacity is an estimate
	for _, s := range listed {
		if st, err := d.Stats(ctx, s.Handle); err == nil {
			sum += st.DiskBytes
		}
	}
	return sum
}

// capacityOf is what sandboxes may be promised in all: what the operator says, else what the machine has. A tenth of the memory is
// left to the host. inUse is the disk that sandboxes have taken already, bytes: it is not free, but theirs by promise.
func capacityOf(c config.Config, inUse int64) (capacity, error) {
	out := capacity{cpu: float64(runtime.NumCPU()), memoryMB: c.MemoryMB, diskGB: c.DiskGB}
	if out.memoryMB == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return out, fmt.Errorf("ask for the machine's memory: %w", err)
		}
		out.memoryMB = int64(uint64(info.Totalram)*uint64(info.Unit)/(1<<20)) * 9 / 10
	}
	if out.diskGB == 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(c.DataDir, &st); err != nil {
			return out, fmt.Errorf("ask for free disk in %s: %w", c.DataDir, err)
		}
		out.diskGB = (float64(st.Bavail)*float64(st.Bsize) + float64(inUse)) / (1 << 30)
	}
	return out, nil
}
