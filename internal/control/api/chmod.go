package api

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type chmodRequest struct {
	Path      string  `json:"path"`
	Mode      *string `json:"mode,omitzero" doc:"Octal" example:"0755"`
	User      *string `json:"user,omitzero" doc:"Whose the file becomes, with its group: a name or uid[:gid]. In the query, user is whose access counts"`
	Recursive bool    `json:"recursive,omitzero" doc:"With all that is below; symlinks there stay as they are"`
}

type chmodInput struct {
	Idempotent
	SandboxPath
	FileUser
	Payload payload[chmodRequest]
}

func (a *API) changeMode(ctx context.Context, in *chmodInput) (*fileOutput, error) {
	body := in.Payload.value
	req := &nodev1.ChmodRequest{Recursive: body.Recursive}
	if body.Mode == nil && body.User == nil {
		return nil, cay.Errorf(cay.InvalidRequest, "give `mode` or `user`").On("mode")
	}
	if body.Mode != nil {
		mode, err := parseMode("mode", *body.Mode)
		if err != nil {
			return nil, err
		}
		req.Mode, req.SetMode = mode, true
	}
	if body.User != nil {
		if *body.User == "" {
			return nil, cay.Errorf(cay.InvalidRequest, "`user` must be a name or uid[:gid]").On("user")
		}
		owner, err := FileUser{*body.User}.user()
		if err != nil {
			return nil, err
		}
		req.Owner = owner
	}
	p, err := a.bodyPlace(ctx, in.SandboxPath, in.FileUser, "path", body.Path, "")
	if err != nil {
		return nil, err
	}
	req.SandboxId, req.Path, req.User = string(p.sandbox), p.path, p.user
	return a.changeOnce(ctx, p, "chmod", in.IdempotencyKey, in.Payload.sum, http.StatusOK, func() (*connect.Response[nodev1.FileInfo], error) {
		return p.node.Chmod(ctx, connect.NewRequest(req))
	})
}

type composeRequest struct {
	Sources []string `json:"sources" minItems:"1" maxItems:"1000" doc:"Absolute paths of files, in their order; removed once the file is there"`
	Path    string   `json:"path"`
	Mode    *string  `json:"mode,omitzero" doc:"Octal; default: that of the file it replaces, else 0644" example:"0644"`
}

type composeInput struct {
	Idempotent
	SandboxPath
	FileUser
	Payload payload[composeRequest]
}

// maxSources bounds the files that one is composed of.
const maxSources = 1000

func (a *API) composeFile(ctx context.Context, in *composeInput) (*fileOutput, error) {
	body := in.Payload.value
	if len(body.Sources) == 0 || len(body.Sources) > maxSources {
		return nil, cay.Errorf(cay.InvalidRequest, "`sources` must name 1 to %d files", maxSources).On("sources")
	}
	req := &nodev1.ComposeRequest{}
	for _, source := range body.Sources {
		file, err := guestPath("sources", source)
		if err != nil {
			return nil, err
		}
		req.Sources = append(req.Sources, file)
	}
	if body.Mode != nil {
		mode, err := parseMode("mode", *body.Mode)
		if err != nil {
			return nil, err
		}
		req.Mode, req.SetMode = mode, true
	}
	p, err := a.bodyPlace(ctx, in.SandboxPath, in.FileUser, "path", body.Path, "")
	if err != nil {
		return nil, err
	}
	req.SandboxId, req.Path, req.User = string(p.sandbox), p.path, p.user
	return a.changeOnce(ctx, p, "compose", in.IdempotencyKey, in.Payload.sum, http.StatusOK, func() (*connect.Response[nodev1.FileInfo], error) {
		return p.node.Compose(ctx, connect.NewRequest(req))
	})
}
