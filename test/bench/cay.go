package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/peer"
)

// server is a `cay up` under measurement.
type server struct {
	*testkit.Instance
	pool int
}

// startServer starts one with pool prepared sandboxes, and returns when they are. env is added to its environment.
func startServer(ctx context.Context, pool int, env ...string) (*server, error) {
	instance, err := testkit.NewInstance(testkit.Options{Env: append(env,
		"CAY_POOL_SIZE="+strconv.Itoa(pool), "CAY_LOG_LEVEL=warn",
		// The peers are not held to a part of the machine either.
		"CAY_DEFAULT_CPU="+strconv.Itoa(runtime.NumCPU()),
	)})
	if err != nil {
		return nil, err
	}
	s := &server{instance, pool}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.rest(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// version is what the server says of itself.
func (s *server) version(ctx context.Context) string {
	var info struct {
		Version   string
		Isolation json.RawMessage
	}
	resp, err := s.Do(ctx, "GET", "/v1/info", nil)
	if err == nil {
		err = resp.Decode(200, &info)
	}
	if err != nil {
		return "unknown"
	}
	return info.Version
}

// created is the answer to a create.
type created struct {
	ID     string
	Status string
	Phases phases `json:"create_ms"`
}

// phases are what the server says of a create, in milliseconds.
type phases struct{ Queue, Schedule, Boot, Total float64 }

// create makes a sandbox of the default shape, READY when it returns.
func (s *server) create(ctx context.Context) (created, error) {
	var c created
	resp, err := s.Do(ctx, "POST", "/v1/sandboxes", testkit.Fields{"image": "host"})
	if err == nil {
		err = resp.Decode(201, &c)
	}
	if err == nil && c.Status != "READY" {
		err = fmt.Errorf("its status is %s", c.Status)
	}
	if err != nil {
		return c, fmt.Errorf("create a sandbox: %w", err)
	}
	return c, nil
}

// exec runs argv, whose standard output has to be want.
func (s *server) exec(ctx context.Context, id, want string, argv ...string) error {
	result, err := s.Exec(ctx, id, argv)
	if err != nil {
		return err
	}
	if !result.OK || result.Stdout != want {
		return fmt.Errorf("%v: exit code %d, %s, stdout %q, stderr %q", argv, result.ExitCode, result.Reason, result.Stdout, result.Stderr)
	}
	return nil
}

const (
	restWindow  = 100 * time.Millisecond
	restTimeout = 15 * time.Second
)

// rest returns once the pool is full and the server's processes have been idle for a moment, so that what one sample set off does
// not burden the next.
func (s *server) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restTimeout)
	defer cancel()
	tick := time.NewTicker(restWindow)
	defer tick.Stop()
	before := int64(-1)
	for {
		kernels, ticks := 0, int64(0)
		for _, p := range s.Owned() {
			ticks += cpuTicks(p.PID)
			if len(p.Cmdline) > 0 && strings.HasPrefix(filepath.Base(p.Cmdline[0]), "runsc-sandbox") {
				kernels++
			}
		}
		if idle := before >= 0 && ticks-before <= 1; idle && kernels >= s.pool {
			return nil
		}
		before = ticks
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server did not come to rest within %v: %w", restTimeout, context.Cause(ctx))
		}
	}
}

// cpuTicks is the time that a process has computed, in the kernel's ticks of 10 ms; 0 for one that is gone.
func cpuTicks(pid int) int64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return parseTicks(stat)
}

// parseTicks takes user and system time from /proc/PID/stat: the 14th and 15th field, counted from behind the name, which may hold
// spaces.
func parseTicks(stat []byte) int64 {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	system, errSystem := strconv.ParseInt(fields[12], 10, 64)
	if errUser != nil || errSystem != nil {
		return 0
	}
	return user + system
}

// runsc is the executable that the server unpacked for its sandboxes.
func (s *server) runsc() (string, error) { return s.unpacked("runsc") }

func (s *server) unpacked(name string) (string, error) {
	found, err := filepath.Glob(filepath.Join(s.DataDir, "bin", "*", name))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no %s below %s", name, filepath.Join(s.DataDir, "bin"))
	}
	return found[0], nil
}

// bundle is how the sandbox was booted, for peers that are to boot alike.
func (s *server) bundle(id string) (*peer.Like, error) {
	configs, err := filepath.Glob(filepath.Join(s.DataDir, "sandboxes", "*", "config.json"))
	if err != nil || len(configs) != 1 {
		return nil, fmt.Errorf("find the bundle of %s: %d below %s", id, len(configs), s.DataDir)
	}
	for _, p := range s.Kernels() {
		if flags := peer.RunscFlags(p.Cmdline); len(flags) > 0 {
			return &peer.Like{Config: configs[0], Flags: flags}, nil
		}
	}
	return nil, fmt.Errorf("find the runsc of %s", id)
}
