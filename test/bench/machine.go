package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what the figures were taken on.
type machine struct {
	Time     time.Time         `json:"time"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	MemoryMB int64             `json:"memory_mb"`
	Kernel   string            `json:"kernel"`
	Arch     string            `json:"arch"`
	Cgroups  string            `json:"cgroups"` // v1, v2, hybrid, none
	KVM      bool              `json:"kvm"`
	Root     bool              `json:"root"`
	Load     string            `json:"load"` // before the run: 1, 5 and 15 minutes
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"` // of Cay and of every peer that was measured
}

func facts() machine {
	m := machine{
		Time: time.Now().UTC().Truncate(time.Second), CPU: "unknown", Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(),
		Root: os.Geteuid() == 0, Cgroups: cgroupMode(os.Stat), Versions: map[string]string{},
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		if model := cpuModel(bufio.NewScanner(f)); model != "" {
			m.CPU = model
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryMB = int64(info.Totalram) * int64(info.Unit) >> 20
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		m.KVM = true
		f.Close()
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return m
}

// cpuModel reads /proc/cpuinfo.
func cpuModel(lines *bufio.Scanner) string {
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// cgroupMode says which versions of cgroups are mounted at the usual place.
func cgroupMode(stat func(string) (os.FileInfo, error)) string {
	has := func(path string) bool {
		_, err := stat("/sys/fs/cgroup/" + path)
		return err == nil
	}
	v1 := has("memory") || has("cpu")
	switch {
	case has("cgroup.controllers"):
		return "v2"
	case v1 && has("unified/cgroup.controllers"):
		return "hybrid"
	case v1:
		return "v1"
	default:
		return "none"
	}
}

// heading is the machine in a line or two of Markdown.
func (m machine) heading() string {
	kvm := "no KVM"
	if m.KVM {
		kvm = "KVM"
	}
	user := "root"
	if !m.Root {
		user = "rootless"
	}
	return fmt.Sprintf("%s, %d cores, %d MB, Linux %s %s, cgroups %s, %s, %s; %s", m.CPU, m.Cores, m.MemoryMB, m.Kernel, m.Arch, m.Cgroups, kvm, user, m.Time.Format(time.RFC3339))
}
