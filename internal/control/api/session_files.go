package api

import (
	"context"
	"net/http"
	"path"
	"strings"

	"github.com/cayhq/cay"
)

// sessionFile is where a session's file is in the sandboxes that use it. Paths are absolute there, below cay.SessionPath, or relative to
// the session, with or without a slash before them; .. ends at the session.
func sessionFile(name string) string {
	clean := path.Clean("/" + name)
	if strings.HasPrefix(name, "/") && (clean == cay.SessionPath || strings.HasPrefix(clean, cay.SessionPath+"/")) {
		return clean
	}
	return path.Join(cay.SessionPath, clean)
}

// sessionPlace is a file of a session that a call may use, in a sandbox that has it.
func (a *API) sessionPlace(ctx context.Context, in SessionPath, name string) (place, error) {
	p, err := guestPath("path", sessionFile(name))
	if err != nil {
		return place{}, err
	}
	id, err := in.id()
	if err != nil {
		return place{}, err
	}
	sb, err := a.Sessions.Enter(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return place{}, err
	}
	node, err := a.Nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return place{}, err
	}
	return place{sandbox: sb.ID, node: node, path: p}, nil
}

// SessionFile is the file of a request.
type SessionFile struct {
	SessionPath
	Path string `query:"path" required:"true" doc:"Relative to the session, or absolute below /session; bytes that are not UTF-8 are percent-encoded like any other"`
}

type listSessionFilesInput struct {
	SessionPath
	Path string `query:"path" doc:"Relative to the session, or absolute below /session; default: all of it"`
	DirectoryQuery
}

func (a *API) listSessionFiles(ctx context.Context, in *listSessionFilesInput) (*listFilesOutput, error) {
	if err := checkCursor(in.Cursor); err != nil {
		return nil, err
	}
	p, err := a.sessionPlace(ctx, in.SessionPath, in.Path)
	if err != nil {
		return nil, err
	}
	return p.list(ctx, in.DirectoryQuery)
}

type readSessionFileInput struct {
	SessionFile
	FileConditions
}

func (a *API) readSessionFile(w http.ResponseWriter, r *http.Request, in *readSessionFileInput) error {
	p, err := a.sessionPlace(r.Context(), in.SessionPath, in.Path)
	if err != nil {
		return err
	}
	return a.sendFile(w, r, p, in.FileConditions)
}

func (a *API) headSessionFile(w http.ResponseWriter, r *http.Request, in *readSessionFileInput) error {
	p, err := a.sessionPlace(r.Context(), in.SessionPath, in.Path)
	if err != nil {
		return err
	}
	return p.head(w, r, in.FileConditions)
}

type writeSessionFileInput struct {
	SessionFile
	FileWrite
}

func (a *API) writeSessionFile(w http.ResponseWriter, r *http.Request, in *writeSessionFileInput) error {
	return a.putSessionFile(w, r, in, plainly)
}

func (a *API) putSessionFile(w http.ResponseWriter, r *http.Request, in *writeSessionFileInput, spell func(file) any) error {
	header, err := in.header()
	if err != nil {
		return err
	}
	p, err := a.sessionPlace(r.Context(), in.SessionPath, in.Path)
	if err != nil {
		return err
	}
	return a.receiveFile(w, r, p, header, spell)
}

type deleteSessionFileInput struct {
	SessionFile
	Recursive bool `query:"recursive" doc:"A directory with all that is in it"`
}

func (a *API) deleteSessionFile(ctx context.Context, in *deleteSessionFileInput) (*noContent, error) {
	if sessionFile(in.Path) == cay.SessionPath {
		return nil, cay.Errorf(cay.Unprocessable, "`path` is the session's own directory, which ends with the session; name what is in it").On("path")
	}
	p, err := a.sessionPlace(ctx, in.SessionPath, in.Path)
	if err != nil {
		return nil, err
	}
	return p.remove(ctx, in.Recursive)
}

// SessionDirectory is the directory of a session that an archive is of.
type SessionDirectory struct {
	SessionPath
	Path string `query:"path" doc:"Relative to the session, or absolute below /session; default: all of it"`
}

// archiveName is what a client would call an archive of the directory.
func (d SessionDirectory) archiveName() string {
	if p := sessionFile(d.Path); p != cay.SessionPath {
		return archiveName(p)
	}
	return d.ID
}

type readSessionArchiveInput struct {
	SessionDirectory
	Format string `query:"format" default:"tar.gz" enum:"tar,tar.gz,tar.zst"`
}

func (a *API) readSessionArchive(w http.ResponseWriter, r *http.Request, in *readSessionArchiveInput) error {
	p, err := a.sessionPlace(r.Context(), in.SessionPath, in.Path)
	if err != nil {
		return err
	}
	return a.sendArchive(w, r, p, in.archiveName(), in.Format)
}

type writeSessionArchiveInput struct {
	SessionDirectory
	Format string `query:"format" enum:"tar,tar.gz,tar.zst" doc:"Default: told by the first bytes"`
}

func (a *API) writeSessionArchive(w http.ResponseWriter, r *http.Request, in *writeSessionArchiveInput) error {
	p, err := a.sessionPlace(r.Context(), in.SessionPath, in.Path)
	if err != nil {
		return err
	}
	return a.receiveArchive(w, r, p, in.Format)
}
