package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cayhq/cay/internal/testkit"
)

func TestAnIdleSessionGoesToBlobStorageAndComesBackOnUse(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	for name, storage := range map[string]func(t *testing.T) (env []string, blobs func() int){"a folder": inAFolder, "S3": inS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, blobs := storage(t)
			inst := testkit.StartServer(t, testkit.Options{Env: append(env, "CAY_SESSION_ARCHIVE_AFTER_SECONDS=1", "CAY_POOL_SIZE=0")})
			s := inst.Session(t, fields{"disk_gb": 0.5})
			made := s.Run("python", `
import hashlib, os
data = os.urandom(5 << 20)
os.makedirs('/session/d')
open('/session/d/f', 'wb').write(data); os.chmod('/session/d/f', 0o640)
os.symlink('d/f', '/session/l')
print(hashlib.sha256(data).hexdigest())
`)
			const look = "import hashlib, os, stat\nprint(hashlib.sha256(open('/session/l', 'rb').read()).hexdigest())\nassert stat.S_IMODE(os.stat('/session/d/f').st_mode) == 0o640"
			for _, use := range []func(){
				func() { s.MustSay(made.Stdout, "python", look) },
				func() {
					if got := s.Get("d/f"); testkit.Digest(got)+"\n" != made.Stdout {
						t.Errorf("read by the explorer: %d other bytes", len(got))
					}
				},
				func() {
					sb := inst.Create(t, fields{"session_id": s.ID})
					sb.MustSay(made.Stdout[:64], "sha256sum /session/d/f | head -c 64")
					if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
						t.Fatal(err)
					}
				},
			} {
				testkit.Eventually(t, 3*time.Minute, "it is archived", func() error {
					if now := s.Refresh(); now.Status != "archived" || now.WorkerID != "" {
						return fmt.Errorf("it is %s on worker %q", now.Status, now.WorkerID)
					}
					return nil
				})
				if n := blobs(); n != 1 {
					t.Errorf("%d blobs", n)
				}
				testkit.Eventually(t, time.Minute, "nothing is left on the node", func() error {
					left, err := filepath.Glob(filepath.Join(inst.DataDir, "volumes", "*"))
					if err == nil && len(left) > 0 {
						err = fmt.Errorf("%v", left)
					}
					return err
				})
				use()
			}
			s.MustSay("", "sh", "rm /session/l; echo changed > /session/d/f")
			testkit.Eventually(t, 3*time.Minute, "it is archived again", func() error {
				if now := s.Refresh(); now.Status != "archived" {
					return fmt.Errorf("it is %s", now.Status)
				}
				return nil
			})
			s.MustSay("changed\nd\n", "sh", "cat d/f; ls | grep -v lost+found")
			if err := inst.DeleteSession(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, "its archive goes with it", func() error {
				if n := blobs(); n != 0 {
					return fmt.Errorf("%d blobs", n)
				}
				return nil
			})
		})
	}
}

// inAFolder is blob storage in a folder, and a way to count its blobs.
func inAFolder(t *testing.T) ([]string, func() int) {
	dir, err := os.MkdirTemp("/tmp", "cayblobs") // where the server's user comes to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return []string{"CAY_BLOB_URL=file://" + dir}, func() int {
		n := 0
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && filepath.Ext(path) != ".attrs" {
				n++
			}
			if errors.Is(err, fs.ErrNotExist) { // it has just gone
				err = nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
}

// inS3 is blob storage in a server of S3's protocol, and a way to count its blobs.
func inS3(t *testing.T) ([]string, func() int) {
	backend := s3mem.New()
	if err := backend.CreateBucket("cay"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	address := "s3://cay?" + url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "s3ForcePathStyle": {"true"}, "disable_https": {"true"}}.Encode()
	return []string{"CAY_BLOB_URL=" + address, "AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=secret"}, func() int {
		list, err := backend.ListBucket("cay", nil, gofakes3.ListBucketPage{})
		if err != nil {
			t.Error(err)
			return 0
		}
		n := 0
		for _, c := range list.Contents {
			if filepath.Ext(c.Key) != ".attrs" {
				n++
			}
		}
		return n
	}
}
