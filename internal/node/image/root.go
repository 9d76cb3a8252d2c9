package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// maxCopied bounds a file that is copied from the host's /etc, bytes.
const maxCopied = 4 << 20

// directories of the root besides mount points. The owner is root unless said otherwise.
var directories = []struct {
	path string
	mode fs.FileMode
	own  bool // of the sandbox's user
}{
	{"/.cay", 0o755, false}, {"/.cay/bin", 0o755, false}, {"/.cay/s", 0o755, false},
	{"/dev", 0o755, false}, {"/etc", 0o755, false}, {"/home", 0o755, false}, {"/home/sandbox", 0o755, true},
	{"/mnt", 0o755, false}, {"/opt", 0o755, false}, {"/output", 0o755, true}, {"/proc", 0o555, false}, {"/root", 0o700, false},
	{"/run", 0o755, false}, {"/srv", 0o755, false}, {"/sys", 0o555, false}, {"/tmp", 0o777 | fs.ModeSticky, false},
	// gVisor mounts a memory-backed tmpfs over an empty /tmp, which no disk limit would reach.
	{"/tmp/.keep", 0o700, false},
	{"/usr", 0o755, false}, {"/usr/local", 0o755, false}, {"/usr/local/bin", 0o755, false}, {"/usr/local/lib", 0o755, false},
	{"/var", 0o755, false}, {"/var/cache", 0o755, false}, {"/var/lib", 0o755, false}, {"/var/log", 0o755, false},
	{"/var/tmp", 0o777 | fs.ModeSticky, false}, {"/workspace", 0o755, true},
}

// build makes the root directory: symlinks as the host has them, a small /etc, mount points and empty directories.
func build(host, root string, mounts []specs.Mount, locals []local) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, d := range directories {
		p := filepath.Join(root, d.path)
		if err := errors.Join(os.Mkdir(p, 0o755), os.Chmod(p, d.mode)); err != nil {
			return err
		}
		// Without root the owner is left to the agent, which may change it on the sandbox's overlay.
		if d.own && os.Geteuid() == 0 {
			if err := os.Chown(p, UID, GID); err != nil {
				return err
			}
		}
	}
	for _, d := range shown {
		for _, p := range []string{"/" + d, "/usr/" + d} {
			if target, err := os.Readlink(filepath.Join(host, p)); err == nil {
				if err := os.Symlink(target, filepath.Join(root, p)); err != nil {
					return err
				}
			}
		}
	}
	for _, m := range mounts {
		if err := mountPoint(root, m); err != nil {
			return fmt.Errorf("mount point %s: %w", m.Destination, err)
		}
	}
	for _, l := range locals {
		for name, target := range l.links {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	if isFile(filepath.Join(host, "usr/bin/python3")) {
		if err := os.Symlink("/usr/bin/python3", filepath.Join(root, "usr/local/bin/python")); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return etc(host, filepath.Join(root, "etc"))
}

// mountPoint makes what m is mounted on, unless it is inside of another mount.
func mountPoint(root string, m specs.Mount) error {
	if m.Type == "tmpfs" {
		return nil
	}
	p := filepath.Join(root, m.Destination)
	if isFile(m.Source) {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		return os.WriteFile(p, nil, 0o644)
	}
	return os.MkdirAll(p, 0o755)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// etc fills /etc: files of our own, and of the host's only such as everybody may read and programs need.
func etc(host, dir string) error {
	shell := "/bin/sh"
	if isFile(filepath.Join(host, "bin/bash")) {
		shell = "/bin/bash"
	}
	own := map[string]string{
		"passwd": "root:x:0:0:root:/root:" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n" +
			fmt.Sprintf("sandbox:x:%d:%d:sandbox:/home/sandbox:%s\n", UID, GID, shell),
		"group":         fmt.Sprintf("root:x:0:\ntty:x:5:\nnogroup:x:65534:\nsandbox:x:%d:\n", GID),
		"hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname":      "sandbox\n",
		"resolv.conf":   "",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"shells":        "/bin/sh\n/bin/bash\n",
		"profile":       "PATH=${PATH:-" + Path + "}\nexport PATH\numask 022\n",
	}
	for name, content := range own {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"ld.so.cache", "mime.types", "localtime", "timezone", "os-release", "debian_version", "services", "protocols", "matplotlibrc", "ssl/openssl.cnf", "ssl/cert.pem"} {
		if err := copyFile(filepath.Join(host, "etc", name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"alternatives", "fonts", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted"} {
		if err := copyTree(filepath.Join(host, "etc", name), filepath.Join(dir, name), 3); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies what a path leads to, if everybody may read it; a missing one is left out.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	} else if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o004 == 0 || st.Size() > maxCopied {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, maxCopied))
	return errors.Join(err, out.Close())
}

// copyTree copies a directory, at most depth levels: files by copyFile, symlinks as they are where they lead to what is shown or
// stay within the directory, others by their content.
func copyTree(from, to string, depth int) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	} else if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if !strings.Contains(target, "/") || strings.HasPrefix(target, "/usr/") && !strings.HasPrefix(target, "/usr/local/") {
				if err := os.Symlink(target, dst); err != nil {
					return err
				}
			} else if err := copyFile(src, dst); err != nil {
				return err
			}
		case e.IsDir() && depth > 1:
			if err := copyTree(src, dst, depth-1); err != nil {
				return err
			}
		case e.Type().IsRegular():
			if err := copyFile(src, dst); err != nil {
				return err
			}
		}
	}
	return nil
}
