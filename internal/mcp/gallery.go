package mcp

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	maxImages     = 8        // of a result
	maxImageBytes = 4 << 20  // of one image
	maxGallery    = 10 << 20 // in all: clients commonly take messages of 16 MiB, and these go in base64
	maxSVG        = 256 << 10
	maxLinks      = 20 // signed URLs of a result
	linkTTL       = time.Hour
)

// imageTypes are the pictures that models take.
var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// gallery collects what a result shows besides text.
type gallery struct {
	c       *call
	sandbox string
	content []sdk.Content
	images  int
	bytes   int
	links   int
	refused bool // signing was refused once: asking again is no use
}

func newGallery(c *call, sandbox string) *gallery { return &gallery{c: c, sandbox: sandbox} }

// imageType is the type of a picture by its content: a name says nothing, and a client may end a conversation over a picture that is none.
func imageType(data []byte) string {
	if t := http.DetectContentType(data); slices.Contains(imageTypes, t) {
		return t
	}
	return ""
}

// image shows data if it is a picture and there is room.
func (g *gallery) image(data []byte) bool {
	mime := imageType(data)
	if mime == "" || len(data) > maxImageBytes || g.images >= maxImages || g.bytes+len(data) > maxGallery {
		return false
	}
	g.images, g.bytes = g.images+1, g.bytes+len(data)
	g.content = append(g.content, &sdk.ImageContent{MIMEType: mime, Data: data})
	return true
}

// svg shows a drawing as a resource with its text: models read it, clients may draw it.
func (g *gallery) svg(uri string, data []byte) bool {
	if len(data) > maxSVG || g.images >= maxImages || !utf8.Valid(data) || !strings.Contains(string(data), "<svg") {
		return false
	}
	g.images, g.bytes = g.images+1, g.bytes+len(data)
	g.content = append(g.content, &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "image/svg+xml", Text: string(data)}})
	return true
}

// value shows the picture of a value, in the first form that a model takes.
func (g *gallery) value(v client.Result) {
	for _, mime := range imageTypes {
		if data := v.Bytes(mime); len(data) > 0 && g.image(data) {
			return
		}
	}
	if data := v.Bytes("image/svg+xml"); len(data) > 0 {
		g.svg("cay://"+g.sandbox+"/result.svg", data)
	}
}

// file shows a file below /output, or links to it.
func (g *gallery) file(ctx context.Context, f client.OutputFile) outputFile {
	path, lossy := valid([]byte(f.Path))
	mime, _ := valid([]byte(clip(f.MIME, 100)))
	out := outputFile{Path: path, MIME: mime, SizeBytes: f.Size}
	uri := (&url.URL{Scheme: "cay", Host: g.sandbox, Path: f.Path}).String()
	if len(f.Data) > 0 && (g.image(f.Data) || mime == "image/svg+xml" && g.svg(uri, f.Data)) {
		out.Shown = true
		return out
	}
	if lossy || g.refused || g.links >= maxLinks {
		return out
	}
	out.URL = f.URL
	if out.URL == "" {
		signed, err := g.c.Files(g.sandbox).Sign(ctx, f.Path, client.SignOptions{TTL: linkTTL})
		if err != nil { // the file is there all the same, and the result says where
			g.refused = true
			return out
		}
		out.URL = signed.URL
	}
	g.links++
	size := f.Size
	g.content = append(g.content, &sdk.ResourceLink{
		URI: out.URL, Name: baseName(path), Description: path + " in sandbox " + g.sandbox, MIMEType: mime, Size: &size,
	})
	return out
}
