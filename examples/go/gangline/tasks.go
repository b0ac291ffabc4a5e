package gangline

import (
	"context"
	"time"
)

// Call is what a task gets.
type Call struct {
	Context context.Context // ends when the caller cancels, at the deadline, and at the end of a drain
	Args    []any
	Named   map[string]any
	Job     string // of a durable task; else empty
	Attempt int64
	Fence   int64
	yield   func(any) bool
}

// Yield gives one item of a streamed result; false: nobody reads on, or the task shall stop.
func (c *Call) Yield(item any) bool { return c.yield(item) }

// Argument is an argument by name or by place; nil if it was not given.
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
	items  bool // it reads items as they come
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
	reader   *answerTo     // whose credit counts: the newest caller that reads items
	credit   chan struct{} // one for each item that the reader has room for; nil: it is started to read none
	count    int64         // items sent
	taken    int64         // of them, what the reader has said it took
	kept     []any         // the others
	ended    time.Time
	failed   bool
	answer   []any // of the first caller
}

// jobKey names a durable task. Ids are the producers', who may use one again at another endpoint, or when the first has
// ended: the place in the stream tells them apart.
type jobKey struct {
	endpoint, job string
	sequence      int64
}

func (r *run) over() bool { return !r.ended.IsZero() }

// take notes that the reader has all items before number upTo, and lets so many more come.
// No more than were sent: the window cannot be talked larger.
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

// resend gives a new reader what was sent and not taken.
func (r *run) resend(caller *answerTo) {
	for place, item := range r.kept {
		caller.send([]any{opItem, caller.id, r.taken + int64(place), item})
	}
}
