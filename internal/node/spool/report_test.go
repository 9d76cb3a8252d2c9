package spool

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay"
)

func reportOf(t *testing.T, l *Log) ([]byte, bool) {
	t.Helper()
	b, kept, err := l.Report()
	if err != nil {
		t.Fatal(err)
	}
	return b, kept
}

func TestAReportIsKeptBesideTheProcess(t *testing.T) {
	for name, report := range map[string][]byte{"empty": nil, "small": []byte("abc"), "large": bytes.Repeat([]byte("x"), 1<<20)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			l, err := s.Create(Process{ID: cay.NewID(cay.PrefixProcess)})
			if err != nil {
				t.Fatal(err)
			}
			if _, kept := reportOf(t, l); kept {
				t.Error("a report before there is one")
			}
			for _, b := range [][]byte{report, []byte("a second one")} {
				if err := l.KeepReport(b); err != nil {
					t.Fatal(err)
				}
			}
			l.End(cay.ProcessExit{})
			if got, kept := reportOf(t, l); !kept || !bytes.Equal(got, report) {
				t.Errorf("%d bytes, %v", len(got), kept)
			}
			if err := l.Save(); err != nil {
				t.Fatal(err)
			}
			s.Close()
			again, err := Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			l, _ = again.Get(l.Process().ID)
			if got, kept := reportOf(t, l); !kept || !bytes.Equal(got, report) {
				t.Errorf("after a restart: %d bytes, %v", len(got), kept)
			}
			if again.Used() != int64(len(report)) {
				t.Errorf("%d bytes are counted", again.Used())
			}
		})
	}
}

func TestTheQuotaTakesReportsAsWell(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Quota: 3 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var logs []*Log
	for range 5 {
		l, err := s.Create(Process{ID: cay.NewID(cay.PrefixProcess)})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.KeepReport(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		l.End(cay.ProcessExit{})
		logs = append(logs, l)
	}
	if _, kept := reportOf(t, logs[0]); kept {
		t.Error("the oldest is still there")
	}
	if _, err := os.Stat(filepath.Join(logs[0].dir, reportFile)); !os.IsNotExist(err) {
		t.Errorf("its file: %v", err)
	}
	if _, kept := reportOf(t, logs[4]); !kept || s.Used() > 3<<20 {
		t.Errorf("the last is gone, or %d bytes are too many", s.Used())
	}
}
