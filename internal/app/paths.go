package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/config"
)

// paths are the places of one installation; ARCHITECTURE.md lists them.
type paths struct {
	data string
	run  string
}

func pathsOf(c config.Config) paths {
	p := paths{data: c.DataDir, run: c.RunDir}
	switch xdg := os.Getenv("XDG_RUNTIME_DIR"); {
	case p.run != "":
	case os.Geteuid() == 0:
		p.run = filepath.Join("/run/cay", p.instance())
	case xdg != "":
		p.run = filepath.Join(xdg, "cay", p.instance())
	default:
		p.run = filepath.Join(c.DataDir, "run")
	}
	return p
}

// instance names what this installation owns outside of its directories: cgroups, above all.
func (p paths) instance() string {
	sum := sha256.Sum256([]byte(p.data))
	return hex.EncodeToString(sum[:])[:12]
}

func (p paths) lock() string       { return filepath.Join(p.data, "lock") }
func (p paths) nodeLock() string   { return filepath.Join(p.data, "node.lock") }
func (p paths) key() string        { return filepath.Join(p.data, "key") }
func (p paths) url() string        { return filepath.Join(p.data, "url") }
func (p paths) server() string     { return filepath.Join(p.data, "server") }
func (p paths) serverLock() string { return filepath.Join(p.data, "server", "lock") }
func (p paths) store() string      { return filepath.Join(p.data, "server", "cay.db") }
func (p paths) blobs() string      { return filepath.Join(p.data, "server", "blobs") }
func (p paths) bin() string        { return filepath.Join(p.data, "bin") }
func (p paths) volumes() string    { return filepath.Join(p.data, "volumes") }
func (p paths) nodeSocket() string { return filepath.Join(p.run, "node.sock") }

// create makes the directories. The data directory can be passed through by the server's user but not listed; what belongs to the
// server is its own.
func (p paths) create(uid, gid int) error {
	for _, dir := range []string{p.data, filepath.Dir(p.run), p.run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll(p.server(), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", p.server(), err)
	}
	if uid < 0 {
		return nil
	}
	return handOver(p.server(), uid, gid)
}

// leave removes the run directory, and the one above it that all installations share, where they are empty: a sandbox that lives on
// keeps them.
func (p paths) leave() {
	for _, dir := range []string{p.run, filepath.Dir(p.run)} {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// handOver gives dir and what is in it to a user. A server that was taken over may be at work in there: nothing outside of dir is
// given away, neither through a directory that becomes a symbolic link meanwhile nor through a second name of a file.
func handOver(dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("hand over %s: %w", dir, err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = root.Lstat(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server's own work
		} else if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if int(st.Uid) == uid && int(st.Gid) == gid || !info.IsDir() && st.Nlink > 1 {
			return nil
		}
		return root.Lchown(path, uid, gid)
	})
	if err != nil {
		return fmt.Errorf("hand over %s: %w", dir, err)
	}
	return nil
}

// reachable checks that the server's user can pass through every directory above path: it gives up root before it opens the store.
func reachable(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("look at %s: %w", dir, err)
		}
		if st.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the server gives up root and could not reach %s, because %s lets nobody else pass: choose another CAY_DATA_DIR, or chmod o+x %s", path, dir, dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// serverUser resolves the configured user; -1, -1 when this process is not root and stays what it is.
func serverUser(c config.Config) (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return -1, -1, nil
	}
	if u, g, ok := strings.Cut(c.ServerUser, ":"); ok {
		uid, err1 := strconv.Atoi(u)
		gid, err2 := strconv.Atoi(g)
		return uid, gid, errors.Join(err1, err2)
	}
	u, err := user.Lookup(c.ServerUser)
	if err != nil {
		return 0, 0, fmt.Errorf("server_user: %w", err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return uid, gid, errors.Join(err1, err2)
}

// errLocked means that another process holds the lock.
var errLocked = errors.New("locked")

// lockFile takes the lock for as long as the file stays open and writes the pid into it. The kernel gives it up with the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			holder, _ := os.ReadFile(path)
			return nil, fmt.Errorf("%w by process %s", errLocked, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return f, nil
}

// writeFile replaces path at once with content, readable by its owner alone unless mode says more.
func writeFile(path string, content []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
