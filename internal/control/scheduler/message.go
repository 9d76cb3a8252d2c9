package scheduler

import (
	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func request[M any](m *M) *connect.Request[M] { return connect.NewRequest(m) }

// specMessage is the part of a spec that a node needs. The host name is the id without its prefix.
func specMessage(sb *cay.Sandbox, mounts []*nodev1.VolumeMount) *nodev1.Spec {
	return &nodev1.Spec{
		Image: sb.Spec.Image, Cpu: sb.Spec.CPU, MemoryMb: sb.Spec.MemoryMB, DiskGb: sb.Spec.DiskGB, Pids: sb.Spec.Pids,
		Env: sb.Spec.Env, User: sb.Spec.User, Workdir: sb.Spec.Workdir, ExplicitLimits: sb.Spec.ExplicitLimits, Hostname: sb.ID.Body(),
		Volumes: mounts,
	}
}

func usage(u *nodev1.Usage) cay.Usage {
	if u == nil {
		return cay.Usage{}
	}
	return cay.Usage{CPUSeconds: u.CpuSeconds, MemoryMBSeconds: u.MemoryMbSeconds, PeakMemoryMB: u.PeakMemoryMb, DiskMB: u.DiskMb}
}
