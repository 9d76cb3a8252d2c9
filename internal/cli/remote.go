package cli

import (
	"context"
	"io"
	"iter"
	"path"
	"strings"

	"github.com/cayhq/cay/client"
)

// place is one side of a copy: a path of this machine, of a sandbox, or of a session.
type place struct {
	sandbox string // a reference, of a session where it begins with ses_; "" for this machine
	path    string // "-" of this machine is standard input or output
}

// tree is the files of a sandbox or of a session.
type tree interface {
	Stat(ctx context.Context, path string) (*client.FileInfo, error)
	List(ctx context.Context, path string, depth int) iter.Seq2[client.FileInfo, error]
	Read(ctx context.Context, path string, o client.ReadOptions) (*client.FileReader, error)
	Write(ctx context.Context, path string, content io.Reader, o client.WriteOptions) (*client.FileInfo, error)
	CopyTo(ctx context.Context, local, remote string, o client.CopyOptions) (*client.CopyReport, error)
	CopyFrom(ctx context.Context, remote, local string, o client.CopyOptions) (*client.CopyReport, error)
	DownloadArchive(ctx context.Context, path string, w io.Writer, o client.ArchiveOptions) (int64, error)
}

// parsePlace reads SBX:PATH, SES:PATH or a local path. A local path with a colon needs a slash before it, as in ./a:b.
func parsePlace(s string) place {
	ref, p, ok := strings.Cut(s, ":")
	if !ok || ref == "" || strings.ContainsAny(ref, "/\\") || strings.HasPrefix(ref, ".") {
		return place{path: s}
	}
	return place{sandbox: ref, path: p}
}

func (p place) remote() bool { return p.sandbox != "" }

func (p place) ofSession() bool { return strings.HasPrefix(p.sandbox, sessionPrefix) }

// open finds the files that the place is among, and its path as they take it. Whoever is "" is the sandbox's own user.
func (p place) open(ctx context.Context, c *client.Client, user string) (tree, string, error) {
	if p.ofSession() {
		if user != "" {
			return nil, "", usagef("the files of a session are of its one user; leave out -u")
		}
		f, err := sessionFiles(ctx, c, p.sandbox)
		return f, p.path, err
	}
	p, err := p.resolve(ctx, c)
	if err != nil {
		return nil, "", err
	}
	return filesAs(c, p.sandbox, user), p.path, nil
}

func filesAs(c *client.Client, sandbox, user string) *client.Files {
	f := c.Files(sandbox)
	if user != "" {
		f = f.As(user)
	}
	return f
}

func sessionFiles(ctx context.Context, c *client.Client, ref string) (*client.SessionFiles, error) {
	id, err := resolveSession(ctx, c, ref, false)
	if err != nil {
		return nil, err
	}
	return c.Sessions().Files(id), nil
}

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
