package store

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// Cursor is a place in a list that is ordered by time of creation and id: the last item of the page before.
type Cursor struct {
	At time.Time
	ID cay.ID
}

// String is the cursor's opaque form.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.At.UnixMicro(), 10) + " " + string(c.ID)))
}

// ParseCursor reads what [Cursor.String] made for a list of things whose ids begin with prefix; anything else is cay.InvalidRequest on the
// field cursor.
func ParseCursor(prefix, s string) (Cursor, error) {
	bad := cay.Errorf(cay.InvalidRequest, "cursor is not one that this server gave out; start again without it").On("cursor")
	if len(s) > 128 {
		return Cursor{}, bad
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return Cursor{}, bad
	}
	at, body, ok := strings.Cut(string(raw), " ")
	micros, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return Cursor{}, bad
	}
	id, ok := cay.ParseID(prefix, body)
	if !ok {
		return Cursor{}, bad
	}
	return Cursor{At: time.UnixMicro(micros).UTC(), ID: id}, nil
}
