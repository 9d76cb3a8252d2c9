package files

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"golang.org/x/sys/unix"
)

// merge moves what was extracted into its place, after a look at whether all of it can be.
func (x *extraction) merge() error {
	x.at.close()
	x.existing = map[string]bool{}
	if err := x.compare(x.stage, x.target, ""); err != nil {
		return err
	}
	if err := x.move(x.stage, x.target, ""); err != nil {
		if !x.renamed {
			return err
		}
		return cay.Errorf(cay.Conflict, "write archive: %v: a program in the sandbox changed it meanwhile; what was already in its place stays", err)
	}
	return x.finish()
}

// compare finds what stands in the way of a staged directory's content. Nothing is changed.
func (x *extraction) compare(stage, target int, prefix string) error {
	if empty, err := x.nothingIn(target); err != nil || empty {
		return err
	}
	return eachName(stage, func(name string) error {
		rel := prefix + name
		there, err := statAt(target, name)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return entryError(rel, err)
		}
		here, err := statAt(stage, name)
		if err != nil {
			return entryError(rel, err)
		}
		switch {
		case !isDir(&here) && !isDir(&there):
			return nil
		case !isDir(&here):
			return cay.Errorf(cay.Unprocessable, "the entry %q is a %s, and there is a directory of that name; nothing was written", clipped(rel), kind(here.Mode)).On("body")
		case there.Mode&unix.S_IFMT == unix.S_IFLNK:
			return errLeaves("entry", rel, "there is a symlink of that name in the way")
		case !isDir(&there):
			return cay.Errorf(cay.Unprocessable, "the entry %q is a directory, and there is a %s of that name; nothing was written", clipped(rel), kind(there.Mode)).On("body")
		case here.Dev != there.Dev:
			return cay.Errorf(cay.Unprocessable, "the directory %q is a file system of its own: send its content to it; nothing was written", clipped(rel)).On("body")
		}
		return x.both(stage, target, name, func(stage, target int) error {
			if err := unix.Faccessat(target, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
				return cay.Errorf(cay.Forbidden, "the directory %q may not be written to; nothing was written", clipped(rel))
			}
			x.existing[rel] = true
			return x.compare(stage, target, rel+"/")
		})
	})
}

// nothingIn reports whether a directory holds nothing but archives under way.
func (x *extraction) nothingIn(dir int) (bool, error) {
	fd, err := openDirectoryAt(dir, ".") // a place of its own to read from
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	err = eachName(fd, func(name string) error {
		if !strings.HasPrefix(name, staging) {
			return unix.EEXIST
		}
		return nil
	})
	if err == unix.EEXIST {
		return false, nil
	}
	return err == nil, err
}

// both opens a directory of the stage and its counterpart at the target.
func (x *extraction) both(stage, target int, name string, f func(stage, target int) error) error {
	from, err := openDirectoryAt(stage, name)
	if err != nil {
		return entryError(name, err)
	}
	defer unix.Close(from)
	to, err := openDirectoryAt(target, name)
	if err != nil {
		return entryError(name, err)
	}
	defer unix.Close(to)
	return f(from, to)
}

// move renames what a staged directory holds into the target.
func (x *extraction) move(stage, target int, prefix string) error {
	from, err := openDirectoryAt(stage, ".")
	if err != nil {
		return err
	}
	defer unix.Close(from)
	for {
		moved := 0
		// A directory may leave out names while it loses others: read it again until nothing moves.
		err := eachName(from, func(name string) error {
			rel := prefix + name
			if x.existing[rel] {
				return nil
			}
			if err := unix.Renameat(from, name, target, name); err != nil {
				return entryError(rel, err)
			}
			x.renamed = true
			moved++
			return nil
		})
		if err != nil {
			return err
		}
		if moved == 0 {
			break
		}
		if _, err := unix.Seek(from, 0, unix.SEEK_SET); err != nil {
			return err
		}
	}
	if _, err := unix.Seek(from, 0, unix.SEEK_SET); err != nil {
		return err
	}
	return eachName(from, func(name string) error { // what is left is at the target as well
		return x.both(from, target, name, func(stage, target int) error {
			return x.move(stage, target, prefix+name+"/")
		})
	})
}

// finish gives new directories their modes and times, those below first: from here on they may be closed to the user. What a program
// has moved away meanwhile is left alone.
func (x *extraction) finish() error {
	at := trail{root: x.target}
	defer at.close()
	paths := slices.Sorted(maps.Keys(x.directories))
	for _, rel := range slices.Backward(paths) {
		if x.existing[rel] {
			continue
		}
		meta := x.directories[rel]
		fd, err := at.find(rel)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&permissions != meta.mode {
			_ = unix.Fchmod(fd, meta.mode)
		}
		parent, name := path.Split(rel)
		if dir, err := at.find(strings.TrimSuffix(parent, "/")); err == nil {
			_ = unix.UtimesNanoAt(dir, name, []unix.Timespec{meta.mtime, meta.mtime}, unix.AT_SYMLINK_NOFOLLOW)
		}
	}
	return nil
}
