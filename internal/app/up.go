package app

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/app/supervisor"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/observe"
)

// Up runs server and node as two processes until ctx ends. It prints one line to out when the whole is ready: `ready URL`. Only
// `cay up` knows both: it holds the lock, the key and the listening socket, and parses nothing that comes over it.
func Up(ctx context.Context, c config.Config, out, errOut io.Writer) error {
	log := observe.Logger(errOut, c.LogLevel, c.LogFormat)
	p := pathsOf(c)
	uid, gid, err := serverUser(c)
	if err != nil {
		return err
	}
	if err := p.create(uid, gid); err != nil {
		return err
	}
	lock, err := lockFile(p.lock())
	if errors.Is(err, errLocked) {
		return fmt.Errorf("cay up runs already on %s (%w); use another CAY_DATA_DIR and CAY_LISTEN for a second one", c.DataDir, err)
	} else if err != nil {
		return err
	}
	defer lock.Close()
	if c.RunDir == "" { // else it is the operator's
		defer p.leave()
	}
	if uid >= 0 {
		if err := reachable(p.server()); err != nil {
			return err
		}
	}
	key, fresh, err := bootstrapKey(c.BootstrapKey, p.key())
	if err != nil {
		return err
	}

	listener, err := listen(ctx, c.Listen, p.url())
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with CAY_LISTEN", c.Listen, err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	defer socket.Close()
	scrapes, err := listenForMetrics(ctx, c.MetricsListen, p.url())
	if err != nil {
		return err
	}
	url := "http://" + reachableAddr(listener.Addr().(*net.TCPAddr))
	if err := writeFile(p.url(), []byte(url+"\n"), 0o644); err != nil {
		return err
	}
	defer os.Remove(p.url())

	readyR, readyW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the ready pipe: %w", err)
	}
	defer readyR.Close()
	defer readyW.Close()
	files := []*os.File{readyW, socket}
	if scrapes != nil {
		defer scrapes.Close()
		file, err := scrapes.(*net.TCPListener).File()
		if err != nil {
			return fmt.Errorf("hand over the listener for metrics: %w", err)
		}
		defer file.Close()
		files = append(files, file)
	}

	c.BootstrapKey, c.Listen, c.RunDir = key, listener.Addr().String(), p.run
	serverConf, err := json.Marshal(inherited{Config: c, ServerUID: uid, ServerGID: gid})
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	c.BootstrapKey = "" // none of the node's business
	nodeConf, err := json.Marshal(inherited{Config: c, ServerUID: uid, ServerGID: gid})
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}

	ready := make(chan struct{})
	go func() { // ends with the pipe
		if scanner := bufio.NewScanner(readyR); scanner.Scan() {
			if fresh {
				fmt.Fprintf(errOut, "first admin key, kept in %s for you alone: %s\n", p.key(), key)
			}
			fmt.Fprintf(out, "ready %s\n", url)
			close(ready)
			for scanner.Scan() { // a restarted server says it again
				log.Info("the server is ready again")
			}
		}
	}()

	env, serverEnv := childEnv(), childEnv()
	if strings.HasPrefix(c.BlobURL, "s3:") {
		serverEnv = childEnv("AWS_") // the credentials of the storage, by the names that its library knows
	}
	s := supervisor.Supervisor{
		Log:   log,
		Ready: ready,
		Children: []*supervisor.Child{
			{Name: "node", Args: []string{"node", "--inherited"}, Env: env, UID: -1, Config: nodeConf},
			{Name: "server", Args: []string{"server", "--inherited"}, Env: serverEnv, UID: uid, GID: gid, Config: serverConf, Files: files},
		},
	}
	log.Info("starting", "data_dir", c.DataDir, "url", url)
	return s.Run(ctx)
}

// dyingTimeout is how long the processes of a cay up that was killed may take to be gone, and with them the listener that they share.
const dyingTimeout = 5 * time.Second

// listen waits for an address in use where urlFile tells that an earlier cay up on this data directory did not end by itself: the
// lock says that it is dead, and its server follows it at once, but not in the same instant.
func listen(ctx context.Context, address, urlFile string) (net.Listener, error) {
	_, missing := os.Stat(urlFile)
	deadline := time.Now().Add(dyingTimeout)
	for {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, unix.EADDRINUSE) || missing != nil || time.Now().After(deadline) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// inherited is what `cay up` gives a child on descriptor 3. A server finds the pipe for its readiness on 4, the listener on 5, and
// the one for metrics, where there is one, on 6.
type inherited struct {
	config.Config
	ServerUID, ServerGID int
}

func readInherited() (inherited, error) {
	var in inherited
	f := os.NewFile(3, "configuration")
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return in, fmt.Errorf("read the configuration of cay up: %w", err)
	}
	return in, nil
}

// childEnv passes on the search path, the standard variables of tracing, and what else begins with one of the prefixes: nothing more of
// the operator's shell ends up in a process that guests or clients talk to.
func childEnv(prefixes ...string) []string {
	prefixes = append(prefixes, "OTEL_", "XDG_RUNTIME_DIR=", "HOME=", "GOTRACEBACK=")
	env := []string{"PATH=" + os.Getenv("PATH")}
	for _, kv := range os.Environ() {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(kv, prefix) }) {
			env = append(env, kv)
		}
	}
	return env
}

// bootstrapKey is the first admin key: the configured one, else the one kept from before, else a new one (fresh). What is in force
// lies in the file, readable for the owner only, where the CLI of the same user finds it.
func bootstrapKey(configured, path string) (key string, fresh bool, err error) {
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("read the key: %w", err)
	}
	key = strings.TrimSpace(string(kept))
	switch {
	case configured != "" && configured == key:
		return key, false, nil
	case configured != "":
		key = configured
	case key != "":
		return key, false, nil
	default:
		var b [32]byte
		rand.Read(b[:])
		key, fresh = "cay_"+hex.EncodeToString(b[:]), true
	}
	return key, fresh, writeFile(path, []byte(key+"\n"), 0o600)
}

// reachableAddr is the listening address as a client on this machine dials it.
func reachableAddr(a *net.TCPAddr) string {
	host := a.IP.String()
	if a.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, fmt.Sprint(a.Port))
}
