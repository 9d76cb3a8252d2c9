package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/mounts"
)

const mib = 1 << 20

// open opens a store in a directory of its own, and checks at the end that nothing of it is left on the host.
func open(t *testing.T) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CAY_TEST_REQUIRE_ALL") != "" {
			t.Fatal("volumes are tested as root")
		}
		t.Skip("not root")
	}
	dir := filepath.Join(t.TempDir(), "volumes")
	t.Cleanup(func() {
		left, err := mounts.Below(dir)
		if err != nil {
			t.Error(err)
		}
		for _, point := range left {
			t.Errorf("%s is still mounted", point)
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		if err := (&Store{dir: dir, mkfs: "any"}).Close(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		err = poll(ctx, func() (bool, error) { return len(loopsBelow(t, dir)) == 0, nil })
		if err != nil {
			t.Errorf("loop devices are left: %v", loopsBelow(t, dir))
		}
	})
	return reopen(t, dir)
}

func reopen(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if why := s.Unusable(); why != "" {
		t.Fatal(why)
	}
	return s
}

func loopsBelow(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
			out = append(out, string(text))
		}
	}
	return out
}

func (s *Store) mustCreate(t *testing.T, name string, bytes int64) {
	t.Helper()
	if _, err := s.Create(t.Context(), name, bytes); err != nil {
		t.Fatal(err)
	}
}

func (s *Store) mustAttach(t *testing.T, name, user string) *Use {
	t.Helper()
	u, err := s.Attach(t.Context(), name, user)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *Use) mustRelease(t *testing.T) {
	t.Helper()
	if err := u.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, what string, err error, reason cay.ErrorReason) {
	t.Helper()
	if cay.ReasonOf(err) != reason {
		t.Errorf("%s: %v, want %s", what, err, reason)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAVolumeKeepsItsFilesFromUseToUse(t *testing.T) {
	s := open(t)
	info, err := s.Create(t.Context(), "one", 32*mib)
	if err != nil || info.Name != "one" || info.Bytes != 32*mib || info.Used != 0 || len(info.Users) != 0 {
		t.Fatalf("created: %+v, %v", info, err)
	}
	if again, err := s.Create(t.Context(), "one", 64*mib); err != nil || again.Bytes != 32*mib {
		t.Errorf("created again: %+v, %v", again, err)
	}
	a, b := s.mustAttach(t, "one", "sbx_a"), s.mustAttach(t, "one", "sbx_b")
	if a.Dir() != b.Dir() {
		t.Errorf("two directories: %s and %s", a.Dir(), b.Dir())
	}
	dir, err := os.Lstat(a.Dir())
	if err != nil || dir.Mode() != os.ModeDir|0o755 || dir.Sys().(*syscall.Stat_t).Uid != owner || dir.Sys().(*syscall.Stat_t).Gid != owner {
		t.Errorf("the directory: %v, %v", dir, err)
	}
	if entries, err := os.ReadDir(a.Dir()); err != nil || len(entries) != 0 {
		t.Errorf("a new volume shows %v, %v", entries, err)
	}
	write(t, filepath.Join(a.Dir(), "file"), strings.Repeat("x", mib))
	if got := s.List(); len(got) != 1 || !slices.Equal(got[0].Users, []string{"sbx_a", "sbx_b"}) || got[0].Used < mib {
		t.Errorf("listed: %+v", got)
	}
	a.mustRelease(t)
	if got := read(t, filepath.Join(b.Dir(), "file")); len(got) != mib {
		t.Errorf("after the end of one user the file has %d bytes", len(got))
	}
	b.mustRelease(t)
	if left, err := mounts.Below(s.dir); err != nil || len(left) > 0 {
		t.Errorf("without users there are %v, %v", left, err)
	}
	c := s.mustAttach(t, "one", "sbx_c")
	if got := read(t, filepath.Join(c.Dir(), "file")); len(got) != mib {
		t.Errorf("in the next use the file has %d bytes", len(got))
	}
	wants(t, "delete while it is used", s.Delete(t.Context(), "one"), cay.Conflict)
	c.mustRelease(t)
	for range 2 {
		if err := s.Delete(t.Context(), "one"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 0 || len(s.List()) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	_, err = s.Attach(t.Context(), "one", "sbx_d")
	wants(t, "attach what is not there", err, cay.Unprocessable)
}

func TestAVolumeEndsAtItsBoundAndHurtsNobody(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "full", 32*mib)
	s.mustCreate(t, "other", 32*mib)
	u, v := s.mustAttach(t, "full", "a"), s.mustAttach(t, "other", "b")
	defer u.mustRelease(t)
	defer v.mustRelease(t)
	f, err := os.Create(filepath.Join(u.Dir(), "big"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, io.LimitReader(endless{}, 64*mib))
	if f.Close(); !errors.Is(err, unix.ENOSPC) || n < 20*mib || n > 32*mib {
		t.Errorf("%d bytes fit into 32 MiB: %v", n, err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	files := 0
	for ; files < 100_000; files++ {
		if err = os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint(files)), nil, 0o600); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) || files < 1000 || files > 32*mib/bytesPerInode {
		t.Errorf("%d files fit: %v", files, err)
	}
	write(t, filepath.Join(v.Dir(), "file"), strings.Repeat("y", 16*mib))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestSetuidAndDevicesAreInertInAVolume(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "one", 16*mib)
	u := s.mustAttach(t, "one", "a")
	defer u.mustRelease(t)
	device := filepath.Join(u.Dir(), "null")
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Open(device); !errors.Is(err, unix.EACCES) {
		t.Errorf("a device was opened: %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(u.Dir(), &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags %x, %v", st.Flags, err)
	}
}

func TestAVolumeNeedsItsRoomOnTheHostNow(t *testing.T) {
	s := open(t)
	s.free = func() (int64, error) { return 31 * mib, nil }
	_, err := s.Create(t.Context(), "big", 32*mib)
	wants(t, "a volume larger than what is free", err, cay.DiskFull)
	s.mustCreate(t, "small", 16*mib)
	_, err = s.Import(t.Context(), "big", 32*mib, "", bytes.NewReader(nil))
	wants(t, "an import larger than what is free", err, cay.DiskFull)
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestAVolumeTakesLittleOfTheDiskWhileItIsEmpty(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "thin", 1<<30)
	u := s.mustAttach(t, "thin", "a")
	big := filepath.Join(u.Dir(), "big")
	write(t, big, strings.Repeat("x", 64*mib))
	u.mustRelease(t)
	before := blocks(t, s.image("thin"))
	u = s.mustAttach(t, "thin", "a")
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	u.mustRelease(t)
	if after := blocks(t, s.image("thin")); before < 64*mib || after > 8*mib {
		t.Errorf("with 64 MiB it takes %d bytes, without them %d", before, after)
	}
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestNamesAndSizesThatCannotBeAreRefused(t *testing.T) {
	s := open(t)
	for _, name := range []string{"", ".", "..", "a/b", "A", "a_b", "a\x00", strings.Repeat("a", 65), tempName} {
		_, err := s.Create(t.Context(), name, 16*mib)
		wants(t, fmt.Sprintf("create %q", name), err, cay.InvalidRequest)
		wants(t, fmt.Sprintf("delete %q", name), s.Delete(t.Context(), name), cay.InvalidRequest)
		_, err = s.Attach(t.Context(), name, "a")
		wants(t, fmt.Sprintf("attach %q", name), err, cay.InvalidRequest)
	}
	for _, size := range []int64{-1, 0, mib, maxBytes + 1, 1<<63 - 1} {
		_, err := s.Create(t.Context(), "one", size)
		wants(t, fmt.Sprintf("%d bytes", size), err, cay.Unprocessable)
	}
	if info, err := s.Create(t.Context(), strings.Repeat("a", 64), 16*mib+1); err != nil || info.Bytes != 16*mib+blockSize {
		t.Errorf("an odd size: %+v, %v", info, err)
	}
}

func TestARestartFindsWhatIsMountedAndEndsWhatNobodyUses(t *testing.T) {
	s := open(t)
	for _, name := range []string{"used", "orphan", "idle"} {
		s.mustCreate(t, name, 16*mib)
	}
	used, orphan := s.mustAttach(t, "used", "a"), s.mustAttach(t, "orphan", "b")
	write(t, filepath.Join(used.Dir(), "file"), "kept")
	write(t, filepath.Join(orphan.Dir(), "file"), "kept too")
	left := filepath.Join(s.dir, tempName+"123")
	if err := errors.Join(os.MkdirAll(filepath.Join(left, mountName), 0o700), os.WriteFile(filepath.Join(left, imageName), nil, 0o600)); err != nil {
		t.Fatal(err)
	}

	s = reopen(t, s.dir)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was cut off is left: %v", err)
	}
	again, err := s.Adopt("used", "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Adopt("gone", "a")
	wants(t, "adopt what is not there", err, cay.Unprocessable)
	if err := s.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := mounts.Below(s.dir); err != nil || len(got) != 1 || got[0] != s.mountPoint("used") {
		t.Errorf("after the restart there are %v, %v", got, err)
	}
	other := s.mustAttach(t, "used", "c")
	if got := read(t, filepath.Join(other.Dir(), "file")); got != "kept" {
		t.Errorf("the file says %q", got)
	}
	again.mustRelease(t)
	other.mustRelease(t)
	u := s.mustAttach(t, "orphan", "d")
	if got := read(t, filepath.Join(u.Dir(), "file")); got != "kept too" {
		t.Errorf("the orphan's file says %q", got)
	}
	u.mustRelease(t)
	if got := s.List(); len(got) != 3 || got[0].Bytes != 16*mib {
		t.Errorf("listed: %+v", got)
	}
}

// namespace starts a process with a copy of all mounts.
func namespace(t *testing.T, propagation string) (end func()) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", propagation, "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(end)
	err := poll(t.Context(), func() (bool, error) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "sleep\n", err
	})
	if err != nil {
		t.Fatal(err)
	}
	return end
}

func TestACopyOfTheHostsMountsThatFollowsThemKeepsNoVolume(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "one", 16*mib)
	u := s.mustAttach(t, "one", "a")
	namespace(t, "slave")
	u.mustRelease(t)
	if loops := loopsBelow(t, s.dir); len(loops) > 0 {
		t.Errorf("it is still mounted there: %v", loops)
	}
}

func TestAVolumeThatAnotherNamespaceKeepsIsUsedExportedAndDeletedAllTheSame(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "one", 16*mib)
	u := s.mustAttach(t, "one", "a")
	write(t, filepath.Join(u.Dir(), "file"), "first")
	end := namespace(t, "private")
	for i := range 3 {
		u.mustRelease(t)
		if loops := loopsBelow(t, s.dir); len(loops) != 1 {
			t.Fatalf("the test wants it kept, and once: %v", loops)
		}
		var out bytes.Buffer
		d, err := s.Export(t.Context(), "one", &out)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("copy%d", i)
		if _, err := s.Import(t.Context(), name, 16*mib, d.SHA256, &out); err != nil {
			t.Fatal(err)
		}
		c := s.mustAttach(t, name, "c")
		if got := read(t, filepath.Join(c.Dir(), "file")); got != "first"+strings.Repeat(" more", i) {
			t.Errorf("the copy says %q", got)
		}
		c.mustRelease(t)
		u = s.mustAttach(t, "one", "b")
		f, err := os.OpenFile(filepath.Join(u.Dir(), "file"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(" more"); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	write(t, filepath.Join(u.Dir(), "big"), strings.Repeat("x", 8*mib))
	u.mustRelease(t)
	// A restart takes the mount above it away.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s.dir)
	f, err := os.Open(s.image("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	loop, err := loopOf(f)
	if err != nil || loop == nil {
		t.Fatalf("the device that is kept is not found after a restart: %v", err)
	}
	loop.Close()
	u = s.mustAttach(t, "one", "after")
	if got := read(t, filepath.Join(u.Dir(), "file")); got != "first more more more" {
		t.Errorf("after a restart it says %q", got)
	}
	u.mustRelease(t)
	kept, err := os.Open(s.image("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	if info, err := kept.Stat(); err != nil || info.Sys().(*syscall.Stat_t).Blocks > 0 {
		t.Errorf("a deleted volume takes disk: %+v, %v", info, err)
	}
	s.mustCreate(t, "one", 16*mib)
	u = s.mustAttach(t, "one", "d")
	if entries, err := os.ReadDir(u.Dir()); err != nil || len(entries) > 0 {
		t.Errorf("made anew it has %v, %v", entries, err)
	}
	u.mustRelease(t)
	end()
}

func TestManyUseAndMakeVolumesAtTheSameTime(t *testing.T) {
	s := open(t)
	var all sync.WaitGroup
	fault := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 4 {
		all.Go(func() {
			name := fmt.Sprintf("v%d", i%2)
			for range 5 {
				_, err := s.Create(t.Context(), name, 16*mib)
				fault(err)
				u, err := s.Attach(t.Context(), name, fmt.Sprint(i))
				if err != nil {
					t.Error(err)
					continue
				}
				fault(os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint(i)), []byte("x"), 0o600))
				fault(u.Release(t.Context()))
			}
		})
	}
	all.Wait()
	for _, i := range s.List() {
		if len(i.Users) > 0 {
			t.Errorf("left: %+v", i)
		}
		fault(s.Delete(t.Context(), i.Name))
	}
}

func TestAMountThatSomebodyHoldsIsUnmountedOnceTheyLetGo(t *testing.T) {
	s := open(t)
	s.mustCreate(t, "one", 16*mib)
	u := s.mustAttach(t, "one", "a")
	f, err := os.Create(filepath.Join(u.Dir(), "held"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wants(t, "release while a file is open", u.Release(ctx), cay.Unavailable)
	wants(t, "delete meanwhile", s.Delete(ctx, "one"), cay.Unavailable)
	f.Close()
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Errorf("delete afterwards: %v", err)
	}
}

func TestWithoutItsToolsThereAreNoVolumesAndThatIsSaid(t *testing.T) {
	s := &Store{unusable: "volumes need mkfs.ext4: install e2fsprogs"}
	_, err := s.Create(t.Context(), "one", 16*mib)
	wants(t, "create", err, cay.NotImplemented)
	if !strings.Contains(err.Error(), "install e2fsprogs") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	_, err = s.Attach(t.Context(), "one", "a")
	wants(t, "attach", err, cay.NotImplemented)
	if err := s.Settle(t.Context()); err != nil || len(s.List()) != 0 {
		t.Errorf("settle: %v", err)
	}
}
