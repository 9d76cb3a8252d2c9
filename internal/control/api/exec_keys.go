package api

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// execKeys remembers which idempotency keys of execs have started which process. An exec must not wait for the store, and need not:
// the id of a process that was started with a key follows from the key, and a node that is asked twice to start one id starts it once.
// What is kept here adds the rest: another body is a mismatch, and a process that the node has forgotten is never started again.
// It is lost with the server, which leaves the node's own memory: as long as a process can be attached to.
type execKeys struct {
	mu    sync.Mutex
	byID  map[cay.ID]*list.Element // of *execKey
	order *list.List               // oldest first
}

type execKey struct {
	process     cay.ID
	fingerprint [sha256.Size]byte
	at          time.Time
	settled     chan struct{} // closed when the first request knows whether the process runs
}

const (
	execKeyLife = 24 * time.Hour
	maxExecKeys = 100_000
)

func newExecKeys() *execKeys {
	return &execKeys{byID: map[cay.ID]*list.Element{}, order: list.New()}
}

const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// keyedProcess is the id of the process that a key starts on a route of a sandbox: the sandbox's time, then 80 bits of a hash.
func keyedProcess(route string, project, sandbox cay.ID, key string) cay.ID {
	h := sha256.Sum256([]byte(route + "\x00" + string(project) + "\x00" + string(sandbox) + "\x00" + key))
	body := []byte(sandbox.Body()[:10])
	for _, b := range h[:16] {
		body = append(body, idAlphabet[b&31])
	}
	return cay.ID(cay.PrefixProcess + string(body))
}

// claim says whether the caller is the first with this key. If so it calls settle once it knows whether the process was started.
// If not, claim has waited for the first to know.
func (k *execKeys) claim(ctx context.Context, process cay.ID, fingerprint [sha256.Size]byte) (settle func(started bool), first bool, err error) {
	for {
		k.mu.Lock()
		k.expire(time.Now())
		el, found := k.byID[process]
		if !found {
			e := &execKey{process: process, fingerprint: fingerprint, at: time.Now(), settled: make(chan struct{})}
			mine := k.order.PushBack(e)
			k.byID[process] = mine
			k.mu.Unlock()
			return k.settler(e, mine), true, nil
		}
		e := el.Value.(*execKey)
		k.mu.Unlock()
		if e.fingerprint != fingerprint {
			return nil, false, cay.Errorf(cay.IdempotencyMismatch, "this Idempotency-Key was used with another body").On("Idempotency-Key")
		}
		select {
		case <-e.settled:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		k.mu.Lock()
		kept := k.byID[process] == el
		k.mu.Unlock()
		if kept {
			return nil, false, nil
		}
	}
}

func (k *execKeys) settler(e *execKey, el *list.Element) func(bool) {
	var settled sync.Once
	return func(started bool) {
		settled.Do(func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if !started && k.byID[e.process] == el {
				delete(k.byID, e.process)
				k.order.Remove(el)
			}
			close(e.settled)
		})
	}
}

// expire drops what is old, and the oldest of too many. mu is held.
func (k *execKeys) expire(now time.Time) {
	for el := k.order.Front(); el != nil; el = k.order.Front() {
		e := el.Value.(*execKey)
		if now.Sub(e.at) < execKeyLife && k.order.Len() < maxExecKeys {
			return
		}
		delete(k.byID, e.process)
		k.order.Remove(el)
	}
}
