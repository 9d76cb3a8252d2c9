// Package filetype tells the MIME type of a file, the same on every machine. It reads nothing itself.
package filetype

import (
	"mime"
	"net/http"
	"path"
	"strings"
)

// mimeTypes are the types of names, which are told the same on every machine.
var mimeTypes = map[string]string{
	".avif": "image/avif", ".bmp": "image/bmp", ".css": "text/css", ".csv": "text/csv", ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".gif": "image/gif", ".gz": "application/gzip", ".htm": "text/html", ".html": "text/html", ".ico": "image/x-icon", ".ipynb": "application/x-ipynb+json",
	".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript", ".json": "application/json", ".jsonl": "application/jsonl", ".log": "text/plain",
	".md": "text/markdown", ".mjs": "text/javascript", ".mp3": "audio/mpeg", ".mp4": "video/mp4", ".npy": "application/octet-stream",
	".ogg": "audio/ogg", ".parquet": "application/vnd.apache.parquet", ".pdf": "application/pdf", ".png": "image/png",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation", ".py": "text/x-python", ".sh": "text/x-shellscript",
	".svg": "image/svg+xml", ".tar": "application/x-tar", ".tif": "image/tiff", ".tiff": "image/tiff", ".toml": "application/toml", ".ts": "text/typescript",
	".tsv": "text/tab-separated-values", ".txt": "text/plain", ".wasm": "application/wasm", ".wav": "audio/wav", ".webm": "video/webm",
	".webp": "image/webp", ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xml": "application/xml",
	".yaml": "application/yaml", ".yml": "application/yaml", ".zip": "application/zip", ".zst": "application/zstd",
}

// Of is the type of a file by its name, else by how it begins: the first 512 bytes count.
func Of(name string, beginning []byte) string {
	if t, ok := mimeTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	if len(beginning) == 0 {
		return "application/octet-stream"
	}
	t, _, err := mime.ParseMediaType(http.DetectContentType(beginning))
	if err != nil {
		return "application/octet-stream"
	}
	return t
}
