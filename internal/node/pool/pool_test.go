package pool_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay/internal/node/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake makes numbers and remembers what was thrown away.
type fake struct {
	mu          sync.Mutex
	made        int
	discarded   []int
	underWay    int
	most        int
	failures    int
	fingerprint atomic.Value
}

func (f *fake) config(size int) pool.Config[int] {
	f.fingerprint.Store("a")
	return pool.Config[int]{
		Size: size,
		Prepare: func(ctx context.Context) (int, error) {
			f.mu.Lock()
			f.underWay++
			f.most = max(f.most, f.underWay)
			f.mu.Unlock()
			t := time.NewTimer(300 * time.Millisecond)
			defer t.Stop()
			var err error
			select {
			case <-t.C:
			case <-ctx.Done():
				err = ctx.Err()
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.underWay--
			if f.failures > 0 && err == nil {
				f.failures--
				err = errors.New("no")
			}
			if err != nil {
				return 0, err
			}
			f.made++
			return f.made, nil
		},
		Discard: func(_ context.Context, n int) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.discarded = append(f.discarded, n)
		},
		Fingerprint: func() string { return f.fingerprint.Load().(string) },
	}
}

func TestItRefillsOneAtATimeAndAMissDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fake
		p := pool.New(f.config(2))
		if _, ok := p.Take(); ok {
			t.Fatal("an empty pool gave something")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if p.Ready() != 2 || f.most != 1 {
			t.Fatalf("%d ready, %d prepared at once", p.Ready(), f.most)
		}
		if n, ok := p.Take(); !ok || n != 1 {
			t.Fatalf("%d %v", n, ok)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if p.Ready() != 2 {
			t.Fatalf("%d ready", p.Ready())
		}
		p.Close()
		if len(f.discarded) != 2 {
			t.Fatalf("discarded %v", f.discarded)
		}
		if _, ok := p.Take(); ok {
			t.Fatal("a closed pool gave something")
		}
	})
}

func TestItemsOfAnotherFingerprintAreThrownAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fake
		p := pool.New(f.config(1))
		defer p.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		f.fingerprint.Store("b")
		if _, ok := p.Take(); ok {
			t.Fatal("a stale item was given away")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n, ok := p.Take(); !ok || n != 2 {
			t.Fatalf("%d %v", n, ok)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		f.fingerprint.Store("c")
		time.Sleep(11 * time.Second) // nobody asks
		synctest.Wait()
		if len(f.discarded) != 2 || p.Ready() != 1 {
			t.Fatalf("discarded %v, %d ready", f.discarded, p.Ready())
		}
	})
}

func TestFailuresBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake{failures: 3}
		p := pool.New(f.config(1))
		defer p.Close()
		time.Sleep(5 * time.Second) // 0.3+1+0.3+2+0.3 s, then 4 s of rest
		synctest.Wait()
		if p.Ready() != 0 {
			t.Fatal("it did not back off")
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if p.Ready() != 1 {
			t.Fatal("it gave up")
		}
	})
}

func TestADeadItemIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fake
		p := pool.New(f.config(1))
		defer p.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		p.Drop(func(n int) bool { return n == 1 })
		time.Sleep(time.Second)
		synctest.Wait()
		if n, ok := p.Take(); !ok || n != 2 {
			t.Fatalf("%d %v", n, ok)
		}
	})
}

func TestADeadItemIsDiscardedAlsoWhileThePoolCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fake
		c := f.config(2)
		release := make(chan struct{})
		made := 0
		c.Prepare = func(context.Context) (int, error) {
			if made++; made == 2 {
				<-release
			}
			return made, nil
		}
		p := pool.New(c)
		synctest.Wait()
		closed := make(chan struct{})
		go func() { p.Close(); close(closed) }()
		synctest.Wait() // it waits for the second
		p.Drop(func(n int) bool { return n == 1 })
		close(release)
		<-closed
		if len(f.discarded) != 2 {
			t.Fatalf("of two items %v were discarded", f.discarded)
		}
	})
}
