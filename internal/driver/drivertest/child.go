package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/driver"
)

// childEnv makes a test binary a node that boots one sandbox and is killed meanwhile; see Child.
const childEnv = "CAY_DRIVERTEST_CHILD"

type childJob struct {
	Handle driver.Handle
	Shape  driver.Shape
	Setup  json.RawMessage
}

// Child is for the TestMain of a driver: it returns false in an ordinary run. In a child of the suite it opens the driver as
// described by setup, which Installation.ChildSetup gave, prepares a sandbox and waits to be killed.
func Child(open func(setup json.RawMessage) (driver.Driver, error)) bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	var job childJob
	err := json.Unmarshal([]byte(text), &job)
	if err == nil {
		var d driver.Driver
		if d, err = open(job.Setup); err == nil {
			fmt.Println("ready")
			err = d.Prepare(context.Background(), job.Handle, job.Shape)
		}
	}
	fmt.Println("done", err)
	select {}
}

// bootInChild lets a process of its own begin to boot h and kills it after some time.
func bootInChild(s *suite, h driver.Handle, after time.Duration) {
	s.Helper()
	if s.in.ChildSetup == nil {
		s.Skip("it cannot be opened in another process")
	}
	setup, err := json.Marshal(s.in.ChildSetup)
	if err != nil {
		s.Fatal(err)
	}
	job, err := json.Marshal(childJob{Handle: h, Shape: s.in.Shape, Setup: setup})
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(testBinary(s.T))
	cmd.Env = append(os.Environ(), childEnv+"="+string(job))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	var line [6]byte
	if _, err := out.Read(line[:]); err != nil || !strings.HasPrefix(string(line[:]), "ready") {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.Fatalf("the child said %q, %v", line, err)
	}
	timer := time.NewTimer(after)
	<-timer.C
	if err := cmd.Process.Kill(); err != nil {
		s.Fatal(err)
	}
	_ = cmd.Wait()
}

func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func containsAll(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
