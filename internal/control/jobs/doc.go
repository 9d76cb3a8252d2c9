// Package jobs runs programs that are handed in once and run later: it leases rows of the queue, gives each a sandbox of its own, follows
// the program there to its end, and keeps what it left behind. It keeps nothing itself that matters: whatever it forgets is in the row, on the
// node or in blob storage, and each step can be taken again by whoever holds the row next. How a sandbox comes to be is the life cycle's
// business, where its process runs the node's; what a job looks like over HTTP is the API's.
//
// # The way of a job
//
// Under a lease, whose fence guards every write: choose the ids of a sandbox and a process and write them; create that sandbox and wait
// until it is READY; start the process; write running; wait for its exit; keep its output and its files; write the end; delete the sandbox.
// A sandbox or a process of a known id is made once however often it is asked for, so that a program runs at most once in each attempt.
// What the platform breaks is tried again in another attempt, with other ids, up to a bound. A sandbox that serves no attempt under way is swept.
package jobs
