package testkit

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

var shared struct {
	sync.Mutex
	opts Options
	inst *Instance
	err  error
}

// Server is the server that all tests of a test binary share. It starts with the first use; [Main] ends it.
func Server(t testing.TB) *Instance {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.inst == nil && shared.err == nil {
		shared.inst, shared.err = NewInstance(shared.opts)
		if shared.err == nil {
			shared.err = shared.inst.Start()
		}
	}
	if shared.err != nil {
		t.Fatalf("shared server: %v", shared.err)
	}
	if !shared.inst.Running() {
		t.Fatal("the shared server has ended; an earlier test took it down")
	}
	return shared.inst
}

// Main runs the tests of a package whose tests use [Server], and fails the run when that server leaves anything behind. env is set
// for that server.
func Main(m *testing.M, env ...string) {
	shared.opts.Env = env
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.inst != nil {
		logs := shared.inst.Logs()
		if err := shared.inst.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "FAIL: shared server: %v\n", err)
			code = max(code, 1)
		}
		if code != 0 {
			fmt.Fprintf(os.Stderr, "shared server's log:\n%s", logs)
		}
	}
	os.Exit(code)
}
