package gangline

import (
	"context"
	"time"
)

// Call is the argument of a task.
type Call struct {
	Context context.Context // ends when the caller cancels, at the deadline, and at the end of a drain
	Args    []any
	Named   map[string]any
	Job     string // of a durable task; else empty
	Attempt int64
	Fence   int64
	yield   func(any) bool
}

// Yield sends one item of a streamed result; false: there is no reader any more, or the task must stop.
func (c *Call) Yield(item any) bool { return c.yield(item) }

// Argument returns an argument by name or position; nil if it was not given.
func (c *Call) Argument(place int, name string) any {
	if value, ok := c.Named[name]; ok {
		return value
	}
	if place < len(c.Args) {
		return c.Args[place]
	}
	return nil
}

// Task is one method of the pool. It takes one slot.
type Task struct {
	Run         func(*Call) (any, error)
	Description string
	Idempotent  bool
	Streams     bool
}

// answerTo is a caller of a run: the router that sent the frame, one that attached to its job, or a request.
type answerTo struct {
	sender *sender
	id     int64
	items  bool // it reads items one by one
	send   func([]any)
}

// run is one execution.
type run struct {
	method   string
	endpoint string
	job      string
	sequence int64
	attempt  int64
	lease    *Lease
	cancel   context.CancelCauseFunc
	callers  []*answerTo
	reader   *answerTo     // the newest caller that reads items; only its credit counts
	credit   chan struct{} // one per item that the reader has room for; nil: nobody reads items
	count    int64         // items sent
	taken    int64         // of these, items credited by the reader
	kept     []any         // items not credited yet
	ended    time.Time
	failed   bool
	answer   []any // of the first caller
}

// jobKey identifies a durable task. Producers choose ids, and may reuse one at another endpoint or after the first job has
// ended; the sequence in the stream distinguishes them.
type jobKey struct {
	endpoint, job string
	sequence      int64
}

func (r *run) over() bool { return !r.ended.IsZero() }

// take records that the reader has all items before index upTo, and allows that many more to be sent.
// No more than were sent: a reader cannot enlarge the window.
func (r *run) take(upTo int64) {
	more := min(upTo, r.count) - r.taken
	if more <= 0 {
		return
	}
	r.taken += more
	r.kept = r.kept[more:]
	r.allow(more)
}

func (r *run) allow(items int64) {
	for ; items > 0 && r.credit != nil; items-- {
		select {
		case r.credit <- struct{}{}:
		default:
			return
		}
	}
}

// resend sends a new reader the items that were sent and not credited.
func (r *run) resend(caller *answerTo) {
	for place, item := range r.kept {
		caller.send([]any{opItem, caller.id, r.taken + int64(place), item})
	}
}
