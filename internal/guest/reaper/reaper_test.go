package reaper

import (
	"os"
	"sync"
	"syscall"
	"testing"
)

func fork(t *testing.T, command string) func() (int, error) {
	return func() (int, error) {
		return syscall.ForkExec("/bin/sh", []string{"sh", "-c", command}, &syscall.ProcAttr{})
	}
}

func TestEveryStartLearnsItsOwnEnd(t *testing.T) {
	r := New(nil)
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(); err != nil {
			t.Error(err)
		}
	})
	var ends sync.WaitGroup
	for i := range 100 {
		ends.Add(1)
		code := i % 7
		_, err := r.Start(fork(t, "exit "+string(rune('0'+code))), func(e End) {
			if e.Status.ExitStatus() != code {
				t.Errorf("exit %d, wanted %d", e.Status.ExitStatus(), code)
			}
			ends.Done()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ends.Wait()
	r.Stop()
	running.Wait() // Run ends once nothing is left
}

func TestAReapedProcessIsNotSignalled(t *testing.T) {
	r := New(nil)
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run() })
	ended := make(chan End, 1)
	pid, err := r.Start(fork(t, "exec sleep 100"), func(e End) { ended <- e })
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Signal(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.Status.Signal() != syscall.SIGTERM {
		t.Errorf("status %v", e.Status)
	}
	if err := r.Signal(pid, syscall.SIGTERM); err != os.ErrProcessDone {
		t.Errorf("signal after the end: %v", err)
	}
	r.Stop()
	running.Wait()
}
