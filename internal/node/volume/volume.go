// Package volume keeps volumes: bounded file systems that outlive the sandboxes which mount them. Each is an ext4 in a sparse file,
// mounted once on the host by a loop device for as long as somebody uses it, so that its bound on bytes and files is the kernel's. It
// knows nothing of sandboxes but their names, shows them nothing by itself, and never looks into what a volume holds.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

const (
	imageName = "image" // the file system; its size is the volume's bound
	mountName = "mount" // where it is mounted
	dataName  = "data"  // the directory in it that is shown; lost+found lies beside it
	tempName  = ".new-" // of what is made or removed; nothing after a restart

	blockSize = 4096
	// minBytes leaves room for the journal; below it mkfs makes file systems of another kind.
	minBytes = 8 << 20
	maxBytes = 1 << 44
	// bytesPerInode bounds the number of files: one for each so many bytes of the volume.
	bytesPerInode = 16384
	// owner is the user and group of sandboxes.
	owner = 2000
)

var namePattern = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Info is a volume as it is now.
type Info struct {
	Name  string
	Bytes int64    // its bound
	Used  int64    // by files; 0 while it is not mounted
	Users []string // who uses it, sorted
}

// Store keeps the volumes in one directory. It is safe for concurrent use.
type Store struct {
	dir      string
	mkfs     string
	unusable string
	log      *slog.Logger
	free     func() (int64, error) // bytes that the host could give now

	mu      sync.Mutex
	volumes map[string]*volume // guarded by mu
}

type volume struct {
	name string

	// settled is closed once the volume has been made, or has failed to be.
	settled chan struct{}

	moving  sync.Mutex // held while it is mounted or unmounted; before Store.mu
	mounted bool       // guarded by moving

	bytes    int64         // guarded by Store.mu
	uses     map[*Use]bool // guarded by Store.mu
	reserved string        // guarded by Store.mu; what is being done with it that nobody may use it meanwhile
}

const deleting = "deleted" // as volume.reserved

var settled = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Unusable says why there can be no volumes here, for people; "" when there can.
func (s *Store) Unusable() string { return s.unusable }

// Dir is where the volumes are.
func (s *Store) Dir() string { return s.dir }

func (s *Store) image(name string) string      { return filepath.Join(s.dir, name, imageName) }
func (s *Store) mountPoint(name string) string { return filepath.Join(s.dir, name, mountName) }

func (s *Store) check(name string) error {
	if s.unusable != "" {
		return cay.Errorf(cay.NotImplemented, "this worker has no volumes: %s", s.unusable)
	}
	if !namePattern.MatchString(name) {
		return cay.Errorf(cay.InvalidRequest, "a volume's name has 1 to 64 of a-z, 0-9 and -").On("volume")
	}
	return nil
}

// Create makes an empty volume of so many bytes, rounded up to blocks. One that is there is found, whatever its size. It is a
// cay.DiskFull when the host has less than that free: a volume takes only what it holds, but what it promises must be there now.
func (s *Store) Create(ctx context.Context, name string, bytes int64) (Info, error) {
	if err := s.check(name); err != nil {
		return Info{}, err
	}
	bytes, err := round(bytes)
	if err != nil {
		return Info{}, err
	}
	v, found, err := s.enter(ctx, name)
	if err != nil {
		return Info{}, err
	}
	if found {
		return s.info(v), s.notDeleting(v)
	}
	if err = s.make(ctx, name, bytes); err != nil {
		err = fmt.Errorf("create volume %s: %w", name, full(err))
	}
	s.settle(v, bytes, err)
	return s.info(v), err
}

func (s *Store) notDeleting(v *volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.reserved == deleting {
		return cay.Errorf(cay.Conflict, "volume %s is being %s", v.name, v.reserved)
	}
	return nil
}

// round makes a size one of a volume's.
func round(bytes int64) (int64, error) {
	if bytes < minBytes || bytes > maxBytes {
		return 0, cay.Errorf(cay.Unprocessable, "a volume has %d MiB to %d TiB", minBytes>>20, int64(maxBytes)>>40).On("bytes")
	}
	return (bytes + blockSize - 1) / blockSize * blockSize, nil
}

// enter finds the volume, waiting for one that is being made, or enters one that the caller has to make and settle.
func (s *Store) enter(ctx context.Context, name string) (v *volume, found bool, err error) {
	for {
		s.mu.Lock()
		v := s.volumes[name]
		if v == nil {
			v = &volume{name: name, settled: make(chan struct{}), uses: map[*Use]bool{}, reserved: "made"}
			s.volumes[name] = v
			s.mu.Unlock()
			return v, false, nil
		}
		wait := v.settled
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		s.mu.Lock()
		current := s.volumes[name] == v
		s.mu.Unlock()
		if current {
			return v, true, nil
		}
	}
}

func (s *Store) settle(v *volume, bytes int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.volumes, v.name)
	}
	v.bytes, v.reserved = bytes, ""
	close(v.settled)
}

// make makes the file system under another name and gives it its own when it is whole and on disk.
func (s *Store) make(ctx context.Context, name string, bytes int64) error {
	if err := s.room(bytes); err != nil {
		return err
	}
	temp, err := s.temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	image := filepath.Join(temp, imageName)
	if err := s.format(ctx, image, bytes); err != nil {
		return err
	}
	return s.place(temp, name)
}

func (s *Store) temporary() (string, error) {
	temp, err := os.MkdirTemp(s.dir, tempName)
	if err == nil {
		err = os.Mkdir(filepath.Join(temp, mountName), 0o700)
	}
	return temp, err
}

// place gives a directory with an image its name, for good.
func (s *Store) place(temp, name string) error {
	if err := sync2(filepath.Join(temp, imageName), temp); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(s.dir, name)); err != nil {
		return err
	}
	return sync2(s.dir)
}

// room checks that the host has so much free.
func (s *Store) room(bytes int64) error {
	free, err := s.free()
	if err != nil {
		return err
	}
	if free < bytes {
		return cay.Errorf(cay.DiskFull, "the worker's disk has %d MiB free, a volume of %d MiB needs that much", free>>20, bytes>>20)
	}
	return nil
}

func (s *Store) freeOnHost() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, fmt.Errorf("ask for the free disk: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// format makes an empty ext4 in a new file. Its tables are not written out: a sparse file reads as zeros.
func (s *Store) format(ctx context.Context, image string, bytes int64) error {
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(bytes), f.Close())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.mkfs, "-q", "-F", "-t", "ext4", "-b", fmt.Sprint(blockSize), "-i", fmt.Sprint(bytesPerInode), "-I", "256",
		"-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", image)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("mkfs.ext4: %w: %.300s", err, out)
	}
	return nil
}

// full makes a cay.DiskFull of an error that says so.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cay.Errorf(cay.DiskFull, "the worker's disk is full").Because(err)
	}
	return err
}

// sync2 writes files and directories to the disk.
func sync2(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// List names all volumes, by name.
func (s *Store) List() []Info {
	s.mu.Lock()
	var all []*volume
	for _, v := range s.volumes {
		select {
		case <-v.settled:
			all = append(all, v)
		default:
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *volume) int { return strings.Compare(a.name, b.name) })
	var out []Info
	for _, v := range all {
		out = append(out, s.info(v))
	}
	return out
}

func (s *Store) info(v *volume) Info {
	i := Info{Name: v.name, Used: s.used(v)}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.Bytes = v.bytes
	for u := range v.uses {
		i.Users = append(i.Users, u.user)
	}
	slices.Sort(i.Users)
	return i
}

// used is 0 also while the volume is being mounted or unmounted: a list waits for nobody.
func (s *Store) used(v *volume) int64 {
	if !v.moving.TryLock() {
		return 0
	}
	defer v.moving.Unlock()
	var st unix.Statfs_t
	if !v.mounted || unix.Statfs(s.mountPoint(v.name), &st) != nil {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// reserve keeps a volume from being used until release is called, and unmounts it: nothing is left in flight then. One that is in use
// is a cay.Conflict, one that is not there a cay.NotFound.
func (s *Store) reserve(ctx context.Context, name, what string) (v *volume, release func(), err error) {
	s.mu.Lock()
	v = s.volumes[name]
	switch {
	case v == nil:
		err = cay.Errorf(cay.NotFound, "there is no volume %s on this worker", name)
	case v.reserved != "":
		err = cay.Errorf(cay.Conflict, "volume %s is being %s", name, v.reserved)
	case len(v.uses) > 0:
		var users []string
		for u := range v.uses {
			users = append(users, u.user)
		}
		slices.Sort(users)
		err = cay.Errorf(cay.Conflict, "volume %s is in use by %s", name, strings.Join(users, ", ")).With("sandbox_id", users[0])
	default:
		v.reserved = what
	}
	s.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.reserved = ""
	}
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := s.unmount(ctx, v); err != nil {
		release()
		return nil, nil, err
	}
	return v, release, nil
}

// Delete removes a volume and all that it holds. One that is not there is gone already; one in use is a cay.Conflict.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := s.check(name); err != nil {
		return err
	}
	v, release, err := s.reserve(ctx, name, deleting)
	if cay.ReasonOf(err) == cay.NotFound {
		return nil
	} else if err != nil {
		return err
	}
	defer release()
	temp, err := os.MkdirTemp(s.dir, tempName)
	if err == nil {
		defer os.RemoveAll(temp)
		err = os.Rename(filepath.Join(s.dir, name), filepath.Join(temp, name)) // from here on it is gone, whatever comes
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		err = sync2(s.dir)
	}
	if err != nil {
		return fmt.Errorf("delete volume %s: %w", name, err)
	}
	s.mu.Lock()
	delete(s.volumes, v.name)
	s.mu.Unlock()
	if err := errors.Join(empty(filepath.Join(temp, name, imageName)), os.RemoveAll(temp)); err != nil {
		return fmt.Errorf("delete volume %s: %w", name, err)
	}
	return nil
}

// empty gives what an image takes of the disk back now: to remove it is not enough while another mount namespace keeps it.
func empty(image string) error {
	f, err := os.OpenFile(image, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size())
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // then it is given back with the last who keeps it
	}
	return err
}
