package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// host is where the control groups of this process are: for each v1 controller, and for the unified hierarchy, a directory.
type host struct {
	v1      map[string]place // by controller
	unified *place
}

// place is a hierarchy as this process sees it.
type place struct {
	mount string // mount point
	own   string // the directory of this process's own group
}

func readHost() (host, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return host{}, err
	}
	defer mounts.Close()
	groups, err := os.Open("/proc/self/cgroup")
	if errors.Is(err, os.ErrNotExist) {
		return host{}, nil // a kernel without control groups
	} else if err != nil {
		return host{}, err
	}
	defer groups.Close()
	return parseHost(mounts, groups)
}

// parseHost reads the formats of proc(5) mountinfo and cgroups(7) /proc/self/cgroup.
func parseHost(mountinfo, groups io.Reader) (host, error) {
	h := host{v1: map[string]place{}}
	own := map[string]string{} // controller, or "" for the unified hierarchy, to path
	lines := bufio.NewScanner(groups)
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), ":", 3)
		if len(f) != 3 {
			return host{}, fmt.Errorf("line %q of the process's groups", lines.Text())
		}
		for c := range strings.SplitSeq(f[1], ",") {
			own[c] = f[2]
		}
	}
	if err := lines.Err(); err != nil {
		return host{}, err
	}

	lines = bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		root, point := unescape(f[3]), unescape(f[4])
		switch g[0] {
		case "cgroup2":
			if p, ok := own[""]; ok && h.unified == nil {
				h.unified = &place{mount: point, own: beneath(point, root, p)}
			}
		case "cgroup":
			for o := range strings.SplitSeq(g[2], ",") {
				if p, ok := own[o]; ok && o != "" {
					if _, seen := h.v1[o]; !seen {
						h.v1[o] = place{mount: point, own: beneath(point, root, p)}
					}
				}
			}
		}
	}
	return h, lines.Err()
}

// beneath is the directory of group p in a hierarchy of which root is mounted at point. In a container the two may be told from
// different namespaces; a group that is not below root is taken to be the mount itself.
func beneath(point, root, p string) string {
	if strings.HasPrefix(p, "/..") || root != "/" && strings.HasPrefix(root, "/..") {
		return point
	}
	if root == "/" {
		return path.Join(point, p)
	}
	rest, ok := strings.CutPrefix(p, root)
	if !ok || rest != "" && rest[0] != '/' {
		return point
	}
	return path.Join(point, rest)
}

// unescape undoes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
