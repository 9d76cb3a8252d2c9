package router

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestAnAgentThatSaysTooMuchIsHeardTwentyTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		s := &Session{cfg: Config{Said: func(level, message string) { heard = append(heard, level+" "+message) }}}
		say := func(n int) {
			for i := range n {
				s.said(&guestv1.Log{Level: "info", Message: fmt.Sprint(i)})
			}
		}
		say(500)
		if len(heard) != 20 || heard[19] != "info 19" {
			t.Fatalf("of 500 messages at once %d were heard", len(heard))
		}
		heard = nil
		time.Sleep(10 * time.Second)
		say(1)
		if len(heard) != 2 || !strings.HasPrefix(heard[0], "warn 480 messages") || heard[1] != "info 0" {
			t.Errorf("afterwards came %q", heard)
		}
		heard = nil
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			say(10)
		}
		if n := len(heard); n < 20 || n > 2*(20+19) {
			t.Errorf("in a second %d were heard", n)
		}
	})
}

func TestWhatAnAgentSaysIsBounded(t *testing.T) {
	var level, message string
	s := &Session{cfg: Config{Said: func(l, m string) { level, message = l, m }}}
	s.said(&guestv1.Log{Level: "emergency", Message: strings.Repeat("x", 1<<20)})
	if level != "info" || len(message) > maxSaid+1 {
		t.Errorf("heard %s with %d bytes", level, len(message))
	}
	(&Session{}).said(&guestv1.Log{Message: "nobody listens"})
}
