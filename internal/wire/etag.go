package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ETag is the entity tag of a file, quotes included. Node and agent compute it alike, so that an If-Match can be decided inside at
// the moment of the write.
func ETag(inode uint64, size, modifiedUnixNS int64) string {
	var b [24]byte
	binary.BigEndian.PutUint64(b[0:], inode)
	binary.BigEndian.PutUint64(b[8:], uint64(size))
	binary.BigEndian.PutUint64(b[16:], uint64(modifiedUnixNS))
	sum := sha256.Sum256(b[:])
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}
