package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
)

// volume is a directory of the host to show, on a file system of its own with room for a megabyte.
func (s *suite) volume(name string, readOnly bool) driver.Volume {
	s.Helper()
	dir := s.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0755"); err != nil {
		s.Fatalf("mount a volume: %v", err)
	}
	s.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			s.Errorf("a volume is still in use: %v", err)
		}
	})
	source := filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(source, 0o755), os.WriteFile(filepath.Join(source, "before"), []byte("from the host"), 0o644)); err != nil {
		s.Fatal(err)
	}
	return driver.Volume{Name: name, Source: source, ReadOnly: readOnly}
}

// volumes needs the agent to find them in the directory of volumes; where that is, the driver's own tests say.
func volumes(s *suite) {
	const inside = "/.cay/v"
	if !s.drv.Info().CanMount {
		h, _ := s.up()
		spec := s.spec(cay.NewID(cay.PrefixSandbox))
		spec.Volumes = []driver.Volume{{Name: "one", Source: s.TempDir()}}
		if err := s.drv.Claim(s.ctx(), h, spec); !errors.Is(err, driver.ErrUnsupported) {
			s.Errorf("a volume where none can be mounted: %v, want ErrUnsupported", err)
		}
		return
	}
	h, a := s.up()
	other, b := s.up()
	spec := s.spec(cay.NewID(cay.PrefixSandbox))
	spec.Volumes = []driver.Volume{s.volume("one", false), s.volume("two", true)}
	for range 2 {
		if err := s.drv.Claim(s.ctx(), h, spec); err != nil {
			s.Fatalf("claim: %v", err)
		}
	}
	one := spec.Volumes[0].Source

	if got := a.sh("cat " + inside + "/one/before " + inside + "/two/before"); got != "from the hostfrom the host" {
		s.Errorf("the volumes hold %q", got)
	}
	a.sh("echo from inside > " + inside + "/one/after; ln -s /etc/passwd " + inside + "/one/link; mkfifo " + inside + "/one/fifo; true")
	if got, err := os.ReadFile(filepath.Join(one, "after")); err != nil || string(got) != "from inside\n" {
		s.Errorf("written inside, on the host: %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(one, "later"), []byte("seen"), 0o644); err != nil {
		s.Fatal(err)
	}
	if got := a.sh("cat " + inside + "/one/later"); got != "seen" {
		s.Errorf("what was written beside it is %q", got)
	}
	if got := a.ask(request{Op: "sh", Text: "echo x > " + inside + "/two/x"}); got.Error == "" {
		s.Error("a volume that is shown to be read was written to")
	}
	if got := a.ask(request{Op: "sh", Text: "dd if=/dev/zero of=" + inside + "/one/big bs=64k count=64 2>&1; rm " + inside + "/one/big"}); !strings.Contains(got.Text, "No space left") {
		s.Errorf("a volume has no end: %+v", got)
	}
	for _, path := range []string{inside + "/x", inside + "/../v/x"} {
		if got := a.ask(request{Op: "sh", Text: "echo x > " + path + " || mkdir " + path}); got.Error == "" {
			s.Errorf("root inside made %s on the host", path)
		}
	}
	if got := a.sh("ls " + inside + "/one/.. "); got != "one\ntwo" {
		s.Errorf("beside the volumes: %q", got)
	}
	if got := b.sh("ls -A " + inside); got != "" {
		s.Errorf("another sandbox sees %q", got)
	}
	s.socketsInVolumes(a, inside+"/one", one)

	s.restart()
	st, _ := s.status(h)
	if len(st.Spec.Volumes) != 2 || st.Spec.Volumes[0] != spec.Volumes[0] || st.Spec.Volumes[1] != spec.Volumes[1] {
		s.Errorf("after a restart: %+v", st.Spec.Volumes)
	}
	a = s.meet(h)
	if err := s.drv.Claim(s.ctx(), h, spec); err != nil {
		s.Errorf("the same claim after a restart: %v", err)
	}
	if got := a.sh("cat " + inside + "/one/after"); got != "from inside" {
		s.Errorf("after a restart: %q", got)
	}
	// One that was prepared before the restart can still be given volumes, and the same ones at that.
	shared := s.spec(cay.NewID(cay.PrefixSandbox))
	shared.Volumes = []driver.Volume{{Name: "again", Source: one}}
	b = s.meet(other)
	if err := s.drv.Claim(s.ctx(), other, shared); err != nil {
		s.Fatalf("claim: %v", err)
	}
	b.sh("echo by another > " + inside + "/again/both")
	if got := a.sh("cat " + inside + "/one/both"); got != "by another" {
		s.Errorf("a volume of two: %q", got)
	}
	s.destroy(h)
	if got := b.sh("cat " + inside + "/again/after"); got != "from inside" {
		s.Errorf("after the end of the other: %q", got)
	}
	s.kill(other, Kernel)
	s.until("its end", func() bool { st, _ := s.status(other); return !st.Alive })
	s.restart()
	s.destroy(other)
	if got, err := os.ReadFile(filepath.Join(one, "both")); err != nil || string(got) != "by another\n" {
		s.Errorf("what is left of the volume: %q, %v", got, err)
	}

	// A claim that fails leaves nothing mounted.
	h, _ = s.up()
	spec = s.spec(cay.NewID(cay.PrefixSandbox))
	spec.Volumes = []driver.Volume{s.volume("good", false), {Name: "bad", Source: filepath.Join(one, "nowhere")}}
	if err := s.drv.Claim(s.ctx(), h, spec); err == nil {
		s.Error("a volume from nowhere was mounted")
	}
	s.destroy(h)
	for _, name := range []string{"", "..", "a/b", "."} {
		h, _ := s.up()
		spec.Volumes = []driver.Volume{{Name: name, Source: one}}
		if err := s.drv.Claim(s.ctx(), h, spec); err == nil {
			s.Errorf("a volume named %q was mounted", name)
		}
		s.destroy(h)
	}
}

// socketsInVolumes checks that a socket which the guest makes is no socket of the host, and that the guest reaches none of the host's.
func (s *suite) socketsInVolumes(a *agent, inside, source string) {
	s.Helper()
	got := a.ask(request{Op: "bind", Text: inside + "/guest.sock"})
	if got.Error == "" && got.Text != "hello" {
		s.Errorf("a socket of its own in a volume: %+v", got)
	}
	if info, err := os.Lstat(filepath.Join(source, "guest.sock")); err == nil {
		s.Errorf("the guest's socket is on the host: %v", info.Mode())
	}
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		s.Fatal(err)
	}
	if strings.Contains(string(table), "guest.sock") {
		s.Error("the guest's socket is one of the host's")
	}
	// What a volume brought along from elsewhere: the inode of a socket that nobody listens on.
	if err := unix.Mknod(filepath.Join(source, "dead.sock"), unix.S_IFSOCK|0o777, 0); err != nil {
		s.Fatal(err)
	}
	if got := a.ask(request{Op: "dial", Text: inside + "/dead.sock"}); got.Error == "" {
		s.Error("somebody answers on a socket that nobody listens on")
	}
	if got := a.ask(request{Op: "sh", Text: fmt.Sprintf("cd %s && rm -f dead.sock && ls -A", inside)}); strings.Contains(got.Text, "dead.sock") {
		s.Errorf("it cannot be removed: %+v", got)
	}
}
