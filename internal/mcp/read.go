package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/cayhq/cay/client"
)

const (
	maxRead   = 256 << 10 // bytes of text, or of a file in base64, in a result
	maxScan   = 256 << 20 // bytes that are passed over to come to a line
	sniffSize = 512       // bytes by which a picture is known
)

type readFileInput struct {
	Path      string `json:"path" jsonschema:"The file: an absolute path; a relative one begins at /workspace"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	StartLine int64  `json:"start_line,omitempty" jsonschema:"First line to read, from 1; text only"`
	EndLine   int64  `json:"end_line,omitempty" jsonschema:"Last line to read, this one included; text only"`
	MaxBytes  int    `json:"max_bytes,omitempty" jsonschema:"How much to answer at most, but for pictures, which come up to 4 MiB"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"auto: text, a picture, or base64, as the content is; text: bytes that are not UTF-8 become U+FFFD; base64: as it is"`
}

type readFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes" jsonschema:"Of the whole file"`
	Encoding  string `json:"encoding" jsonschema:"text, base64, or image when the content is shown as a picture"`
	Content   string `json:"content" jsonschema:"The content, or the part of it that was asked for and fits; empty for a picture"`
	StartLine int64  `json:"start_line,omitempty" jsonschema:"Of content, which is text"`
	EndLine   int64  `json:"end_line,omitempty" jsonschema:"Of content, which is text"`
	More      bool   `json:"more" jsonschema:"The file goes on after this: read on with start_line"`
	Lossy     bool   `json:"lossy" jsonschema:"Some of it was not UTF-8 and is shown as U+FFFD"`
}

func readFile(ctx context.Context, c *call, in readFileInput) (answer[readFileOutput], error) {
	none := answer[readFileOutput]{}
	if in.EndLine > 0 && in.EndLine < max(in.StartLine, 1) {
		return none, invalid("end_line must not be before start_line")
	}
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return none, err
	}
	out := readFileOutput{SandboxID: sandbox, Path: absolute(in.Path)}
	f, err := c.Files(sandbox).Read(ctx, out.Path, client.ReadOptions{})
	if err != nil {
		return none, err
	}
	defer f.Close()
	out.SizeBytes = f.Size
	content := bufio.NewReaderSize(f, 64<<10)
	byLine := in.StartLine > 0 || in.EndLine > 0
	begin, err := content.Peek(sniffSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return none, fmt.Errorf("read %s: %w", out.Path, err)
	}
	if in.Encoding == "auto" && !byLine && imageType(begin) != "" && f.Size <= maxImageBytes {
		return out.picture(c, content)
	}
	if in.Encoding == "base64" || in.Encoding == "auto" && !byLine && isBinary(begin) {
		return out.inBase64(content, in.MaxBytes)
	}
	return out.inText(content, in)
}

// isBinary reports whether a file that begins so is no text.
func isBinary(begin []byte) bool {
	return bytes.IndexByte(begin, 0) >= 0 || !utf8.Valid(withoutPartialEnd(begin))
}

func (o readFileOutput) picture(c *call, content io.Reader) (answer[readFileOutput], error) {
	data, err := io.ReadAll(io.LimitReader(content, maxImageBytes))
	if err != nil {
		return answer[readFileOutput]{}, fmt.Errorf("read %s: %w", o.Path, err)
	}
	o.Encoding = "image"
	g := newGallery(c, o.SandboxID)
	g.image(data)
	text := fmt.Sprintf("%s, %s, %d bytes", o.Path, imageType(data), len(data))
	return answer[readFileOutput]{out: o, text: text, more: g.content}, nil
}

func (o readFileOutput) inBase64(content io.Reader, limit int) (answer[readFileOutput], error) {
	if o.SizeBytes > int64(limit) {
		return answer[readFileOutput]{}, &fault{
			reason: "payload_too_large", detail: fmt.Sprintf("%s is no text and has %d bytes, more than max_bytes (%d)", o.Path, o.SizeBytes, limit),
			advice: "Use download_file for a URL to fetch it from, or look at it with run_command.",
		}
	}
	data, err := io.ReadAll(io.LimitReader(content, int64(limit)))
	if err != nil {
		return answer[readFileOutput]{}, fmt.Errorf("read %s: %w", o.Path, err)
	}
	o.Encoding, o.Content = "base64", base64.StdEncoding.EncodeToString(data)
	return answer[readFileOutput]{out: o, text: o.Content}, nil
}

func (o readFileOutput) inText(content *bufio.Reader, in readFileInput) (answer[readFileOutput], error) {
	first := max(in.StartLine, 1)
	if err := skipLines(content, first-1); err != nil {
		return answer[readFileOutput]{}, fmt.Errorf("read %s: %w", o.Path, err)
	}
	text, lines, more, err := takeLines(content, in.EndLine-first+1, in.MaxBytes)
	if err != nil {
		return answer[readFileOutput]{}, fmt.Errorf("read %s: %w", o.Path, err)
	}
	o.Encoding, o.More = "text", more
	if lines > 0 {
		o.StartLine, o.EndLine = first, first+lines-1
	}
	o.Content, o.Lossy = valid(text)
	shown := o.Content
	switch {
	case lines == 0 && first > 1:
		shown = fmt.Sprintf("[%s has fewer than %d lines]", o.Path, first)
	case lines == 0:
		shown = fmt.Sprintf("[%s is empty]", o.Path)
	case more:
		shown += fmt.Sprintf("\n[the file goes on; read on with start_line %d]", o.EndLine+1)
	}
	return answer[readFileOutput]{out: o, text: shown}, nil
}

var errTooFar = &fault{
	reason: client.ReasonUnprocessable, detail: "start_line is more than 256 MiB into the file", advice: "Look at that part with run_command, such as: sed -n 1000,1100p FILE",
}

// skipLines passes over n lines, or what there is.
func skipLines(r *bufio.Reader, n int64) error {
	for passed := 0; n > 0; {
		part, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil:
			n--
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
		if passed += len(part); passed > maxScan {
			return errTooFar
		}
	}
	return nil
}

// takeLines reads n lines (less than 1: all), or as many as fit into limit bytes. A first line that is longer is cut.
func takeLines(r *bufio.Reader, n int64, limit int) (text []byte, lines int64, more bool, err error) {
	begin := 0 // of the line that is being read
	for {
		part, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, 0, false, err
		}
		if len(text)+len(part) > limit {
			if lines > 0 {
				return text[:begin], lines, true, nil
			}
			return withoutPartialEnd(append(text, part...)[:limit]), 1, true, nil
		}
		text = append(text, part...)
		switch {
		case errors.Is(err, io.EOF):
			if len(text) > begin {
				lines++
			}
			return text, lines, false, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		}
		lines, begin = lines+1, len(text)
		if lines == n {
			_, err := r.Peek(1)
			return text, lines, err == nil, nil
		}
	}
}

type writeFileInput struct {
	Path          string `json:"path" jsonschema:"The file: an absolute path; a relative one begins at /workspace"`
	Content       string `json:"content,omitempty" jsonschema:"The whole content as text. Give this or content_base64; neither makes an empty file"`
	ContentBase64 string `json:"content_base64,omitempty" jsonschema:"The whole content in base64"`
	SandboxID     string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Mode          string `json:"mode,omitempty" jsonschema:"Permission bits in octal, such as 0755; as it was, or 0644, when left out"`
	CreateOnly    bool   `json:"create_only,omitempty" jsonschema:"true: refuse to replace what exists"`
}

type writeFileOutput struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
}

func writeFile(ctx context.Context, c *call, in writeFileInput) (answer[writeFileOutput], error) {
	data := []byte(in.Content)
	if in.ContentBase64 != "" {
		if in.Content != "" {
			return answer[writeFileOutput]{}, invalid("give content or content_base64, not both")
		}
		var err error
		if data, err = fromBase64("content_base64", in.ContentBase64); err != nil {
			return answer[writeFileOutput]{}, err
		}
	}
	return c.write(ctx, in.SandboxID, in.Path, data, in.Mode, in.CreateOnly)
}

func (c *call) write(ctx context.Context, sandbox, path string, data []byte, octal string, create bool) (answer[writeFileOutput], error) {
	mode, err := fileMode(octal)
	if err != nil {
		return answer[writeFileOutput]{}, err
	}
	if sandbox, err = c.sandbox(ctx, sandbox); err != nil {
		return answer[writeFileOutput]{}, err
	}
	out := writeFileOutput{SandboxID: sandbox, Path: absolute(path), SizeBytes: int64(len(data))}
	if _, err := c.Files(sandbox).Write(ctx, out.Path, bytes.NewReader(data), client.WriteOptions{Mode: mode, Create: create}); err != nil {
		return answer[writeFileOutput]{}, err
	}
	return answer[writeFileOutput]{out: out, text: fmt.Sprintf("Wrote %s, %d bytes.", out.Path, out.SizeBytes)}, nil
}

func fromBase64(field, s string) ([]byte, error) {
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, invalid("%s is not base64: %v", field, err)
	}
	if len(data) > maxInline {
		return nil, invalid("%s holds more than 1 MiB", field)
	}
	return data, nil
}
