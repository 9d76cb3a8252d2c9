package cgroup

import (
	"maps"
	"strings"
	"testing"
	"time"
)

func TestTheGroupsOfThisProcessAreFoundInEveryLayout(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo, groups string
		v1                map[string]string
		unified           string
	}{
		"hybrid": {
			mountinfo: "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 24 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n" +
				"33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			groups:  "4:memory:/a\n3:cpu,cpuacct:/b/c\n1:name=systemd:/s\n0::/u\n",
			v1:      map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct/b/c", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/b/c", "memory": "/sys/fs/cgroup/memory/a"},
			unified: "/sys/fs/cgroup/unified/u",
		},
		"v2": {
			mountinfo: "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			groups:    "0::/user.slice/user-1000.slice/session-3.scope\n",
			unified:   "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope",
		},
		"a container that shows its own part": {
			mountinfo: "32 24 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			groups:    "4:memory:/docker/x/inner\n",
			v1:        map[string]string{"memory": "/sys/fs/cgroup/memory/inner"},
		},
		"a mount of another part": {
			mountinfo: "32 24 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			groups:    "4:memory:/docker/xy\n",
			v1:        map[string]string{"memory": "/sys/fs/cgroup/memory"},
		},
		"a mount point with a space": {
			mountinfo: `32 24 0:28 / /cg\040roup rw - cgroup2 none rw` + "\n",
			groups:    "0::/\n",
			unified:   "/cg roup",
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := parseHost(strings.NewReader(c.mountinfo), strings.NewReader(c.groups))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for k, p := range h.v1 {
				got[k] = p.own
			}
			if !maps.Equal(got, c.v1) && len(got)+len(c.v1) > 0 {
				t.Errorf("v1: %v, want %v", got, c.v1)
			}
			if unified := h.unified; (unified == nil) != (c.unified == "") || unified != nil && unified.own != c.unified {
				t.Errorf("unified: %+v, want %q", unified, c.unified)
			}
		})
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add("35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a\n")
	f.Fuzz(func(t *testing.T, mountinfo, groups string) {
		h, err := parseHost(strings.NewReader(mountinfo), strings.NewReader(groups))
		if err == nil && h.unified != nil && !strings.HasPrefix(h.unified.own, strings.TrimSuffix(h.unified.mount, "/")) && strings.HasPrefix(h.unified.mount, "/") && !strings.Contains(h.unified.mount, "..") && !strings.Contains(h.unified.mount, "//") && !strings.Contains(h.unified.mount, "/.") {
			t.Errorf("the group %q is outside of its mount %q", h.unified.own, h.unified.mount)
		}
	})
}

func TestTheWatchLooksOftenWhenLittleIsLeft(t *testing.T) {
	for headroom, want := range map[int64]time.Duration{-1 << 30: fastPoll, 0: fastPoll, 1 << 20: fastPoll, 400 << 20: 97656250, 64 << 30: slowPoll} {
		if got := interval(headroom); got != want {
			t.Errorf("with %d bytes left: %v, want %v", headroom, got, want)
		}
	}
}

func TestAQuotaIsNeverBelowWhatTheKernelTakes(t *testing.T) {
	for cores, want := range map[float64]int64{0.001: 1000, 0.5: 50_000, 2: 200_000} {
		if got := quota(cores); got != want {
			t.Errorf("%g cores: %d, want %d", cores, got, want)
		}
	}
}
