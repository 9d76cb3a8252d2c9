package worker

import (
	"context"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestWhatIsTooMuchGoesAndCountsAsLostUnlessItWasWritten(t *testing.T) {
	k := newRecords()
	add := func(n, size int) {
		for range n {
			k.add(&nodev1.ProcessRecord{Command: strings.Repeat("x", size)})
		}
	}
	add(maxRecords, 1)
	if list, next, lost := k.page(500); len(list) != 500 || next != 500 || lost != 0 {
		t.Fatalf("%d up to %d, %d lost", len(list), next, lost)
	}
	add(700, 1) // 500 of those that go were answered
	k.acknowledge(500)
	if list, next, lost := k.page(500); len(list) != 500 || next != 1200 || lost != 200 {
		t.Errorf("%d up to %d, %d lost", len(list), next, lost)
	}
	k.acknowledge(500) // again: nothing is lost twice
	if _, next, lost := k.page(0); next != 700 || lost != 200 {
		t.Errorf("up to %d, %d lost", next, lost)
	}
	k.acknowledge(1 << 60) // beyond the end: all
	if k.len() != 0 || k.bytes != 0 {
		t.Errorf("%d kept with %d bytes", k.len(), k.bytes)
	}
	add(10_000, 4096)
	if k.bytes > maxRecordBytes || k.len() != maxRecordBytes/4096 {
		t.Errorf("%d kept with %d bytes", k.len(), k.bytes)
	}
	if _, _, lost := k.page(1); lost != 200+10_000-maxRecordBytes/4096 {
		t.Errorf("%d lost", lost)
	}
}

func TestAProgramsRecordHasItsBeginningAsText(t *testing.T) {
	long := strings.Repeat("é", cay.MaxRecordCommand)
	for source, want := range map[string]string{
		"print(1)\n": "print(1)\n", "\xff\xfe": "\uFFFD", long: long[:cay.MaxRecordCommand], "": "",
		strings.Repeat("\xff ", cay.MaxRecordCommand): strings.Repeat("\uFFFD ", cay.MaxRecordCommand/4),
	} {
		o := origin(context.Background(), &nodev1.StartProcess{Kind: "code", Spec: &nodev1.ProcessSpec{}}, &cay.Code{Source: []byte(source)})
		if o.Command != want {
			t.Errorf("%.20q became %.20q with %d bytes", source, o.Command, len(o.Command))
		}
	}
}

func TestArgumentsAreJoinedAsOneWouldTypeThem(t *testing.T) {
	for want, argv := range map[string][]string{
		`ls -la /tmp`:               {"ls", "-la", "/tmp"},
		`python3 -c 'print("a b")'`: {"python3", "-c", `print("a b")`},
		`echo '' 'it'\''s'`:         {"echo", "", "it's"},
		`FOO=1 a,b:c@d%e+f`:         {"FOO=1", "a,b:c@d%e+f"},
	} {
		if got := commandLine(argv); got != want {
			t.Errorf("%q became %s", argv, got)
		}
	}
}
