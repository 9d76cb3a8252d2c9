package mcp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	maxInline   = 1 << 20   // bytes of a file in arguments
	maxEmbedded = 256 << 10 // bytes of a file in a result
)

type uploadFileInput struct {
	Path       string  `json:"path" jsonschema:"Where the file is to be: an absolute path; a relative one begins at /workspace"`
	DataBase64 string  `json:"data_base64,omitempty" jsonschema:"The content in base64, up to 1 MiB. Left out: the result has a URL to send the file to"`
	SandboxID  string  `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	TTLSeconds float64 `json:"ttl_seconds,omitempty" jsonschema:"How long the URL is good for"`
}

type uploadFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
	Written   bool   `json:"written" jsonschema:"The content of data_base64 was written"`
	SizeBytes int64  `json:"size_bytes,omitempty" jsonschema:"Of what was written"`
	URL       string `json:"url,omitempty" jsonschema:"Send the file here by PUT; anyone who has this address can"`
	Command   string `json:"command,omitempty" jsonschema:"What sends it, on the machine where the file is; FILE stands for its path"`
	ExpiresAt string `json:"expires_at,omitempty" jsonschema:"When the URL stops working"`
}

type downloadFileInput struct {
	Path       string  `json:"path" jsonschema:"The file: an absolute path; a relative one begins at /workspace"`
	SandboxID  string  `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	URLOnly    bool    `json:"url_only,omitempty" jsonschema:"true: a URL also for a small file, such as for a link to give to the user"`
	TTLSeconds float64 `json:"ttl_seconds,omitempty" jsonschema:"How long the URL is good for"`
}

type downloadFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	Embedded  bool   `json:"embedded" jsonschema:"The content is part of this result"`
	URL       string `json:"url,omitempty" jsonschema:"Where anyone who has this address can read it"`
	ExpiresAt string `json:"expires_at,omitempty" jsonschema:"When the URL stops working"`
}

func (s *server) transferTools(to *sdk.Server) {
	lifetime := by("3600", between(1, 7*86400))
	add(s, to, "upload_file", "Put a file into a sandbox: its content in data_base64, up to 1 MiB, or, without that, a signed URL to which the file can be sent by PUT with no key, and the command "+
		"line that does it on the user's machine.",
		hints{title: "Upload a file", destructive: true, idempotent: true},
		limits{"data_base64": atMost(maxInline*4/3 + 4), "ttl_seconds": lifetime}, uploadFile)
	add(s, to, "download_file", "Get a file out of a sandbox: one of up to 256 KiB as an embedded resource, a larger one as a signed URL from which it can be fetched with no key.",
		hints{title: "Download a file", readOnly: true, idempotent: true}, limits{"ttl_seconds": lifetime}, downloadFile)
}

func uploadFile(ctx context.Context, c *call, in uploadFileInput) (answer[uploadFileOutput], error) {
	none := answer[uploadFileOutput]{}
	if in.DataBase64 != "" {
		data, err := fromBase64("data_base64", in.DataBase64)
		if err != nil {
			return none, err
		}
		a, err := c.write(ctx, in.SandboxID, in.Path, data, "", false)
		return answer[uploadFileOutput]{
			out: uploadFileOutput{SandboxID: a.out.SandboxID, Path: a.out.Path, Written: true, SizeBytes: a.out.SizeBytes}, text: a.text,
		}, err
	}
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return none, err
	}
	signed, err := c.Files(sandbox).Sign(ctx, absolute(in.Path), client.SignOptions{Method: http.MethodPut, TTL: inSeconds(in.TTLSeconds)})
	if err != nil {
		return none, err
	}
	out := uploadFileOutput{SandboxID: sandbox, Path: absolute(in.Path), URL: signed.URL, ExpiresAt: moment(signed.ExpiresAt)}
	out.Command = "curl -fsS -T FILE " + quoted(signed.URL)
	return answer[uploadFileOutput]{out: out, text: "Send the file by PUT until " + out.ExpiresAt + ", such as with:\n" + out.Command}, nil
}

// quoted is s as one word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func downloadFile(ctx context.Context, c *call, in downloadFileInput) (answer[downloadFileOutput], error) {
	none := answer[downloadFileOutput]{}
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return none, err
	}
	out := downloadFileOutput{SandboxID: sandbox, Path: absolute(in.Path)}
	files := c.Files(sandbox)
	head, err := files.Head(ctx, out.Path)
	if err != nil {
		return none, err
	}
	if out.SizeBytes = head.Size; head.Size <= maxEmbedded && !in.URLOnly {
		return c.embedded(ctx, out)
	}
	signed, err := files.Sign(ctx, out.Path, client.SignOptions{TTL: inSeconds(in.TTLSeconds)})
	if err != nil {
		return none, err
	}
	out.URL, out.ExpiresAt = signed.URL, moment(signed.ExpiresAt)
	link := &sdk.ResourceLink{URI: out.URL, Name: baseName(out.Path), Size: &out.SizeBytes}
	text := fmt.Sprintf("%s, %d bytes, until %s at:\n%s", out.Path, out.SizeBytes, out.ExpiresAt, out.URL)
	return answer[downloadFileOutput]{out: out, text: text, more: []sdk.Content{link}}, nil
}

// embedded answers a small file with its content.
func (c *call) embedded(ctx context.Context, out downloadFileOutput) (answer[downloadFileOutput], error) {
	f, err := c.Files(out.SandboxID).Read(ctx, out.Path, client.ReadOptions{})
	if err != nil {
		return answer[downloadFileOutput]{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEmbedded+1))
	if err != nil || len(data) > maxEmbedded {
		return answer[downloadFileOutput]{}, &fault{
			reason: client.ReasonUnprocessable, detail: out.Path + " could not be read whole, or grew while it was read", advice: "Call again with url_only.",
		}
	}
	out.Embedded, out.SizeBytes = true, int64(len(data))
	content := &sdk.ResourceContents{
		URI: (&url.URL{Scheme: "cay", Host: out.SandboxID, Path: out.Path}).String(), MIMEType: http.DetectContentType(data), Blob: data,
	}
	if len(data) == 0 {
		content.MIMEType = "text/plain"
	}
	text := fmt.Sprintf("%s, %d bytes", out.Path, len(data))
	return answer[downloadFileOutput]{out: out, text: text, more: []sdk.Content{&sdk.EmbeddedResource{Resource: content}}}, nil
}

func baseName(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }
