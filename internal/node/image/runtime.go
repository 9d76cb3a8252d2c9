package image

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Runtime is an interpreter of the image.
type Runtime struct {
	Name    string   // "python"
	Version string   // "3.11.2"; "" where the program does not tell
	Exec    []string // its argv inside; a program's file follows
}

// local is a program below the host's /usr/local that is shown by name, and nothing else from there.
type local struct {
	program string            // its path, inside and outside
	show    []string          // paths to bind
	links   map[string]string // symlinks of the image: path to target
}

// localRuntimes finds the runtimes that are in /usr/local and not in /usr.
func localRuntimes(host string) []local {
	var out []local
	in := func(p string) string { return filepath.Join(host, p) }
	if !isFile(in("usr/bin/node")) && isFile(in("usr/local/bin/node")) {
		l := local{program: "/usr/local/bin/node", show: []string{"/usr/local/bin/node"}, links: map[string]string{}}
		if isDir(in("usr/local/lib/node_modules/npm")) {
			l.show = append(l.show, "/usr/local/lib/node_modules/npm")
			for _, tool := range []string{"npm", "npx"} {
				l.links["/usr/local/bin/"+tool] = "../lib/node_modules/npm/bin/" + tool + "-cli.js"
			}
		}
		out = append(out, l)
	}
	if !isFile(in("usr/bin/go")) && isFile(in("usr/local/go/bin/go")) {
		out = append(out, local{
			program: "/usr/local/go/bin/go", show: []string{"/usr/local/go"},
			links: map[string]string{"/usr/local/bin/go": "../go/bin/go", "/usr/local/bin/gofmt": "../go/bin/gofmt"},
		})
	}
	return out
}

// known are the runtimes that are looked for. The first program of a name that exists is taken.
var known = []struct {
	name     string
	programs []string
	version  []string // arguments that make it tell its version
	args     []string // further arguments before a program's file
	since    string   // least version
}{
	{name: "bash", programs: []string{"/usr/bin/bash", "/bin/bash"}, version: []string{"--version"}},
	{name: "go", programs: []string{"/usr/bin/go", "/usr/local/go/bin/go"}, version: []string{"version"}, args: []string{"run"}},
	{name: "javascript", programs: []string{"/usr/bin/node", "/usr/local/bin/node"}, version: []string{"--version"}},
	{name: "perl", programs: []string{"/usr/bin/perl"}, version: []string{"-e", "printf '%vd', $^V"}},
	{name: "php", programs: []string{"/usr/bin/php"}, version: []string{"-n", "--version"}},
	{name: "python", programs: []string{"/usr/bin/python3"}, version: []string{"-I", "--version"}},
	{name: "ruby", programs: []string{"/usr/bin/ruby"}, version: []string{"--version"}},
	{name: "sh", programs: []string{"/usr/bin/sh", "/bin/sh"}},
	// From 22.6 on node runs TypeScript by leaving the types out.
	{name: "typescript", programs: []string{"/usr/bin/node", "/usr/local/bin/node"}, version: []string{"--version"}, args: []string{"--experimental-strip-types"}, since: "22.6"},
}

// versionTimeout bounds one interpreter's answer.
const versionTimeout = 5 * time.Second

// detect finds the runtimes and asks their versions, all at once. One that does not answer is left out: it would not run inside
// either.
func detect(ctx context.Context, host string, locals []local) []Runtime {
	found := make([]*Runtime, len(known))
	var wg sync.WaitGroup
	for i, k := range known {
		program := ""
		for _, p := range k.programs {
			visible := !strings.HasPrefix(p, "/usr/local/")
			for _, l := range locals {
				visible = visible || l.program == p
			}
			if visible && isFile(filepath.Join(host, p)) {
				program = p
				break
			}
		}
		if program == "" {
			continue
		}
		wg.Go(func() {
			r := &Runtime{Name: k.name, Exec: append([]string{program}, k.args...)}
			if len(k.version) > 0 {
				v, err := askVersion(ctx, filepath.Join(host, program), k.version)
				if err != nil || k.since != "" && !atLeast(v, k.since) {
					return
				}
				r.Version = v
			}
			found[i] = r
		})
	}
	wg.Wait()
	var out []Runtime
	for _, r := range found {
		if r != nil {
			out = append(out, *r)
		}
	}
	return out
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+`)

func askVersion(ctx context.Context, program string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent", "GOTOOLCHAIN=local"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	return versionPattern.FindString(string(out)), nil
}

// atLeast compares dotted numbers.
func atLeast(version, least string) bool {
	v, l := strings.Split(version, "."), strings.Split(least, ".")
	for i := range l {
		if i >= len(v) {
			return false
		}
		a, errA := strconv.Atoi(v[i])
		b, errB := strconv.Atoi(l[i])
		if errA != nil || errB != nil {
			return false
		}
		if a != b {
			return a > b
		}
	}
	return true
}
