package router

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/spool"
)

func TestAReaderOfALongSilentProcessHasItsFullTimeOnceOutputComes(t *testing.T) {
	sp, err := spool.Open(t.TempDir(), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Spool: sp, Dial: func(ctx context.Context, _ driver.Purpose) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	defer sp.Close()
	defer s.Close()
	log, err := sp.Create(spool.Process{ID: cay.NewID(cay.PrefixProcess), Stream: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	p := s.enter(log)
	s.mu.Unlock()
	a, err := s.attach(p, 0, attachOptions{hold: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	silent := func() {
		p.mu.Lock()
		p.hold.progressed = time.Now().Add(-time.Hour)
		p.mu.Unlock()
	}
	h := p.hold
	silent()
	if err := log.Append(cay.Stdout, 0, []byte("first")); err != nil {
		t.Fatal(err)
	}
	p.acknowledge()
	p.checkHold(h)
	select {
	case <-a.over:
		t.Fatal("it lost its hold at once")
	default:
	}
	silent() // with output waiting
	p.checkHold(h)
	select {
	case <-a.over:
	default:
		t.Fatal("it keeps its hold for ever")
	}
}
