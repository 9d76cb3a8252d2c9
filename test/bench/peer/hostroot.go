package peer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// The machine's own programs serve as every peer's root file system, so that no image has to be downloaded and all run the same
// executables: bound read-only where the peer can bind (runsc, runc, crun, bwrap), as a small archive where it wants an image.

type mount struct{ Source, Destination string }

// hostMounts are the directories that hold the machine's programs.
func hostMounts() []mount {
	mounts := []mount{{"/usr", "/usr"}}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() { // not merged into /usr
			mounts = append(mounts, mount{dir, dir})
		}
	}
	return mounts
}

// hostLinks are the links into /usr on machines that have merged their directories.
func hostLinks() map[string]string {
	links := map[string]string{}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if target, err := os.Readlink(dir); err == nil {
			links[dir] = target
		}
	}
	return links
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:2000:2000:sandbox:/home/sandbox:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
	group  = "root:x:0:\nsandbox:x:2000:\nnogroup:x:65534:\n"
)

// makeRoot makes dir with what the mounts need: links, mount points, accounts, what the loader and Debian's alternatives look up,
// and a few directories.
func makeRoot(dir string, mountPoints ...string) error {
	for _, m := range hostMounts() {
		mountPoints = append(mountPoints, m.Destination)
	}
	for _, sub := range append(mountPoints, "proc", "dev", "sys", "tmp", "etc", "root", "home/sandbox", "workspace", "output") {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return fmt.Errorf("make the root file system: %w", err)
		}
	}
	var faults []error
	for link, target := range hostLinks() {
		faults = append(faults, os.Symlink(target, filepath.Join(dir, link)))
	}
	faults = append(faults,
		os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(passwd), 0o644),
		os.WriteFile(filepath.Join(dir, "etc/group"), []byte(group), 0o644))
	if cache, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		faults = append(faults, os.WriteFile(filepath.Join(dir, "etc/ld.so.cache"), cache, 0o644))
	}
	if _, err := os.Stat("/etc/alternatives"); err == nil {
		faults = append(faults, os.CopyFS(filepath.Join(dir, "etc/alternatives"), os.DirFS("/etc/alternatives")))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("make the root file system: %w", err)
	}
	return nil
}

// imagePrograms are what the measures run; each is taken along if the machine has it.
var imagePrograms = []string{"/bin/sh", "/bin/true", "/bin/echo", "/bin/cat", "/bin/dd", "/bin/sleep", "/usr/bin/python3"}

// WriteImage writes an archive of a small root file system: the programs that the measures run, the shared objects that these
// need, and Python's library as far as `python3 -c` needs it.
func WriteImage(w io.Writer) error {
	b := imageBuilder{tw: tar.NewWriter(w), seen: map[string]bool{}}
	for _, dir := range []string{"/etc", "/tmp", "/root", "/proc", "/sys", "/dev"} {
		b.dir(dir)
	}
	for link, target := range hostLinks() {
		b.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: target, Mode: 0o777}, nil)
	}
	b.write(&tar.Header{Typeflag: tar.TypeReg, Name: "/etc/passwd", Mode: 0o644, Size: int64(len(passwd))}, strings.NewReader(passwd))
	b.write(&tar.Header{Typeflag: tar.TypeReg, Name: "/etc/group", Mode: 0o644, Size: int64(len(group))}, strings.NewReader(group))
	for _, program := range imagePrograms {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		b.file(program)
		for _, object := range sharedObjects(program) {
			b.file(object)
		}
	}
	b.pythonLibrary()
	if b.err != nil {
		return fmt.Errorf("write the image: %w", b.err)
	}
	return b.tw.Close()
}

// imageBuilder writes an archive; after an error it does nothing more.
type imageBuilder struct {
	tw   *tar.Writer
	seen map[string]bool
	err  error
}

func (b *imageBuilder) write(h *tar.Header, content io.Reader) {
	if b.err != nil || b.seen[h.Name] {
		return
	}
	b.seen[h.Name] = true
	if b.err = b.tw.WriteHeader(h); b.err == nil && content != nil {
		_, b.err = io.Copy(b.tw, content)
	}
}

func (b *imageBuilder) dir(path string) {
	b.write(&tar.Header{Typeflag: tar.TypeDir, Name: path, Mode: 0o755}, nil)
}

// file adds a file at its real place, with its directory, and the links that lead to it.
func (b *imageBuilder) file(path string) {
	if b.err != nil {
		return
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // /bin may be a link already written
	if err != nil {
		b.err = err
		return
	}
	path = filepath.Join(dir, filepath.Base(path))
	info, err := os.Lstat(path)
	if err != nil {
		b.err = err
		return
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		if err != nil {
			b.err = err
			return
		}
		b.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: target, Mode: 0o777}, nil)
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		b.file(target)
		return
	}
	f, err := os.Open(path)
	if err != nil {
		b.err = err
		return
	}
	defer f.Close()
	b.write(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: int64(info.Mode().Perm()), Size: info.Size()}, f)
}

// pythonLibrary adds the standard library's modules and extension modules, without its packages' tests and tools.
func (b *imageBuilder) pythonLibrary() {
	real, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		return
	}
	lib := filepath.Join("/usr/lib", filepath.Base(real))
	for _, pattern := range []string{"*.py", "encodings/*.py", "collections/*.py", "importlib/*.py", "__pycache__/*.pyc", "*/__pycache__/*.pyc"} {
		found, _ := filepath.Glob(filepath.Join(lib, pattern)) // the pattern is well-formed
		for _, path := range found {
			b.file(path)
		}
	}
}

var objectPath = regexp.MustCompile(`(?:=> )?(/\S+) \(0x`)

// sharedObjects asks ldd which shared objects a program needs, its loader included. A static program needs none.
func sharedObjects(program string) []string {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil
	}
	return parseLdd(string(out))
}

func parseLdd(out string) []string {
	var objects []string
	for _, m := range objectPath.FindAllStringSubmatch(out, -1) {
		objects = append(objects, m[1])
	}
	return objects
}
