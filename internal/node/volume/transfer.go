package volume

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// An exported volume is, compressed by zstd: magic, the image's size, then records of offset, length and that many bytes, in rising
// order; the last has the size for its offset and no bytes. Numbers are 64 bits, big endian, and multiples of blockSize. What no record
// names is a hole.
const (
	magic     = "cayvol1\n"
	copyBytes = 256 << 10 // a multiple of blockSize
	maxWindow = 8 << 20   // memory that a stream may ask of who reads it
)

// Digest names what was exported.
type Digest struct {
	SHA256 string // hex, of all bytes
	Bytes  int64
}

// Export writes the volume to w. It is a cay.Conflict while somebody uses it, and nobody can use it meanwhile. The volume stays.
func (s *Store) Export(ctx context.Context, name string, w io.Writer) (Digest, error) {
	if err := s.check(name); err != nil {
		return Digest{}, err
	}
	_, release, err := s.reserve(ctx, name, "exported")
	if err != nil {
		return Digest{}, err
	}
	defer release()
	f, err := os.OpenFile(s.image(name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Digest{}, fmt.Errorf("export volume %s: %w", name, err)
	}
	defer f.Close()
	sum, count := sha256.New(), counter(0)
	packed, err := zstd.NewWriter(io.MultiWriter(sum, &count, w), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err == nil {
		err = errors.Join(encode(ctx, packed, f), packed.Close())
	}
	if err != nil {
		return Digest{}, fmt.Errorf("export volume %s: %w", name, err)
	}
	return Digest{SHA256: hex.EncodeToString(sum.Sum(nil)), Bytes: int64(count)}, nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// encode writes the parts of f that are no holes.
func encode(ctx context.Context, w io.Writer, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size%blockSize != 0 {
		return fmt.Errorf("the image has %d bytes, which are no whole blocks", size)
	}
	if _, err := w.Write(binary.BigEndian.AppendUint64([]byte(magic), uint64(size))); err != nil {
		return err
	}
	buffer := make([]byte, copyBytes)
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		} else if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find holes: %w", err)
		}
		from, to = max(at, from/blockSize*blockSize), min(size, (to+blockSize-1)/blockSize*blockSize)
		if err := writeHeader(w, from, to-from); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, &reader{ctx, io.NewSectionReader(f, from, to-from)}, buffer); err != nil {
			return err
		}
		at = to
	}
	return writeHeader(w, size, 0)
}

func writeHeader(w io.Writer, offset, length int64) error {
	_, err := w.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(offset)), uint64(length)))
	return err
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, &deliveryError{err}
	}
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		err = &deliveryError{err}
	}
	return n, err
}

// deliveryError is of who delivers data, not of the data.
type deliveryError struct{ error }

func (e *deliveryError) Unwrap() error { return e.error }

// Import makes a volume of what Export wrote, or replaces one that nobody uses; one in use is a cay.Conflict. r ends where the data
// ends; any other error of it ends the import. Data of another digest, of another size than bytes or of another form is a
// cay.Unprocessable, and nothing has changed then: the kernel sees an image only once its digest is right.
func (s *Store) Import(ctx context.Context, name string, size int64, sha string, r io.Reader) (Info, error) {
	if err := s.check(name); err != nil {
		return Info{}, err
	}
	size, err := round(size)
	if err != nil {
		return Info{}, err
	}
	v, found, err := s.enter(ctx, name)
	if err != nil {
		return Info{}, err
	}
	if !found {
		err = s.receive(ctx, name, size, sha, r, s.place)
		s.settle(v, size, err)
	} else {
		_, release, reserved := s.reserve(ctx, name, "imported")
		if reserved != nil {
			return Info{}, reserved
		}
		defer release()
		if err = s.receive(ctx, name, size, sha, r, s.replace); err == nil {
			s.mu.Lock()
			v.bytes = size
			s.mu.Unlock()
		}
	}
	if err != nil {
		return Info{}, fmt.Errorf("import volume %s: %w", name, full(err))
	}
	return s.info(v), nil
}

// replace gives a volume another image, for good.
func (s *Store) replace(temp, name string) error {
	if err := sync2(filepath.Join(temp, imageName)); err != nil {
		return err
	}
	old := filepath.Join(temp, imageName+".old")
	if err := os.Link(s.image(name), old); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(temp, imageName), s.image(name)); err != nil {
		return err
	}
	return errors.Join(sync2(filepath.Dir(s.image(name))), empty(old))
}

func (s *Store) receive(ctx context.Context, name string, size int64, sha string, r io.Reader, place func(temp, name string) error) error {
	if err := s.room(size); err != nil {
		return err
	}
	temp, err := s.temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	f, err := os.OpenFile(filepath.Join(temp, imageName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	in := io.TeeReader(&reader{ctx, r}, sum)
	err = unpack(in, f, size)
	if err == nil || errors.Is(err, errForm) {
		// The whole of it counts: data that was cut or changed on its way is told as that, whatever has become of its form.
		if _, rest := io.Copy(io.Discard, in); rest != nil {
			return rest
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != sha {
			return cay.Errorf(cay.Unprocessable, "the data's SHA-256 is %s, not %.64q", got, sha).On("sha256")
		}
	}
	if errors.Is(err, errForm) {
		return cay.Errorf(cay.Unprocessable, "the data is no volume of %d bytes", size).On("data").Because(err)
	}
	if err != nil {
		return err
	}
	return place(temp, name)
}

// errForm is of data that is not what encode writes.
var errForm = errors.New("malformed")

func unpack(r io.Reader, f *os.File, size int64) error {
	packed, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("%w: %w", errForm, err)
	}
	defer packed.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return decode(packed, f, size)
}

// decode is encode the other way round, into an empty file of the given size. Zeros stay holes.
func decode(r io.Reader, f io.WriterAt, size int64) error {
	var head [len(magic) + 8]byte
	if err := fill(r, head[:]); err != nil {
		return err
	}
	if string(head[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin as a volume", errForm)
	}
	if got := binary.BigEndian.Uint64(head[len(magic):]); got != uint64(size) {
		return fmt.Errorf("%w: its size is %d", errForm, got)
	}
	buffer, zeros := make([]byte, copyBytes), make([]byte, blockSize)
	for at := int64(0); ; {
		var record [16]byte
		if err := fill(r, record[:]); err != nil {
			return err
		}
		offset, length := int64(binary.BigEndian.Uint64(record[:])), int64(binary.BigEndian.Uint64(record[8:]))
		if offset < at || offset > size || length < 0 || length > size-offset || offset%blockSize != 0 || length%blockSize != 0 {
			return fmt.Errorf("%w: a record of %d bytes at %d", errForm, length, offset)
		}
		if length == 0 {
			if offset != size {
				return fmt.Errorf("%w: it ends at %d", errForm, offset)
			}
			break
		}
		for at = offset + length; offset < at; {
			part := buffer[:min(copyBytes, at-offset)]
			if err := fill(r, part); err != nil {
				return err
			}
			for len(part) > 0 {
				run := 0
				for run < len(part) && !bytes.Equal(part[run:run+blockSize], zeros) {
					run += blockSize
				}
				if _, err := f.WriteAt(part[:run], offset); err != nil {
					return err
				}
				run = min(run+blockSize, len(part)) // and the block of zeros that ended it
				part, offset = part[run:], offset+int64(run)
			}
		}
	}
	if n, err := io.CopyN(io.Discard, r, 1); n > 0 {
		return fmt.Errorf("%w: something follows its end", errForm)
	} else if err != io.EOF {
		return formed(err)
	}
	return nil
}

func fill(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	return formed(err)
}

// formed tells what the data is to be blamed for from errors of who delivers it.
func formed(err error) error {
	var d *deliveryError
	if err == nil || errors.As(err, &d) {
		return err
	}
	return fmt.Errorf("%w: %w", errForm, err)
}
