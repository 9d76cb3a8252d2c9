package gvisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
)

// BenchmarkBoot compares, interleaved, a boot until the agent has dialled with plain `runsc run` of /bin/echo in the same root until its
// first output. It also reports the median time of Destroy and the memory of an idle sandbox (PSS).
func BenchmarkBoot(b *testing.B) {
	runsc := os.Getenv("CAY_TEST_RUNSC")
	agent := os.Getenv("CAY_DRIVERTEST_AGENT")
	if runsc == "" || agent == "" {
		b.Skip("set CAY_TEST_RUNSC and CAY_DRIVERTEST_AGENT")
	}
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	d, err := New(b.Context(), Config{DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Runsc: runsc, Agent: agent, Instance: filepath.Base(dir)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	plain := plainBundle(b, d, dir)

	var boots, runs, ends []float64
	var pss int64
	for i := range b.N {
		h := driver.Handle(fmt.Sprintf("bench_%d", i))
		began := time.Now()
		if err := d.Prepare(b.Context(), h, shape()); err != nil {
			b.Fatal(err)
		}
		conn, err := d.Dial(b.Context(), h, driver.Purpose{Kind: wire.ConnControl})
		if err != nil {
			b.Fatal(err)
		}
		boots = append(boots, ms(began))
		conn.Close()
		pss = idlePSS(b, d, h)
		began = time.Now()
		if err := d.Destroy(b.Context(), h); err != nil {
			b.Fatal(err)
		}
		ends = append(ends, ms(began))
		runs = append(runs, plainRun(b, d, plain, i))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(boots), "boot-ms")
	b.ReportMetric(median(runs), "plain-run-ms")
	b.ReportMetric(median(ends), "destroy-ms")
	b.ReportMetric(float64(pss)/(1<<20), "idle-pss-MB")
}

func ms(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func plainBundle(b *testing.B, d *Driver, dir string) string {
	b.Helper()
	bundle := filepath.Join(dir, "plain")
	if err := os.Mkdir(bundle, 0o755); err != nil {
		b.Fatal(err)
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/bin/echo", "ready"}, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", Capabilities: &specs.LinuxCapabilities{}},
		Root:    &specs.Root{Path: d.image.Root()},
		Mounts:  append([]specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}, d.image.Mounts()...),
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}
	j, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), j, 0o600); err != nil {
		b.Fatal(err)
	}
	return bundle
}

func plainRun(b *testing.B, d *Driver, bundle string, i int) float64 {
	b.Helper()
	cmd := exec.Command(d.cfg.Runsc, "--root="+d.runscRoot(), "--platform=systrap", "--network=none", "--ignore-cgroups", "--overlay2=root:memory", "run", "--bundle="+bundle, fmt.Sprintf("plain%d", i))
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	took := ms(began)
	if err != nil || line != "ready\n" {
		b.Fatalf("plain run: %q, %v", line, err)
	}
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return took
}

func idlePSS(b *testing.B, d *Driver, h driver.Handle) int64 {
	b.Helper()
	pids, err := d.find(h).group.Pids()
	if err != nil {
		b.Fatal(err)
	}
	var sum int64
	for _, pid := range pids {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kb, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += kb << 10
			}
		}
	}
	return sum
}
