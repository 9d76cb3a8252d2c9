// Package mounts says what is mounted where, as this process sees it. It mounts nothing.
package mounts

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// At lists the mount points at dir and below it, in the order in which they were mounted. A point that is mounted over appears as often
// as it is. dir is absolute and clean.
func At(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parse(string(text), dir), nil
}

// Below lists those that are below dir alone.
func Below(dir string) ([]string, error) {
	points, err := At(dir)
	return slices.DeleteFunc(points, func(p string) bool { return p == dir }), err
}

// Is reports whether something is mounted at point.
func Is(point string) (bool, error) {
	points, err := At(point)
	return slices.Contains(points, point), err
}

// unescape undoes the octal escapes of proc_pid_mountinfo(5).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parse(mountinfo, dir string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}
