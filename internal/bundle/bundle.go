// Package bundle holds the two executables that a node needs, runsc and the agent, compressed inside this binary, and unpacks them
// into a folder named by their digest. A sandbox is served to its end by the runsc that started it, so that folders of earlier
// digests stay until nothing uses them. It is not an installer: it writes nowhere else and starts nothing.
package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"
)

//go:embed all:files
var files embed.FS

// ErrEmpty means that the executables are not in this binary.
var ErrEmpty = errors.New("this binary was built without gVisor: run make build")

// manifestName is written last into a digest's folder: its presence says that the rest is whole.
const manifestName = "manifest.json"

// Paths is where the executables are.
type Paths struct {
	Digest string // SHA-256 over both, hex; names the folder
	Dir    string
	Runsc  string
	Agent  string
}

// executables, in the order in which the digest covers them.
var executables = []string{"runsc", "cay-agent"}

// Unpack puts the executables below dir, into a folder named by their digest, and says where they are. A folder that is there
// already is used when its files still have the recorded sizes and belong to this user alone; else it is made anew. Processes may
// call it for one dir at the same time.
func Unpack(ctx context.Context, dir string) (Paths, error) { return unpack(ctx, files, dir) }

func unpack(ctx context.Context, from fs.FS, dir string) (Paths, error) {
	packed := make(map[string][]byte, len(executables))
	sum := sha256.New()
	for _, name := range executables {
		data, err := fs.ReadFile(from, "files/"+name+".zst")
		if errors.Is(err, fs.ErrNotExist) {
			return Paths{}, ErrEmpty
		} else if err != nil {
			return Paths{}, fmt.Errorf("read the embedded %s: %w", name, err)
		}
		packed[name] = data
		fmt.Fprintf(sum, "%s %d\n", name, len(data))
		sum.Write(data)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	target := filepath.Join(dir, digest)
	paths := Paths{Digest: digest, Dir: target, Runsc: filepath.Join(target, "runsc"), Agent: filepath.Join(target, "cay-agent")}
	if whole(target) {
		return paths, nil
	}

	if err := os.MkdirAll(dir, 0o711); err != nil {
		return Paths{}, fmt.Errorf("make %s: %w", dir, err)
	}
	tmp, err := os.MkdirTemp(dir, ".unpack-*")
	if err != nil {
		return Paths{}, fmt.Errorf("unpack the executables: %w", err)
	}
	defer os.RemoveAll(tmp)
	sizes := make(map[string]int64, len(executables))
	for _, name := range executables {
		if err := ctx.Err(); err != nil {
			return Paths{}, err
		}
		if sizes[name], err = inflate(packed[name], filepath.Join(tmp, name)); err != nil {
			return Paths{}, fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	if err := finish(tmp, sizes); err != nil {
		return Paths{}, fmt.Errorf("unpack the executables: %w", err)
	}
	if err := replace(tmp, target); err != nil {
		return Paths{}, fmt.Errorf("unpack the executables: %w", err)
	}
	return paths, syncDir(dir)
}

// whole reports that target holds what its manifest says, and that nobody else can write to it.
func whole(target string) bool {
	b, err := os.ReadFile(filepath.Join(target, manifestName))
	if err != nil {
		return false
	}
	var sizes map[string]int64
	if json.Unmarshal(b, &sizes) != nil {
		return false
	}
	for _, name := range executables {
		st, err := os.Lstat(filepath.Join(target, name))
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o755 || st.Size() != sizes[name] || !mine(st) {
			return false
		}
	}
	st, err := os.Lstat(target)
	return err == nil && st.IsDir() && st.Mode().Perm()&0o022 == 0 && mine(st)
}

func mine(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

func inflate(packed []byte, path string) (int64, error) {
	d, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return 0, err
	}
	defer d.Close()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, d)
	return n, errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close())
}

func finish(tmp string, sizes map[string]int64) error {
	b, err := json.Marshal(sizes)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(tmp, manifestName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	// The agent is shown inside sandboxes, also to users that are not this one.
	return errors.Join(err, f.Sync(), f.Close(), os.Chmod(tmp, 0o755), syncDir(tmp))
}

// replace puts tmp in target's place. A damaged target is moved aside first, never deleted in place: a running sandbox may have its
// files open. Losing a race against another process that unpacks the same is a success.
func replace(tmp, target string) error {
	for range 2 {
		err := os.Rename(tmp, target)
		if err == nil || whole(target) {
			return nil
		}
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		aside := tmp + ".damaged"
		if err := os.Rename(target, aside); err != nil {
			return err
		}
		defer os.RemoveAll(aside)
	}
	return fmt.Errorf("%s keeps coming back damaged", target)
}

// Prune removes the folders below dir whose digest is not in use, and what an interrupted Unpack left there. Call it when no Unpack
// runs.
func Prune(dir string, inUse map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list the unpacked executables: %w", err)
	}
	var errs []error
	for _, e := range entries {
		digest := len(e.Name()) == 2*sha256.Size
		if digest && !inUse[e.Name()] || strings.HasPrefix(e.Name(), ".unpack-") {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
