package mounts

import (
	"slices"
	"testing"
)

func TestMountPointsAreThoseAtADirectoryAndBelow(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 254:0 /a /data/v rw - ext4 /dev/vda rw
31 30 7:0 / /data/v/one rw - ext4 /dev/loop0 rw
32 22 254:0 / /data/v-other rw - ext4 /dev/vda rw
33 30 7:1 / /data/v/a\040b\134c rw - ext4 /dev/loop1 rw
34 31 7:2 / /data/v/one rw - ext4 /dev/loop2 rw
short line
`
	want := []string{"/data/v", "/data/v/one", `/data/v/a b\c`, "/data/v/one"}
	if got := parse(mountinfo, "/data/v"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, err := At("/proc"); err != nil || !slices.Contains(got, "/proc") {
		t.Errorf("of this machine: %q, %v", got, err)
	}
}
