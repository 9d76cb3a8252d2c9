package api

import (
	"context"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestTheNodeLearnsWhatWasAskedForAndByWhichKey(t *testing.T) {
	r := newRig(t)
	starts := make(chan *nodev1.StartProcess, 1)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		starts <- first.GetStart()
		return says(exitMsg(&nodev1.Exit{}))(ctx, first, s)
	}
	box := r.box()
	socket := func(path, start string) func() {
		return func() {
			p := r.dial(box + path)
			if start != "" {
				p.say(start)
			}
			p.text("started")
			p.text("exit")
		}
	}
	for _, way := range []struct {
		kind string
		ask  func()
	}{
		{"exec", func() { r.status(r.do("POST", box+"/exec", `{"command":"x"}`), 200) }},
		{"exec", func() { r.status(r.do("POST", box+"/exec", `{"command":"x"}`, asEvents), 200) }},
		{"exec", func() { r.status(r.do("POST", box+"/exec", `{"command":"x"}`, header("Idempotency-Key", "k")), 200) }},
		{"exec", socket("/exec", `{"type":"start","command":"x"}`)},
		{"code", func() { r.status(r.do("POST", box+"/code", `{"code":"x"}`), 200) }},
		{"code", socket("/code", `{"type":"start","code":"x"}`)},
		{"process", func() { r.do("POST", box+"/processes", `{"command":"x"}`) }},
		{"terminal", socket("/terminal", "")},
	} {
		way.ask()
		if st := <-starts; st.GetKind() != way.kind || st.GetActor() != "key_"+strings.Repeat("a", 26) {
			t.Errorf("%q by %q, want %s by the key that asked", st.GetKind(), st.GetActor(), way.kind)
		}
	}
}
