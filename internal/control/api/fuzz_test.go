package api

import (
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/strictjson"
	"github.com/cayhq/cay/internal/observe/tracing"
)

func FuzzExecBody(f *testing.F) {
	f.Add([]byte(`{"command":"ls","env":{"A":"b"},"timeout_seconds":null,"stdin_base64":"YQ=="}`))
	f.Add([]byte(`{"command":["a","b"],"max_output_bytes":5,"encoding":"base64"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req ExecRequest
		err := strictjson.Decode(data, &req)
		if err == nil {
			err = req.validate()
		}
		if err != nil {
			if cay.ReasonOf(err) != cay.InvalidRequest {
				t.Fatalf("%v", err)
			}
			return
		}
		spec := req.spec()
		if len(spec.Argv) == 0 && spec.Shell == "" || spec.TimeoutMs < 0 || spec.MaxOutputBytes < 1 || spec.MaxOutputBytes > cay.MaxMaxOutput {
			t.Fatalf("accepted %v", spec)
		}
	})
}

func FuzzStartMessage(f *testing.F) {
	f.Add([]byte(`{"type":"start","command":"sh","tty":true,"cols":80,"rows":24}`))
	f.Add([]byte(`{"type":"start","command":["a"],"stdin":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeStart(data)
		if err != nil {
			if cay.ReasonOf(err) != cay.InvalidRequest {
				t.Fatalf("%v", err)
			}
			return
		}
		if m.TTY && (m.Cols == 0 || m.Rows == 0) {
			t.Fatalf("a terminal without a size: %+v", m)
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-", "bytes=-5", "bytes=1-2", "bytes=1-2,3-4", "bytes=99999999999999999999-", "bytes=-0"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, s string, size int64) {
		if size < 0 {
			return
		}
		from, length, ok, err := parseRange(s, size)
		if ok && (err != nil || from < 0 || length < 1 || from+length > size || from+length < from) {
			t.Fatalf("%q of %d: from %d, length %d, %v", s, size, from, length, err)
		}
		if !ok && err == nil && length != -1 {
			t.Fatalf("%q of %d: the whole has length %d", s, size, length)
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add("abc")
	f.Add("\x00")
	f.Fuzz(func(t *testing.T, s string) {
		if checkCursor(s) != nil {
			return
		}
		for _, c := range []byte(s) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("accepted %q", s)
			}
		}
	})
}

func FuzzRequestID(f *testing.F) {
	f.Add("abc", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, id, parent string) {
		trace := tracing.ID(tracing.With(t.Context(), parent))
		for _, c := range []byte(requestID(id) + trace) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q, %q", requestID(id), trace)
			}
		}
	})
}
