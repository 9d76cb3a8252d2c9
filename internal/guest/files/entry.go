package files

import (
	"archive/tar"
	"path"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

// entryPath returns where below the target an entry of an archive belongs: names with single slashes between them, none of them
// "." or "..", "" for the target itself. A name that would lead elsewhere is an error that says so.
func entryPath(what, name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", errLeaves(what, name, "it is absolute")
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", errLeaves(what, name, "it holds ..")
	case strings.Contains(name, "\x00"):
		return "", cay.Errorf(cay.Unprocessable, "the %s %q holds a NUL byte; nothing was written", what, clipped(name)).On("body")
	case len(name) > maxPath:
		return "", cay.Errorf(cay.Unprocessable, "the %s %q… has %d bytes, at most %d are possible; nothing was written", what, clipped(name), len(name), maxPath).On("body")
	}
	rel := path.Clean(name)
	if rel == "." {
		return "", nil
	}
	if strings.Count(rel, "/") >= maxLevels {
		return "", cay.Errorf(cay.Unprocessable, "the %s %q… lies more than %d deep; nothing was written", what, clipped(name), maxLevels).On("body")
	}
	return rel, nil
}

func errLeaves(what, name, why string) error {
	return cay.Errorf(cay.Unprocessable, "the %s %q would leave the path: %s; nothing was written", what, clipped(name), why).On("body")
}

// clipped shortens a name for a sentence about it.
func clipped(name string) string {
	const most = 200
	if len(name) > most {
		return name[:most]
	}
	return name
}

// entryKind is what becomes of an entry.
type entryKind int

const (
	skipEntry entryKind = iota // devices, FIFOs and whatever else has no content of its own
	metaEntry                  // says something about others
	fileEntry
	directoryEntry
	symlinkEntry
	hardLinkEntry
)

func kindOf(flag byte) entryKind {
	switch flag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return fileEntry
	case tar.TypeDir:
		return directoryEntry
	case tar.TypeSymlink:
		return symlinkEntry
	case tar.TypeLink:
		return hardLinkEntry
	case tar.TypeXGlobalHeader:
		return metaEntry
	}
	return skipEntry
}

// endOf watches a tar for the zeros that end it: one without them was cut.
type endOf struct {
	zeros int64 // at the end of what was read so far
}

func (e *endOf) Write(b []byte) (int, error) {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	if n == 0 {
		e.zeros += int64(len(b))
	} else {
		e.zeros = int64(len(b) - n)
	}
	return len(b), nil
}

func (e *endOf) whole() bool { return e.zeros >= 512 }
