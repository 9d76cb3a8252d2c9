// Package lifecycle holds the rules of a sandbox's life: what may be asked for, what follows what, and when time is up. It decides and
// writes; doing is the scheduler's part, which reports back here, and so do the nodes. Of SQL, placement and RPC it knows nothing.
//
// # Activity
//
// A sandbox is active when a call uses or changes it (an exec, a file, a terminal, a keepalive, pause, resume, timeout, update), and
// when its node reports traffic: a foreground exec as long as it runs, bytes of a terminal or a port. Looking at it (get, list, wait,
// metrics, events) is no activity, so that a dashboard keeps nothing alive; nor are silent terminals and background processes.
//
// # Clocks
//
// The TTL runs from READY and ends the sandbox whatever runs in it. The idle timeout, where one was asked for, runs from the last
// activity and never ends a sandbox with a foreground exec; it strikes up to activityLag late. What they do is the sandbox's
// on_timeout. Both stand still while PAUSED, where the paused TTL runs. A sandbox that is paused because its TTL ran out gets its whole
// TTL again when it is resumed; any other gets what was left.
package lifecycle
