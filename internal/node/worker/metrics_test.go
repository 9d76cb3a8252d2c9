package worker_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// measured are a node's metrics, by name and label values; of a histogram the count.
func (n *node) measured() map[string]float64 {
	n.t.Helper()
	a, err := n.Metrics(n.t.Context(), connect.NewRequest(&nodev1.MetricsRequest{}))
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]float64{}
	for d := expfmt.NewDecoder(bytes.NewReader(a.Msg.Families), expfmt.NewFormat(expfmt.TypeProtoDelim)); ; {
		var f dto.MetricFamily
		if err := d.Decode(&f); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			n.t.Fatal(err)
		}
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
}

func TestANodeMeasuresItself(t *testing.T) {
	d := newFakeDriver()
	d.scripts["x"] = func(p *agenttest.Process) *guestv1.Exited { p.Write(wire.FrameStdout, []byte("hello")); return nil }
	n := startNode(t, d, t.TempDir(), func(c *worker.Config) { c.PoolSize, c.PoolShape = 1, shape() })
	eventually(t, "one is prepared", func() bool { return n.measured()["cay_pool_prepared"] == 1 })
	box := n.create()
	n.run(box, as("exec"), "x")
	n.run(box, nil, "x")
	first := startInput(box, as("process"), "sleep")
	n.process(t.Context(), first).next()
	d.of(box).agent.Drop()
	eventually(t, "the agent is back", func() bool { return n.measured()["cay_agent_reconnects_total"] >= 1 })
	eventually(t, "the next is prepared and the memory is measured", func() bool {
		m := n.measured()
		return m["cay_pool_prepared"] == 1 && m["cay_sandbox_boot_duration_seconds"] == 2
	})
	got := n.measured()
	for name, want := range map[string]float64{
		"cay_pool_claims_total hit": 1, "cay_pool_claims_total miss": 0, "cay_sandbox_claim_duration_seconds": 1,
		"cay_execs_total exec exited": 1, "cay_execs_total job exited": 1, "cay_execs_total process exited": 0, "cay_exec_duration_seconds exec": 1,
		"cay_spool_bytes_total": 10, "cay_protocol_violations_total": 0, "cay_oom_kills_total": 0,
		"cay_node_sandboxes running": 1, "cay_node_sandboxes frozen": 0, "cay_node_memory_mb promised": 512, "cay_node_memory_mb used": 0,
		"cay_node_cpu_cores promised": 1, "cay_node_cpu_cores capacity": 4, "cay_sandbox_destroy_duration_seconds": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	if got["go_goroutines"] < 1 || got["process_open_fds"] < 1 {
		t.Error("the process itself is not measured")
	}
	d.die(box, true)
	eventually(t, "the end is counted", func() bool {
		m := n.measured()
		return m["cay_oom_kills_total"] == 1 && m["cay_execs_total process oom"] == 1 && m["cay_node_sandboxes ending"] == 1
	})
	if _, err := n.destroy(box, 1); err != nil {
		t.Fatal(err)
	}
	if got := n.measured(); got["cay_sandbox_destroy_duration_seconds"] != 1 || got["cay_node_memory_mb promised"] != 0 {
		t.Errorf("after the destroy: %v", got)
	}
}
