package gangline

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"
)

// takeFrames processes one envelope. A malformed one is refused as a whole.
func (w *Worker) takeFrames(m *nats.Msg) {
	received, err := decodeEnvelope(m.Data)
	if err != nil {
		w.refuse(m, failure(400, "malformed_message", "%v", err))
		return
	}
	now := time.Now()
	from := w.memory.of(received.Sender, now)
	stale := received.Epoch != w.epoch
	send := func(frame []any) { w.answer(m.Reply, frame) }
	for _, frame := range received.Frames {
		operation, _ := whole(frame[0])
		id, _ := whole(frame[1])
		switch operation {
		case opTask:
			w.onTask(from, frame, stale, send, now)
		case opReserve:
			w.onReserve(from, frame, stale, send, now)
		case opRenew:
			w.onRenew(frame, stale, send, now)
		case opRelease:
			w.release(from, frame[1], text(frame[2]), now)
		case opCancel:
			w.onCancel(from, id, now)
		case opCheck:
			send([]any{opChecked, id, w.check(from, frame[2], w.epochs[received.Epoch], send, now)})
		case opCredit:
			items, _ := whole(frame[2])
			if r := from.running[id]; r != nil && r.reader != nil && r.reader.sender == from && r.reader.id == id {
				r.take(r.taken + items)
			}
		}
	}
}

func reject(id int64, reason string) []any { return []any{opRejected, id, reason} }

// onTask starts a task, or answers why not. The same id gets the same answer again and starts nothing.
func (w *Worker) onTask(from *sender, frame []any, stale bool, send func([]any), now time.Time) {
	id, _ := whole(frame[1])
	method, token := text(frame[2]), text(frame[6])
	flags, _ := whole(frame[8])
	meta, _ := frame[9].(map[string]any)
	if known, ok := from.done[id]; ok {
		w.slots.Spend(token, now)
		if known.answer == nil {
			send(reject(id, reasonExpired))
		} else {
			send(known.answer)
		}
		return
	}
	if _, ok := from.running[id]; ok {
		return
	}
	if id <= from.floor {
		send(errorFrame(id, afterStart("result_lost", "task %d was seen too long ago", id)))
		return
	}
	attaches := flags&flagAttach != 0 // it starts nothing, so it is safe in any epoch
	if stale && !attaches {
		send(reject(id, reasonStale))
		return
	}
	settle := func(answer []any) { from.settle(id, answer, now); send(answer) }
	caller := &answerTo{sender: from, id: id, items: flags&flagStream != 0, send: send}
	attempt, ok := whole(meta["attempt"])
	if !ok || attempt < 1 {
		attempt = 1
	}
	sequence, _ := whole(meta["sequence"])
	key := jobKey{text(meta["endpoint"]), text(meta["job"]), sequence}
	if key.endpoint == "" {
		key.endpoint = w.Pool
	}
	if r := w.jobs[key]; r != nil && (!r.over() || attaches || !r.failed || attempt <= r.attempt) {
		w.slots.Spend(token, now)
		w.attach(r, caller, meta["items"], settle)
		return
	}
	if attaches {
		settle(reject(id, reasonUnknownJob))
		return
	}
	task, ok := w.Tasks[method]
	if !ok {
		w.slots.Spend(token, now)
		settle(errorFrame(id, w.unknownMethod(method)))
		return
	}
	if caller.items && !task.Streams {
		w.slots.Spend(token, now)
		settle(errorFrame(id, failure(400, "invalid_request", "%s.%s does not stream", w.Pool, method)))
		return
	}
	var deadline time.Time
	if ms, given := whole(frame[5]); given {
		if ms <= 0 {
			w.slots.Spend(token, now)
			settle(reject(id, reasonExpired))
			return
		}
		deadline = now.Add(time.Duration(ms) * time.Millisecond)
	}
	fence := int64(0)
	if lease := w.slots.Leases[token]; lease != nil {
		fence = lease.Fence
	}
	lease, reason, problem := w.slots.Start(token, now)
	switch {
	case problem != nil:
		settle(errorFrame(id, problem))
		return
	case reason != "":
		settle(reject(id, reason))
		return
	}
	args, _ := frame[3].([]any)
	named, _ := frame[4].(map[string]any)
	window, ok := whole(meta["window"])
	if !ok {
		window = 64
	}
	if key.job != "" {
		fence = attempt
		if given, ok := whole(meta["fence"]); ok { // also grows across dispatchers
			fence = given
		}
	}
	r := &run{method: method, endpoint: key.endpoint, job: key.job, sequence: sequence, attempt: attempt, lease: lease,
		callers: []*answerTo{caller}}
	if caller.items {
		r.reader = caller
		r.credit = make(chan struct{}, 1<<16)
		r.allow(window)
	}
	if single := w.slots.ended[token]; single != nil {
		w.presence.forget(single)
	}
	w.launch(r, task, &Call{Args: args, Named: named, Job: key.job, Attempt: attempt, Fence: fence}, deadline)
}

// attach gives a caller the answer of a durable task that is running here, or has just ended. A caller that reads items
// gets those from index `items` on that were not credited yet, and becomes the reader.
func (w *Worker) attach(r *run, caller *answerTo, items any, settle func([]any)) {
	if caller.items && r.credit != nil {
		if start, given := whole(items); given {
			r.take(start)
		}
		r.resend(caller)
		r.reader = caller
	}
	if r.over() {
		settle(withID(r.answer, caller.id))
		return
	}
	caller.sender.running[caller.id] = r
	r.callers = append(r.callers, caller)
}

func withID(frame []any, id int64) []any {
	copied := append([]any(nil), frame...)
	copied[1] = id
	return copied
}

// launch runs the task in its own goroutine, and reports its outcome to the loop.
func (w *Worker) launch(r *run, task Task, call *Call, deadline time.Time) {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	stop := func() {}
	if !deadline.IsZero() {
		timer := time.AfterFunc(time.Until(deadline), func() {
			cancel(afterStart("deadline_exceeded", "%s.%s ran into its deadline", w.Pool, r.method))
		})
		stop = func() { timer.Stop() }
	}
	call.Context = ctx
	items := []any{}
	call.yield = func(item any) bool {
		if r.credit == nil {
			items = append(items, item)
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.credit:
		}
		w.post(func() { w.onItem(r, item) })
		return true
	}
	w.runs[r] = true
	for _, caller := range r.callers {
		caller.sender.running[caller.id] = r
	}
	if r.job != "" {
		w.jobs[jobKey{r.endpoint, r.job, r.sequence}] = r
	}
	w.counts["started"]++
	go func() {
		value, err := protected(task.Run, call)
		stop()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		if err == nil && task.Streams && r.credit == nil {
			value = items
		}
		w.post(func() { w.onEnd(r, value, err) })
	}()
}

func protected(work func(*Call) (any, error), call *Call) (value any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return work(call)
}

func (w *Worker) onItem(r *run, item any) {
	for _, caller := range r.callers {
		if caller.items {
			caller.send([]any{opItem, caller.id, r.count, item})
		}
	}
	r.kept = append(r.kept, item)
	r.count++
}

func (w *Worker) onEnd(r *run, value any, err error) {
	now := time.Now()
	delete(w.runs, r)
	w.slots.Finish(r.lease)
	r.ended = now
	var problem *Failure
	if err == nil && r.credit == nil {
		if encoded, unwritable := msgpack.Marshal(value); unwritable != nil {
			problem = afterStart("invalid_result", "the result of %s.%s: %v", w.Pool, r.method, unwritable)
		} else if limit := int(w.conn.MaxPayload()) - 1024; len(encoded) > limit {
			problem = afterStart("invalid_result", "the result is %d bytes, at most %d fit: store it, and return where",
				len(encoded), limit)
		}
	} else if err != nil {
		problem = asFailure(err, w.Pool+"."+r.method)
	}
	r.failed = problem != nil
	for place, caller := range r.callers {
		var answer []any
		switch {
		case problem != nil:
			answer = errorFrame(caller.id, problem)
		case caller.items && r.credit != nil:
			answer = []any{opEnd, caller.id, r.count}
		default:
			answer = []any{opOK, caller.id, value}
		}
		if place == 0 {
			r.answer = answer
		}
		caller.sender.settle(caller.id, answer, now)
		caller.send(answer)
	}
	switch {
	case problem == nil:
		w.counts["succeeded"]++
	case problem.Code == "task_cancelled":
		w.counts["cancelled"]++
	default:
		w.counts["failed"]++
	}
}

func asFailure(err error, target string) *Failure {
	if known, ok := err.(*Failure); ok {
		return known
	}
	f := afterStart("task_failed", "%s failed: %v", target, err)
	f.Details = map[string]any{"type": fmt.Sprintf("%T", err), "traceback": ""}
	return f
}

func (w *Worker) onCancel(from *sender, id int64, now time.Time) {
	if r, ok := from.running[id]; ok {
		r.cancel(afterStart("task_cancelled", "the caller cancelled the task"))
	} else if _, known := from.done[id]; !known && id > from.floor {
		from.settle(id, nil, now) // it has not arrived yet, and will be refused when it does
	}
}

// check reports the state of tasks. One that never arrived is refused from now on. ours: they were sent to this process,
// and not to an earlier one with the same id, whose tasks are unknown.
func (w *Worker) check(from *sender, asked any, ours bool, send func([]any), now time.Time) []int {
	ids, _ := asked.([]any)
	states := make([]int, 0, len(ids))
	for _, each := range ids {
		id, _ := whole(each)
		known, done := from.done[id]
		_, running := from.running[id]
		switch {
		case running:
			states = append(states, stateRunning)
		case done && known.answer != nil:
			send(known.answer)
			states = append(states, stateAnswered)
		case !done && id <= from.floor, !ours:
			states = append(states, stateForgotten)
		default:
			from.settle(id, nil, now)
			states = append(states, stateUnknown)
		}
	}
	return states
}

// -- leases of frames -------------------------------------------------------------------------------------------------

func (w *Worker) onReserve(from *sender, frame []any, stale bool, send func([]any), now time.Time) {
	id, _ := whole(frame[1])
	slots, _ := whole(frame[2])
	ttl, _ := whole(frame[3])
	claim, _ := whole(frame[4])
	flags, _ := whole(frame[5])
	if stale {
		send(reject(id, reasonStale))
		return
	}
	if ms, given := whole(frame[6]); given && ms <= 0 {
		send(reject(id, reasonExpired))
		return
	}
	meta, _ := frame[7].(map[string]any)
	lease, reason, problem := w.reserve(from, id, int(slots), milliseconds(ttl), milliseconds(claim),
		flags&flagSingleUse != 0, text(meta["owner"]), now)
	switch {
	case problem != nil:
		send(errorFrame(id, problem))
	case reason != "":
		send(reject(id, reason))
	default:
		granted := func() { send([]any{opGranted, id, lease.Token, lease.Fence, lease.TTL.Milliseconds()}) }
		if flags&flagSync != 0 {
			if revision, err := w.presence.record(lease, true); err != nil {
				w.slots.End(lease, "used")
				send(errorFrame(id, failure(503, "storage_unavailable", "the ledger did not take the lease: %v", err)))
				return
			} else if revision > 0 {
				lease.Fence = int64(revision)
			}
		}
		granted()
	}
}

// reserve grants slots; the same request id gets the same answer again.
func (w *Worker) reserve(from *sender, rid any, slots int, ttl, claim time.Duration, single bool, owner string,
	now time.Time) (*Lease, string, *Failure) {
	if rid != nil {
		if known, ok := from.reserves[rid]; ok {
			if known.lease != nil && known.lease.ended != "" {
				return nil, reasonExpired, nil
			}
			return known.lease, known.reason, nil
		}
	}
	if slots > w.slots.Total {
		return nil, "", failure(400, "invalid_request", "%d slots were asked for and worker %s.%s has %d: ask for fewer",
			slots, w.Pool, w.ID, w.slots.Total)
	}
	lease, reason := w.slots.Grant(randomName(), slots, ttl, claim, single, owner, now)
	if rid != nil {
		from.reserves[rid] = reserved{lease, reason, now}
	}
	if lease != nil {
		_, _ = w.presence.record(lease, false)
	}
	return lease, reason, nil
}

// release ends a lease by token or by request id. If it overtakes its reserve, it leaves a tombstone.
func (w *Worker) release(from *sender, rid any, token string, now time.Time) bool {
	if number, ok := whole(rid); ok {
		rid = number
	}
	if token == "" && rid != nil {
		known, ok := from.reserves[rid]
		if !ok {
			from.reserves[rid] = reserved{nil, reasonExpired, now}
			return false
		}
		if known.lease == nil {
			return false
		}
		token = known.lease.Token
	}
	lease, problem := w.slots.Find(token, now)
	if problem != nil {
		return false
	}
	w.slots.End(lease, "released")
	w.presence.forget(lease)
	return true
}

func (w *Worker) onRenew(frame []any, stale bool, send func([]any), now time.Time) {
	id, _ := whole(frame[1])
	ttl, _ := whole(frame[3])
	if stale {
		send(reject(id, reasonStale))
		return
	}
	left, problem := w.renew(text(frame[2]), milliseconds(ttl), now)
	if problem != nil {
		send(errorFrame(id, problem))
		return
	}
	send([]any{opRenewed, id, max(1, left.Milliseconds())})
}

func (w *Worker) renew(token string, ttl time.Duration, now time.Time) (time.Duration, *Failure) {
	lease, problem := w.slots.Find(token, now)
	if problem != nil {
		return 0, problem
	}
	if ttl > 0 {
		lease.TTL = ttl
	}
	lease.Due = now.Add(lease.TTL)
	if w.slots.Draining && lease.Due.After(w.drainBy) {
		lease.Due = w.drainBy
	}
	_, _ = w.presence.record(lease, false)
	return lease.Due.Sub(now), nil
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
