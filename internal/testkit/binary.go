package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// Binary is the path of the cay executable under test: $CAY_TEST_BIN, else bin/cay of this repository.
var Binary = sync.OnceValues(func() (string, error) {
	path := os.Getenv("CAY_TEST_BIN")
	if path == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "cay")
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("the end-to-end suites run the real binary: build it with `make build`, or set CAY_TEST_BIN: %w", err)
	}
	if info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s is not executable", path)
	}
	return filepath.Abs(path)
})

// ModuleRoot is the top directory of this repository.
func ModuleRoot() string {
	root, err := moduleRoot()
	if err != nil {
		panic(err)
	}
	return root
}

// moduleRoot walks up from the working directory, which for a test is its package; -trimpath leaves no other trace.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above %s (%s)", start, runtime.GOOS)
		}
	}
}

// WriteProgram writes an executable and closes it before anybody can fork with it open, so that it can be run at once.
func WriteProgram(path string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, program, 0o755)
}
