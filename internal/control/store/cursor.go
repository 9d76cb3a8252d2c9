package store

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// maxCursor bounds what is read as a cursor.
const maxCursor = 256

// Cursor is a place in a list that is ordered by time of creation and id: the last item of the page before.
type Cursor struct {
	At time.Time
	ID cay.ID
}

// String is the cursor's opaque form.
func (c Cursor) String() string {
	return KeyCursor(strconv.FormatInt(c.At.UnixMicro(), 10), string(c.ID))
}

// ParseCursor reads what [Cursor.String] made for a list of things whose ids begin with prefix; anything else is cay.InvalidRequest on the
// field cursor.
func ParseCursor(prefix, s string) (Cursor, error) {
	parts, err := ParseKeyCursor(s, 2)
	if err != nil {
		return Cursor{}, err
	}
	micros, err := strconv.ParseInt(parts[0], 10, 64)
	id, ok := cay.ParseID(prefix, parts[1])
	if !ok || err != nil {
		return Cursor{}, ErrCursor()
	}
	return Cursor{At: time.UnixMicro(micros).UTC(), ID: id}, nil
}

// KeyCursor is the opaque form of a place in a list that is ordered by several keys, none of which has a space.
func KeyCursor(keys ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(keys, " ")))
}

// ParseKeyCursor reads what [KeyCursor] made of n keys, which may hold anything but a space; anything else is cay.InvalidRequest on the
// field cursor.
func ParseKeyCursor(s string, n int) ([]string, error) {
	if len(s) > maxCursor {
		return nil, ErrCursor()
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, ErrCursor()
	}
	keys := strings.Split(string(raw), " ")
	if len(keys) != n {
		return nil, ErrCursor()
	}
	return keys, nil
}

// ErrCursor is the error of a cursor that is none of the list's.
func ErrCursor() error {
	return cay.Errorf(cay.InvalidRequest, "cursor is not one that this server gave out; start again without it").On("cursor")
}
