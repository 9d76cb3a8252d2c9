package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheNodeIsToldWhatIsNotableAndNotTooMuchOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := NewJournal(slog.DiscardHandler)
		log := slog.New(journal)
		log.Debug("not this")
		log.With("who", "me").Warn("what happened", "error", errors.New("why"))
		q := journal.said.queue
		if len(q) != 1 || q[0].Message != "what happened who=me error=why" || q[0].Level != "warn" || q[0].AtUnixMs != time.Now().UnixMilli() {
			t.Fatalf("%v", q)
		}
		for i := range 100 {
			log.Info(fmt.Sprint(i))
		}
		if n := len(journal.said.queue); n != sayPerSecond {
			t.Errorf("%d messages in a second", n)
		}
		if b := journal.said.appendPending(nil); len(b) == 0 || len(journal.said.queue) != 0 {
			t.Error("nothing was sent")
		}
		time.Sleep(time.Second) // of the test's own clock
		log.Error(strings.Repeat("é", maxSaid))
		log.Error("next")
		if q := journal.said.queue; len(q) != 2 || len(q[0].Message) > maxSaid+2 || q[1].Message != "next" {
			t.Errorf("%d messages, %d bytes", len(q), len(q[0].Message))
		}
		for range 100 {
			time.Sleep(time.Second)
			log.Info("unsaid")
		}
		if n := len(journal.said.queue); n != maxUnsaid {
			t.Errorf("%d messages wait", n)
		}
		journal.said.appendPending(nil)
		log.Info("again")
		if q := journal.said.queue; len(q) != 1 || !strings.HasPrefix(q[0].Message, "again (38 more were left out)") {
			t.Errorf("%v", q)
		}
	})
}
