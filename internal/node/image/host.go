// Package image makes the root file systems of sandboxes. So far there is one, "host": the machine's own programs, read-only, in an
// otherwise empty root that is built once for each node and shared by its sandboxes, which write to overlays of their own. The
// package knows directories and mounts; it starts nothing but interpreters, to ask their versions.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// HostName is the name of the image that this package makes.
const HostName = "host"

// The sandbox's user in every image.
const (
	UID = 2000
	GID = 2000
)

// Path is the search path inside. /usr/local/bin is of the image, not of the host: it holds python and the like.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// shown are the directories of the host's /usr that sandboxes see. /usr/local is not one: what administrators put there may be
// secret. /usr/src is not needed to run anything.
var shown = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share"}

// Host is a built image.
type Host struct {
	dir         string
	fingerprint string
	mounts      []specs.Mount
	runtimes    []Runtime
}

// BuildHost builds the image below dir, or takes the one that is there for the same fingerprint. Other images below dir are left
// alone, see Prune. Building it from several processes at once is safe.
func BuildHost(ctx context.Context, dir string) (*Host, error) {
	before, err := HostFingerprint()
	if err != nil {
		return nil, fmt.Errorf("look at the host's programs: %w", err)
	}
	h := &Host{dir: filepath.Join(dir, HostName+"-"+before[:32]), fingerprint: before}
	locals := localRuntimes("/")
	h.mounts = mounts("/", locals)
	h.runtimes = detect(ctx, "/", locals)
	if _, err := os.Stat(h.Root()); err == nil {
		return h, nil
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	tmp, err := os.MkdirTemp(dir, ".build-*")
	if err != nil {
		return nil, fmt.Errorf("build the host image: %w", err)
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	if err := build("/", root, h.mounts, locals); err != nil {
		return nil, fmt.Errorf("build the host image: %w", err)
	}
	if err := os.Chmod(tmp, 0o711); err != nil {
		return nil, fmt.Errorf("build the host image: %w", err)
	}
	if err := os.Rename(tmp, h.dir); err != nil {
		if _, lost := os.Stat(h.Root()); lost != nil {
			return nil, fmt.Errorf("build the host image: %w", err)
		}
	}
	return h, nil
}

// Root is the root directory. Sandboxes must not be able to write to it.
func (h *Host) Root() string { return filepath.Join(h.dir, "root") }

// Name is the image's directory below the one it was built in.
func (h *Host) Name() string { return filepath.Base(h.dir) }

// Fingerprint is what HostFingerprint was when the image was built.
func (h *Host) Fingerprint() string { return h.fingerprint }

// Mounts are those that the root needs: read-only, without setuid, and not recursive, so that nothing that is mounted below a
// shown directory is shown as well.
func (h *Host) Mounts() []specs.Mount { return slices.Clone(h.mounts) }

// Runtimes are the interpreters that the host has.
func (h *Host) Runtimes() []Runtime { return slices.Clone(h.runtimes) }

// Prune removes the images below dir whose names are not in use, and what an interrupted build left. Call it when no build runs.
func Prune(dir string, inUse map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if image := strings.HasPrefix(e.Name(), HostName+"-"); image && !inUse[e.Name()] || strings.HasPrefix(e.Name(), ".build-") {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// mounts are the binds of the host's directories, and what hides parts of them. host is "/" but in tests.
func mounts(host string, locals []local) []specs.Mount {
	var out []specs.Mount
	bind := func(inside string) {
		out = append(out, specs.Mount{
			Destination: inside, Source: filepath.Join(host, inside), Type: "bind",
			Options: []string{"bind", "ro", "nosuid", "nodev"},
		})
	}
	for _, d := range shown {
		if isDir(filepath.Join(host, "usr", d)) {
			bind("/usr/" + d)
		}
		// Distributions that have not merged / into /usr.
		if d != "libexec" && d != "share" && isDir(filepath.Join(host, d)) {
			bind("/" + d)
		}
	}
	for _, hidden := range []string{"/usr/lib/modules", "/lib/modules"} {
		dir, _ := filepath.Split(hidden)
		if isDir(filepath.Join(host, dir)) && isDir(filepath.Join(host, hidden)) {
			out = append(out, specs.Mount{Destination: hidden, Source: "tmpfs", Type: "tmpfs", Options: []string{"ro", "size=4096", "nr_inodes=2"}})
		}
	}
	for _, l := range locals {
		for _, p := range l.show {
			bind(p)
		}
	}
	return out
}

// isDir reports that path is a directory and no symlink to one.
func isDir(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}
