package drivertest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
)

func (s *suite) spec(id cay.ID) driver.Spec {
	return driver.Spec{SandboxID: id, CPU: s.in.Shape.CPU, MemoryMB: s.in.Shape.MemoryMB, Pids: s.in.Shape.Pids}
}

func aLife(s *suite) {
	h, a := s.up()
	st, ok := s.status(h)
	if !ok || !st.Complete || !st.Alive || st.Frozen || st.SandboxID != "" || st.Shape != s.in.Shape || st.CreatedAt.IsZero() {
		s.Errorf("prepared: %+v", st)
	}
	if s.drv.Info().Isolation == "" {
		s.Error("it does not say what isolates")
	}
	spec := s.spec(cay.NewID(cay.PrefixSandbox))
	for range 2 {
		if err := s.drv.Claim(s.ctx(), h, spec); err != nil {
			s.Fatalf("claim: %v", err)
		}
	}
	if err := s.drv.Claim(s.ctx(), h, s.spec(cay.NewID(cay.PrefixSandbox))); !isConflict(err) {
		s.Errorf("a second owner: %v, want a conflict", err)
	}
	if st, _ := s.status(h); st.SandboxID != spec.SandboxID || !reflect.DeepEqual(st.Spec, spec) {
		s.Errorf("claimed: %+v", st)
	}
	if got := a.sh("id -u"); got != "0" {
		s.Errorf("the agent runs as %s", got)
	}
	s.destroy(h)
	if _, ok := s.status(h); ok {
		s.Error("it is listed after its end")
	}
	if _, err := s.drv.Dial(s.ctx(), h, driver.Purpose{Kind: wire.ConnControl}); !errors.Is(err, driver.ErrGone) {
		s.Errorf("dial after its end: %v, want ErrGone", err)
	}
	if err := s.drv.Claim(s.ctx(), h, spec); !errors.Is(err, driver.ErrGone) {
		s.Errorf("claim after its end: %v, want ErrGone", err)
	}
}

func idempotent(s *suite) {
	h, a := s.up()
	if err := s.drv.Prepare(s.ctx(), h, s.in.Shape); err != nil {
		s.Errorf("prepare again: %v", err)
	}
	if got := a.sh("echo still there"); got != "still there" {
		s.Errorf("the first one said %q", got)
	}
	other := s.in.Shape
	other.MemoryMB += 64
	if err := s.drv.Prepare(s.ctx(), h, other); !isConflict(err) {
		s.Errorf("another shape: %v, want a conflict", err)
	}
	for range 3 {
		s.destroy(h)
	}
	s.destroy(newHandle())
}

func refused(s *suite) {
	good := s.in.Shape
	bad := map[string]driver.Shape{"no memory": good, "another image": good, "no cpu": good, "no disk": good, "no pids": good}
	for name, sh := range bad {
		switch name {
		case "no memory":
			sh.MemoryMB = 0
		case "another image":
			sh.Image = "nowhere/nothing:1"
		case "no cpu":
			sh.CPU = 0
		case "no disk":
			sh.DiskGB = 0
		case "no pids":
			sh.Pids = 0
		}
		if err := s.drv.Prepare(s.ctx(), newHandle(), sh); !errors.Is(err, driver.ErrUnsupported) {
			s.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
	for _, h := range []driver.Handle{"", "..", "a/b", "-x", "A", driver.Handle(make([]byte, 100))} {
		if err := s.drv.Prepare(s.ctx(), h, good); err == nil {
			s.Errorf("the handle %q was taken", h)
		}
		if err := s.drv.Destroy(s.ctx(), h); err == nil {
			s.Errorf("the handle %q was destroyed", h)
		}
	}
	if left := s.residue(); len(left) > 0 {
		s.Errorf("left: %v", left)
	}
}

func cancelled(s *suite) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(s.Context(), after)
		h := newHandle()
		err := s.drv.Prepare(ctx, h, s.in.Shape)
		cancel()
		if err == nil {
			s.destroy(h)
		} else if _, ok := s.status(h); ok {
			s.Errorf("cancelled after %v it is listed", after)
		}
		if left := s.residue(); len(left) > 0 {
			s.Errorf("cancelled after %v it left %v", after, left)
		}
	}
}

func takeOver(s *suite) {
	h, a := s.up()
	a.sh("echo kept > /tmp/state; sleep 1000 >/dev/null 2>&1 &")
	before, _ := s.status(h)
	for range 2 {
		s.restart()
		after, ok := s.status(h)
		if !ok || !after.Complete || !after.Alive || !after.CreatedAt.Equal(before.CreatedAt) || after.Shape != before.Shape {
			s.Fatalf("after a restart: %+v", after)
		}
		a = s.meet(h)
		if got := a.sh("cat /tmp/state"); got != "kept" {
			s.Errorf("its state is %q", got)
		}
		if got := a.sh("pgrep -c -x sleep"); got != "1" {
			s.Errorf("%s of its background processes live", got)
		}
	}
	events := s.events()
	s.kill(h, Kernel)
	s.await(events, h, driver.EventExited)
	s.destroy(h)
}

func claimOutlives(s *suite) {
	h, _ := s.up()
	spec := s.spec(cay.NewID(cay.PrefixSandbox))
	if err := s.drv.Claim(s.ctx(), h, spec); err != nil {
		s.Fatal(err)
	}
	s.restart()
	if st, _ := s.status(h); st.SandboxID != spec.SandboxID || !reflect.DeepEqual(st.Spec, spec) {
		s.Errorf("after a restart: %+v", st)
	}
	if err := s.drv.Claim(s.ctx(), h, spec); err != nil {
		s.Errorf("the same claim: %v", err)
	}
	if err := s.drv.Claim(s.ctx(), h, s.spec(cay.NewID(cay.PrefixSandbox))); !isConflict(err) {
		s.Errorf("another claim: %v, want a conflict", err)
	}
}

// kill kills a part of a sandbox as nobody should.
func (s *suite) kill(h driver.Handle, p Part) {
	s.Helper()
	pids := s.in.Processes(s.T, h, p)
	if len(pids) == 0 {
		s.Fatalf("no process of the %s", p)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.Fatalf("kill the %s: %v", p, err)
		}
	}
}

func kernelEnds(s *suite) {
	h, _ := s.up()
	events := s.events()
	waiting := make(chan error, 1)
	go func() {
		_, err := s.drv.Dial(s.ctx(), h, driver.Purpose{Kind: wire.ConnControl})
		waiting <- err
	}()
	s.kill(h, Kernel)
	if e := s.await(events, h, driver.EventExited); e.OOM {
		s.Errorf("it says that memory ran out: %+v", e)
	}
	if err := <-waiting; !errors.Is(err, driver.ErrGone) {
		s.Errorf("who waited for the agent got %v, want ErrGone", err)
	}
	if st, ok := s.status(h); !ok || st.Alive || !st.Complete {
		s.Errorf("after its end: %+v", st)
	}
	if err := s.drv.Claim(s.ctx(), h, s.spec(cay.NewID(cay.PrefixSandbox))); !errors.Is(err, driver.ErrGone) {
		s.Errorf("claim: %v, want ErrGone", err)
	}
	s.restart()
	if st, ok := s.status(h); !ok || st.Alive {
		s.Errorf("after a restart: %+v", st)
	}
	s.destroy(h)
}

func partEnds(s *suite) {
	h, _ := s.up()
	if len(s.in.Processes(s.T, h, Files)) == 0 {
		s.Skip("it has no such part")
	}
	events := s.events()
	s.kill(h, Files)
	s.await(events, h, driver.EventExited)
	s.destroy(h)
}

// remnants kills a node's stand-in at different moments of a boot: Close without waiting is not a thing that a driver has, so that
// the boot runs in a process of its own.
func remnants(s *suite) {
	s.close()
	for _, after := range []time.Duration{time.Millisecond, 30 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond} {
		h := newHandle()
		bootInChild(s, h, after)
		s.open()
		st, ok := s.status(h)
		if ok && st.Complete && st.Alive {
			s.meet(h)
		}
		s.destroy(h)
		if _, ok := s.status(h); ok {
			s.Errorf("killed after %v: it is listed after its end", after)
		}
		s.close()
		if left := s.residue(); len(left) > 0 {
			s.Errorf("killed after %v it left %v", after, left)
		}
	}
	s.open()
}

func concurrent(s *suite) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			h := newHandle()
			for range 2 {
				if err := s.drv.Prepare(s.ctx(), h, s.in.Shape); err != nil {
					s.Errorf("prepare: %v", err)
					return
				}
				var inner sync.WaitGroup
				for range 3 { // at once, and while it may be booting again
					inner.Go(func() {
						if err := s.drv.Destroy(s.ctx(), h); err != nil {
							s.Errorf("destroy: %v", err)
						}
					})
				}
				inner.Wait()
			}
		})
	}
	// Several starts of one are one.
	h := newHandle()
	for range 3 {
		wg.Go(func() {
			if err := s.drv.Prepare(s.ctx(), h, s.in.Shape); err != nil {
				s.Errorf("prepare: %v", err)
			}
		})
	}
	wg.Wait()
	if n := len(s.in.Processes(s.T, h, Kernel)); n != 1 {
		s.Errorf("%d kernels", n)
	}
	s.meet(h)
}

func reconnect(s *suite) {
	h, a := s.up()
	if _, err := a.try(request{Op: "drop"}); !errors.Is(err, io.EOF) {
		s.Errorf("a dropped connection: %v", err)
	}
	second := s.meet(h)
	second.conn.Close()
	s.meet(h)
}

func bulk(s *suite) {
	h, a := s.up()
	var wg sync.WaitGroup
	tokens := make([][wire.TokenLen]byte, 20)
	for i := range tokens {
		tokens[i][0], tokens[i][15] = byte(i), 0xff
		wg.Go(func() {
			conn, err := s.drv.Dial(s.ctx(), h, driver.Purpose{Kind: wire.ConnBulk, Token: tokens[i]})
			if err != nil {
				s.Errorf("dial: %v", err)
				return
			}
			defer conn.Close()
			text := fmt.Sprintf("transfer %d", i)
			if _, err := conn.Write([]byte(text)); err != nil {
				s.Errorf("write: %v", err)
			}
			got := make([]byte, len(text))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
				s.Errorf("%q came back as %q, %v", text, got, err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	// Who waits may not be there yet when the agent dials: it is asked until all have been served.
	s.until("all transfers", func() bool {
		for _, token := range tokens {
			a.ask(request{Op: "bulk", Token: hex.EncodeToString(token[:])})
		}
		select {
		case <-done:
			return true
		default:
			return false
		}
	})

	ctx, cancel := context.WithTimeout(s.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.drv.Dial(ctx, h, driver.Purpose{Kind: wire.ConnBulk}); !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("a transfer that nobody began: %v", err)
	}
}

func flood(s *suite) {
	h, a := s.up()
	before := openFiles(s)
	a.ask(request{Op: "flood", N: 500})
	if n := openFiles(s) - before; n > 50 {
		s.Errorf("the host holds %d files more for connections that said nothing", n)
	}
	for range 3 {
		if got := a.ask(request{Op: "garbage"}); got.N >= 8<<20 || got.Error != "" {
			s.Errorf("the host took %d bytes of garbage: %s", got.N, got.Error)
		}
	}
	if _, err := a.try(request{Op: "drop"}); !errors.Is(err, io.EOF) {
		s.Errorf("a dropped connection: %v", err)
	}
	s.meet(h)
}

func openFiles(s *suite) int {
	s.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		s.Fatal(err)
	}
	return len(entries)
}

func freeze(s *suite) {
	f, ok := s.drv.(driver.Freezer)
	h, a := s.up()
	if !ok || !s.drv.Info().CanFreeze {
		if ok {
			if err := f.Freeze(s.ctx(), h); !errors.Is(err, driver.ErrUnsupported) {
				s.Errorf("freeze: %v, want ErrUnsupported", err)
			}
		}
		return
	}
	for range 2 {
		if err := f.Freeze(s.ctx(), h); err != nil {
			s.Fatal(err)
		}
	}
	if st, _ := s.status(h); !st.Frozen || !st.Alive {
		s.Errorf("frozen: %+v", st)
	}
	_ = a.conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := a.conn.Write([]byte(`{"Op":"echo","Text":"late"}` + "\n")); err != nil {
		s.Fatal(err)
	}
	if _, err := a.in.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		s.Errorf("it answered while frozen: %v", err)
	}
	s.restart()
	if st, _ := s.status(h); !st.Frozen {
		s.Errorf("after a restart: %+v", st)
	}
	f = s.drv.(driver.Freezer)
	for range 2 {
		if err := f.Thaw(s.ctx(), h); err != nil {
			s.Fatal(err)
		}
	}
	s.meet(h)
	if err := f.Freeze(s.ctx(), h); err != nil {
		s.Fatal(err)
	}
	s.destroy(h)
	if err := f.Thaw(s.ctx(), h); !errors.Is(err, driver.ErrGone) {
		s.Errorf("thaw after its end: %v, want ErrGone", err)
	}
}

func memory(s *suite) {
	if !slices.Contains(s.drv.Info().Enforced, "memory_mb") {
		if len(s.drv.Info().Notes) == 0 {
			s.Error("memory is not enforced here, and nothing says so")
		}
		return
	}
	h, a := s.up()
	events := s.events()
	promise := s.in.Shape.MemoryMB << 20
	a.ask(request{Op: "alloc", N: int(s.in.Shape.MemoryMB) / 2})
	select {
	case e := <-events:
		s.Errorf("half of the promise: %+v", e)
	default:
	}
	go func() { // the answer may never come
		_, _ = a.try(request{Op: "alloc", N: int(s.in.Shape.MemoryMB)/2 + 100})
	}()
	if e := s.await(events, h, driver.EventMemory); e.Current <= promise || e.Promise != promise {
		s.Errorf("the event: %+v", e)
	}
	s.destroy(h)

	// Nobody reclaims: the kernel's limit is the end, and said to be.
	h, a = s.up()
	go func() { _, _ = a.try(request{Op: "alloc", N: 3 * int(s.in.Shape.MemoryMB)}) }()
	if e := s.await(events, h, driver.EventExited); !e.OOM {
		s.Errorf("the end by the limit: %+v", e)
	}
}

func disk(s *suite) {
	_, a := s.up()
	gb := s.in.Shape.DiskGB
	got := a.ask(request{Op: "sh", Text: fmt.Sprintf("dd if=/dev/zero of=/tmp/big bs=1M count=%d 2>&1; stat -c %%s /tmp/big; rm /tmp/big; echo ok > /workspace/after && cat /workspace/after", int(gb*1024)+64)})
	if got.Error != "" || !containsAll(got.Text, "No space left on device", "ok") {
		s.Errorf("more than the disk: %+v", got)
	}
	if free := a.sh("df -B1 --output=size /tmp | tail -1"); free != strconv.FormatInt(int64(gb*(1<<30)), 10) {
		s.Errorf("the size of the disk shown: %s", free)
	}
	if inodes, err := strconv.Atoi(a.sh("df --output=itotal / | tail -1")); err != nil || inodes <= 0 || inodes > 1<<22 {
		s.Errorf("files that fit: %d, %v", inodes, err)
	}
	if shm := a.ask(request{Op: "sh", Text: "dd if=/dev/zero of=/dev/shm/big bs=1M count=200 2>&1; rm /dev/shm/big"}); !containsAll(shm.Text, "No space left on device") {
		s.Errorf("/dev/shm has no end: %+v", shm)
	}
	if got := a.ask(request{Op: "sh", Text: "touch /usr/bin/x /.cay/bin/x /.cay/s/x 2>&1"}); got.Error == "" {
		s.Errorf("the host's files can be written: %+v", got)
	}
}

func shown(s *suite) {
	_, a := s.up()
	want := min(max(int(math.Ceil(s.in.Shape.CPU)), 2), max(runtime.NumCPU(), 2))
	if got := a.sh("nproc"); got != strconv.Itoa(want) {
		s.Errorf("%s processors, want %d", got, want)
	}
	if got := a.sh("awk '/MemTotal/ {print $2}' /proc/meminfo"); got != strconv.FormatInt(s.in.Shape.MemoryMB*1024, 10) {
		s.Errorf("%s kB of memory", got)
	}
	if got := a.sh("ls -A /.cay/s"); got != "a.sock" {
		s.Errorf("beside the socket: %q", got)
	}
	if got := a.ask(request{Op: "sh", Text: "cat /etc/shadow 2>&1"}); got.Error == "" {
		s.Errorf("there is a shadow file: %s", got.Text)
	}
	if got := a.sh("cat /proc/self/environ | tr '\\0' '\\n' | grep -v -e ^PATH= -e ^PWD= -e ^HOME= -e ^SHLVL= -e ^_= ; true"); got != "" {
		s.Errorf("environment: %s", got)
	}
}

func stats(s *suite) {
	st, ok := s.drv.(driver.Statser)
	if !ok {
		s.Skip("it does not measure")
	}
	h, a := s.up()
	before, err := st.Stats(s.ctx(), h)
	if err != nil {
		s.Fatal(err)
	}
	a.sh("dd if=/dev/zero of=/tmp/f bs=1M count=20 2>/dev/null; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
	after, err := st.Stats(s.ctx(), h)
	if err != nil {
		s.Fatal(err)
	}
	if after.DiskBytes < before.DiskBytes+(15<<20) {
		s.Errorf("20 MiB were written; the disk went from %d to %d", before.DiskBytes, after.DiskBytes)
	}
	if slices.Contains(s.drv.Info().Enforced, "memory_mb") && (after.CPU <= before.CPU || after.MemoryBytes < 5<<20 || after.PeakBytes < after.MemoryBytes/2 || after.HostPids < 1) {
		s.Errorf("before %+v, after %+v", before, after)
	}
	s.destroy(h)
	if _, err := st.Stats(s.ctx(), h); !errors.Is(err, driver.ErrGone) {
		s.Errorf("stats after its end: %v, want ErrGone", err)
	}
}

func watchers(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	first, err := s.drv.Watch(ctx)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.drv.Watch(s.Context()); err == nil {
		s.Error("a second watcher was taken")
	}
	cancel()
	for range first {
	}
	// What happens while nobody watches is told to the next.
	h, _ := s.up()
	s.kill(h, Kernel)
	s.until("its end", func() bool { st, _ := s.status(h); return !st.Alive })
	s.await(s.events(), h, driver.EventExited)
}
