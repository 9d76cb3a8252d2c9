package storetest

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

func ports(t *testing.T, s store.Store) {
	ctx := t.Context()
	box, other := insert(t, s, Sandbox(epoch)).ID, insert(t, s, Sandbox(epoch)).ID
	port := func(sandbox cay.ID, number int, nonce string) cay.Port {
		return cay.Port{SandboxID: sandbox, ProjectID: project, Number: number, Nonce: []byte(nonce), CreatedAt: epoch}
	}
	first, created, err := s.PutPort(ctx, port(box, 3000, "one"), 2)
	must(t, err)
	if !created || first.Public || string(first.Nonce) != "one" || !first.CreatedAt.Equal(epoch) {
		t.Errorf("exposed: %+v, created %v", first, created)
	}
	again := port(box, 3000, "two")
	again.Public, again.CreatedAt = true, epoch.Add(time.Hour)
	kept, created, err := s.PutPort(ctx, again, 2)
	must(t, err)
	if created || !kept.Public || string(kept.Nonce) != "one" || !kept.CreatedAt.Equal(epoch) {
		t.Errorf("exposed again: %+v, created %v", kept, created)
	}
	_, _, err = s.PutPort(ctx, port(box, 80, "three"), 2)
	must(t, err)
	_, _, err = s.PutPort(ctx, port(box, 81, "four"), 2)
	wantReason(t, err, cay.Conflict)
	_, _, err = s.PutPort(ctx, port(other, 81, "five"), 2)
	must(t, err)
	list, err := s.Ports(ctx, box)
	must(t, err)
	if len(list) != 2 || list[0].Number != 80 || list[1].Number != 3000 || list[0].ProjectID != project || list[0].SandboxID != box {
		t.Errorf("listed: %+v", list)
	}
	if got, err := s.Port(ctx, box, 3000); err != nil || string(got.Nonce) != "one" {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = s.Port(ctx, other, 3000)
	wantReason(t, err, cay.NotFound)
	must(t, s.DeletePort(ctx, box, 3000))
	wantReason(t, s.DeletePort(ctx, box, 3000), cay.NotFound)
	fresh, created, err := s.PutPort(ctx, port(box, 3000, "six"), 2)
	must(t, err)
	if !created || string(fresh.Nonce) != "six" {
		t.Errorf("exposed anew: %+v, created %v", fresh, created)
	}

	mutate(t, s, box, func(sb *cay.Sandbox) {
		sb.Op = cay.OpNone
		must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch))
	})
	if list, err := s.Ports(ctx, box); err != nil || len(list) != 2 {
		t.Errorf("the ports of an ended sandbox: %+v, %v", list, err)
	}
	must(t, s.Purge(ctx, epoch.Add(48*time.Hour), cay.Retention{Sandboxes: 24 * time.Hour, Events: time.Hour, MaxEvents: 100, Idempotency: time.Hour}))
	if list, err := s.Ports(ctx, box); err != nil || len(list) != 0 {
		t.Errorf("the ports of a purged sandbox: %+v, %v", list, err)
	}
	if list, err := s.Ports(ctx, other); err != nil || len(list) != 1 {
		t.Errorf("the ports of another: %+v, %v", list, err)
	}
}
