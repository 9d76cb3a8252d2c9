package nodetest

import (
	"bytes"
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// records are what a start of the node knows of processes that ended. The first one's position is base + 1.
type records struct {
	kept    []*nodev1.ProcessRecord
	base    int64
	lost    int64
	changed chan struct{} // closed when there is one more
}

func newRecords() *records { return &records{changed: make(chan struct{})} }

// AddRecord keeps a record as if a process had ended. Processes of a kind that end leave theirs by themselves.
func (n *Node) AddRecord(r *nodev1.ProcessRecord) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.ProjectId == "" {
		r.ProjectId = n.projects[r.SandboxId]
	}
	n.records.kept = append(n.records.kept, r)
	close(n.records.changed)
	n.records.changed = make(chan struct{})
}

// LoseRecords drops what was not acknowledged, as a node does that nobody asks for too long.
func (n *Node) LoseRecords() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records.lost += int64(len(n.records.kept))
	n.records.base += int64(len(n.records.kept))
	n.records.kept = nil
}

// Unacknowledged is how many records are kept.
func (n *Node) Unacknowledged() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.records.kept)
}

// recordOf is the record of a process that has ended; nil: it leaves none.
func recordOf(p *Process, began, ended time.Time, exit *nodev1.Exit) *nodev1.ProcessRecord {
	st := p.Start
	if st.Kind == "" {
		return nil
	}
	r := &nodev1.ProcessRecord{
		ProcessId: st.ProcessId, SandboxId: st.SandboxId, Actor: st.Actor, Kind: st.Kind, Name: st.Spec.GetName(), Language: st.Spec.GetCode().GetLanguage(),
		StartedUnixMs: began.UnixMilli(), EndedUnixMs: ended.UnixMilli(), Exit: exit,
	}
	switch spec := st.Spec; {
	case spec.GetCode() != nil:
		r.Command = string(spec.Code.Source)
	case spec.GetShell() != "":
		r.Command = spec.Shell
	default:
		r.Command = strings.Join(spec.GetArgv(), " ")
	}
	r.Command = cay.Clip(r.Command, cay.MaxRecordCommand)
	return r
}

// Records implements the node service. It answers as soon as there is something.
func (n *Node) Records(ctx context.Context, r *connect.Request[nodev1.RecordsRequest]) (*connect.Response[nodev1.RecordsResponse], error) {
	if n.OnRecords != nil {
		if err := n.OnRecords(ctx, r.Msg); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	waited := time.NewTimer(time.Duration(r.Msg.WaitMs) * time.Millisecond)
	defer waited.Stop()
	for over := false; ; {
		n.mu.Lock()
		k := n.records
		if r.Msg.Boot == n.boot && r.Msg.After > k.base {
			acknowledged := min(r.Msg.After-k.base, int64(len(k.kept)))
			k.kept, k.base = k.kept[acknowledged:], k.base+acknowledged
		}
		answer := &nodev1.RecordsResponse{Boot: n.boot, Lost: k.lost, Records: k.kept[:min(len(k.kept), int(r.Msg.Limit))]}
		answer.Next = k.base + int64(len(answer.Records))
		changed := k.changed
		n.mu.Unlock()
		if len(answer.Records) > 0 || over {
			return connect.NewResponse(answer), nil
		}
		select {
		case <-changed:
		case <-waited.C:
			over = true
		case <-ctx.Done():
			return nil, noderpc.Encode(ctx.Err())
		}
	}
}

// Metrics implements the node service: Families, or how many processes were started.
func (n *Node) Metrics(ctx context.Context, _ *connect.Request[nodev1.MetricsRequest]) (*connect.Response[nodev1.MetricsResponse], error) {
	if n.OnMetrics != nil {
		if err := n.OnMetrics(ctx); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	n.mu.Lock()
	families := n.Families
	if families == nil {
		families = []*dto.MetricFamily{{
			Name: proto.String("cay_execs_total"), Help: proto.String("Processes that have ended."), Type: dto.MetricType_COUNTER.Enum(),
			Metric: []*dto.Metric{{
				Label:   []*dto.LabelPair{{Name: proto.String("kind"), Value: proto.String("exec")}, {Name: proto.String("reason"), Value: proto.String("exited")}},
				Counter: &dto.Counter{Value: proto.Float64(float64(len(n.processes)))},
			}},
		}}
	}
	n.mu.Unlock()
	var b bytes.Buffer
	encode := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for _, f := range families {
		if err := encode.Encode(f); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&nodev1.MetricsResponse{Families: b.Bytes()}), nil
}
