package cli

import (
	"context"
	"path"
	"strings"

	"github.com/cayhq/cay/client"
)

// place is one side of a copy: a path of this machine, or of a sandbox.
type place struct {
	sandbox string // a reference; "" for this machine
	path    string // "-" of this machine is standard input or output
}

// parsePlace reads SBX:PATH or a local path. A local path with a colon needs a slash before it, as in ./a:b.
func parsePlace(s string) place {
	ref, p, ok := strings.Cut(s, ":")
	if !ok || ref == "" || strings.ContainsAny(ref, "/\\") || strings.HasPrefix(ref, ".") {
		return place{path: s}
	}
	return place{sandbox: ref, path: p}
}

func (p place) remote() bool { return p.sandbox != "" }

// resolve finds the sandbox and makes the path absolute; a relative one is of the sandbox's working directory.
func (p place) resolve(ctx context.Context, c *client.Client) (place, error) {
	id, err := resolve(ctx, c, p.sandbox, false)
	if err != nil {
		return p, err
	}
	if strings.HasPrefix(p.path, "/") {
		return place{id, p.path}, nil
	}
	sb, err := c.Get(ctx, id)
	if err != nil {
		return p, err
	}
	dir := sb.Workdir
	if dir == "" {
		dir = "/workspace"
	}
	if p.path == "" {
		return place{id, dir}, nil
	}
	return place{id, strings.TrimSuffix(dir, "/") + "/" + p.path}, nil // ".." is for the sandbox to resolve
}

// base is the last element of a path as its writer meant it; "" for one that has none.
func base(p string) string {
	switch b := path.Base(strings.TrimRight(p, "/")); b {
	case ".", "..", "/":
		return ""
	default:
		return b
	}
}
