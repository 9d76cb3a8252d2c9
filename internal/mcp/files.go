package mcp

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

// workspace is where relative paths begin.
const workspace = "/workspace"

// absolute is a path as the API takes it. Models often leave the working directory out.
func absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return path.Join(workspace, p)
}

type listFilesInput struct {
	Path      string `json:"path,omitempty" jsonschema:"The directory to list: an absolute path; a relative one begins at /workspace, which is also the default"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Depth     int    `json:"depth,omitempty" jsonschema:"How many levels to list: 1 is the directory's own entries"`
	Limit     int    `json:"limit,omitempty" jsonschema:"How many entries to list at most"`
}

type fileEntry struct {
	Path       string `json:"path"`
	Type       string `json:"type" jsonschema:"file, directory, symlink or other"`
	SizeBytes  int64  `json:"size_bytes"`
	Mode       string `json:"mode" jsonschema:"Permission bits in octal"`
	ModifiedAt string `json:"modified_at,omitempty"`
	Target     string `json:"target,omitempty" jsonschema:"Of a symlink"`
}

func entryOf(i *client.FileInfo) fileEntry {
	p, _ := valid([]byte(i.Path))
	target, _ := valid([]byte(i.Target))
	return fileEntry{Path: p, Type: i.Type, SizeBytes: i.Size, Mode: fmt.Sprintf("%04o", i.Mode.Perm()), ModifiedAt: moment(i.ModifiedAt), Target: target}
}

type listFilesOutput struct {
	SandboxID string      `json:"sandbox_id"`
	Path      string      `json:"path"`
	Entries   []fileEntry `json:"entries"`
	More      bool        `json:"more" jsonschema:"There are more than are listed"`
}

type moveFileInput struct {
	From      string `json:"from" jsonschema:"What to move: an absolute path; a relative one begins at /workspace"`
	To        string `json:"to" jsonschema:"Its new path, whose directory must exist"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"true: replace a file that is at the new path"`
}

type moveFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	From      string `json:"from"`
	To        string `json:"to"`
}

type deleteFileInput struct {
	Path      string `json:"path" jsonschema:"The file or directory: an absolute path; a relative one begins at /workspace"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"true: a directory with all that is in it"`
}

type deleteFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
}

func (s *server) fileTools(to *sdk.Server) {
	add(s, to, "read_file", "Read a file of a sandbox: text, by lines if wanted, or a picture (png, jpeg, gif, webp), which comes as one. Other files come in base64, if they are small; use "+
		"download_file for large ones.",
		hints{title: "Read a file", readOnly: true, idempotent: true},
		limits{
			"encoding": by(`"auto"`, oneOf("auto", "text", "base64")), "start_line": between(1, 1<<31), "end_line": between(1, 1<<31),
			"max_bytes": by("65536", between(1, maxRead)),
		}, readFile)
	add(s, to, "write_file", "Write a file of a sandbox, whole, from text or base64 of up to 1 MiB. Directories above it are made, and what is there is replaced unless create_only. "+
		"Use upload_file for files of the user's machine.",
		hints{title: "Write a file", destructive: true, idempotent: true},
		limits{"content": atMost(maxInline), "content_base64": atMost(maxInline*4/3 + 4), "mode": upTo(5)}, writeFile)
	add(s, to, "list_files", "List a directory of a sandbox.",
		hints{title: "List files", readOnly: true, idempotent: true},
		limits{"path": by(`"/workspace"`, upTo(4096)), "depth": by("1", between(1, 10)), "limit": by("200", between(1, 1000))}, listFiles)
	add(s, to, "move_file", "Move or rename a file or directory of a sandbox.",
		hints{title: "Move a file", destructive: true}, limits{"from": upTo(4096), "to": upTo(4096)}, moveFile)
	add(s, to, "delete_file", "Delete a file, an empty directory or, with recursive, a directory with all that is in it.",
		hints{title: "Delete a file", destructive: true, idempotent: true}, nil, deleteFile)
	s.transferTools(to)
}

func listFiles(ctx context.Context, c *call, in listFilesInput) (answer[listFilesOutput], error) {
	none := answer[listFilesOutput]{}
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return none, err
	}
	out := listFilesOutput{SandboxID: sandbox, Path: absolute(in.Path), Entries: []fileEntry{}}
	var lines []string
	for info, err := range c.Files(sandbox).List(ctx, out.Path, in.Depth) {
		if err != nil {
			return none, err
		}
		if len(out.Entries) == in.Limit {
			out.More = true
			break
		}
		e := entryOf(&info)
		out.Entries = append(out.Entries, e)
		lines = append(lines, e.text())
	}
	if len(lines) == 0 {
		lines = []string{out.Path + " is empty."}
	}
	if out.More {
		lines = append(lines, "[there are more: list a directory below, or with a higher limit]")
	}
	return answer[listFilesOutput]{out: out, text: strings.Join(lines, "\n")}, nil
}

func (e *fileEntry) text() string {
	switch {
	case e.Type == "directory" || e.Type == "dir":
		return e.Path + "/"
	case e.Target != "":
		return e.Path + " -> " + e.Target
	}
	return fmt.Sprintf("%s (%d bytes)", e.Path, e.SizeBytes)
}

func moveFile(ctx context.Context, c *call, in moveFileInput) (answer[moveFileOutput], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[moveFileOutput]{}, err
	}
	out := moveFileOutput{SandboxID: sandbox, From: absolute(in.From), To: absolute(in.To)}
	if err := c.Files(sandbox).Move(ctx, out.From, out.To, in.Overwrite); err != nil {
		return answer[moveFileOutput]{}, err
	}
	return answer[moveFileOutput]{out: out, text: out.From + " is now " + out.To + "."}, nil
}

func deleteFile(ctx context.Context, c *call, in deleteFileInput) (answer[deleteFileOutput], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[deleteFileOutput]{}, err
	}
	out := deleteFileOutput{SandboxID: sandbox, Path: absolute(in.Path)}
	if err := c.Files(sandbox).Remove(ctx, out.Path, in.Recursive); err != nil {
		return answer[deleteFileOutput]{}, err
	}
	return answer[deleteFileOutput]{out: out, text: out.Path + " is deleted."}, nil
}

// fileMode reads permission bits in octal; "" is 0, as it was or the server's default.
func fileMode(s string) (fs.FileMode, error) {
	if s == "" {
		return 0, nil
	}
	var bits uint32
	if _, err := fmt.Sscanf(s, "%o", &bits); err != nil || bits > 0o777 || strings.Trim(s, "01234567") != "" {
		return 0, invalid("mode must be permission bits in octal, such as 0644 or 0755")
	}
	return fs.FileMode(bits), nil
}
