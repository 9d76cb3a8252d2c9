package wire

import "fmt"

// ETag is the entity tag of a file, quotes included. Node and agent compute it alike, so that an If-Match can be decided inside at
// the moment of the write.
func ETag(inode uint64, size, modifiedUnixNS int64) string {
	return fmt.Sprintf("\"%x-%x-%x\"", inode, size, modifiedUnixNS)
}
