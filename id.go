package cay

import (
	"crypto/rand"
	"strings"
	"time"
)

// ID is a type prefix and 26 characters of [0-9a-z]: 48 bits of Unix milliseconds, then 82 random bits. IDs of one type sort by
// time of creation, and the part after the prefix is unique by itself, so that it can serve as a host name.
type ID string

// Prefixes of the kinds of ID.
const (
	PrefixSandbox = "sbx_"
	PrefixProcess = "prc_"
	PrefixContext = "ctx_"
	PrefixJob     = "job_"
	PrefixSession = "ses_"
	PrefixWorker  = "wrk_"
	PrefixKey     = "key_"
	PrefixProject = "prj_"
	PrefixEvent   = "evt_"
)

// idAlphabet is Crockford's base 32 in lower case: sortable, and without look-alikes.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

const idBodyLen = 26

// NewID makes an ID for now.
func NewID(prefix string) ID { return newIDAt(prefix, time.Now()) }

func newIDAt(prefix string, at time.Time) ID {
	var body [idBodyLen]byte
	ms := uint64(at.UnixMilli())
	for i := 9; i >= 0; i-- { // ten characters hold 50 bits; the top two are zero
		body[i] = idAlphabet[ms&31]
		ms >>= 5
	}
	var random [idBodyLen - 10]byte
	rand.Read(random[:]) // never fails, see crypto/rand
	for i, b := range random {
		body[10+i] = idAlphabet[b&31]
	}
	return ID(prefix + string(body[:]))
}

// ParseID checks that s is a well-formed ID with the given prefix. It says nothing of whether the thing exists.
func ParseID(prefix, s string) (ID, bool) {
	body, ok := strings.CutPrefix(s, prefix)
	if !ok || len(body) != idBodyLen {
		return "", false
	}
	for _, c := range []byte(body) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return "", false
		}
	}
	return ID(s), true
}

// Body is the ID without its prefix.
func (id ID) Body() string {
	_, body, _ := strings.Cut(string(id), "_")
	return body
}

func (id ID) String() string { return string(id) }
