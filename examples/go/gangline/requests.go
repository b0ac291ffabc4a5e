package gangline

import (
	"bytes"
	"encoding/json"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"
)

const typeMsgpack = "application/msgpack"

// requester answers one request exactly once, in the request's format.
type requester struct {
	w       *Worker
	m       *nats.Msg
	msgpack bool
}

func (q *requester) encode(value any) ([]byte, error) {
	if q.msgpack {
		return msgpack.Marshal(value)
	}
	return json.Marshal(value)
}

func (q *requester) send(body []byte, headers map[string]string) {
	if q.m.Reply == "" {
		return
	}
	answer := nats.NewMsg(q.m.Reply)
	answer.Data = body
	for name, value := range headers {
		answer.Header.Set(name, value)
	}
	if q.msgpack {
		answer.Header.Set("Content-Type", typeMsgpack)
	}
	_ = q.w.conn.PublishMsg(answer)
}

func (q *requester) reply(value map[string]any) {
	body, _ := q.encode(value)
	q.send(body, nil)
}

func (q *requester) result(value any) {
	body, err := q.encode(value)
	if err != nil {
		q.fail(afterStart("invalid_result", "%v", err))
		return
	}
	q.send(body, map[string]string{"Gangline-Worker": q.w.Pool + "." + q.w.ID})
}

func (q *requester) fail(f *Failure) {
	body, _ := q.encode(f)
	q.send(body, map[string]string{
		"Nats-Service-Error":      strings.Join(strings.Fields(f.Message), " "),
		"Nats-Service-Error-Code": strconv.Itoa(f.Status),
	})
}

func (w *Worker) refuse(m *nats.Msg, f *Failure) {
	(&requester{w: w, m: m, msgpack: m.Header.Get("Content-Type") == typeMsgpack}).fail(f)
}

// fields of each operation, with the kind of each: n(umber), b(ool), t(ext), k (token), a(rguments), * anything.
var fields = map[string]map[string]byte{
	"reserve":  {"rid": 'k', "slots": 'n', "ttl_s": 'n', "claim_s": 'n', "single_use": 'b', "ledger": 't', "owner": 't'},
	"dispatch": {"token": 'k', "epoch": 'n', "method": 't', "arguments": 'a', "timeout_s": 'n'},
	"renew":    {"token": 'k', "epoch": 'n', "ttl_s": 'n'},
	"release":  {"token": 'k', "rid": 'k'},
	"drain":    {"grace_s": 'n'},
	"resize":   {"slots": 'n'},
	"stats":    {},
	"jobs":     {"endpoint": 't', "after": 't'},
	// Sent by the leading coordinator: this worker does not support gangs.
	"hold": nil, "keep": nil,
}

type body map[string]any

func (b body) number(name string, otherwise float64) float64 {
	switch n := b[name].(type) {
	case float64:
		return n
	case json.Number:
		f, _ := n.Float64()
		return f
	case nil:
		return otherwise
	default:
		if whole, ok := whole(n); ok {
			return float64(whole)
		}
		return otherwise
	}
}

func (q *requester) read(operation string) (body, *Failure) {
	kind, _, _ := strings.Cut(q.m.Header.Get("Content-Type"), ";")
	switch strings.TrimSpace(kind) {
	case "", "application/json":
	case typeMsgpack:
		q.msgpack = true
	default:
		return nil, failure(400, "malformed_message", "Content-Type %q is not known: use application/json or %s", kind, typeMsgpack)
	}
	expected, known := fields[operation]
	if !known {
		return nil, failure(404, "unknown_method", "a worker has no operation %q", operation)
	}
	var value any
	if len(bytes.TrimSpace(q.m.Data)) > 0 {
		var err error
		if q.msgpack {
			decoder := msgpack.NewDecoder(bytes.NewReader(q.m.Data))
			value, err = decoder.DecodeInterfaceLoose()
		} else {
			err = json.Unmarshal(q.m.Data, &value)
		}
		if err != nil {
			format := map[bool]string{true: "msgpack", false: "JSON"}[q.msgpack]
			return nil, failure(400, "malformed_message", "not %s: %v", format, err)
		}
	}
	if value == nil {
		value = map[string]any{}
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, failure(400, "invalid_request", "the body is a %T: send an object", value)
	}
	if expected == nil {
		return object, nil
	}
	for name, given := range object {
		kind, ok := expected[name]
		if !ok {
			return nil, failure(400, "invalid_request", "no field %q; fields: %s", name, listed(expected))
		}
		if given != nil && !fits(kind, given) {
			return nil, failure(400, "invalid_request", "%s: not as it must be, given %v", name, given)
		}
	}
	return object, nil
}

func fits(kind byte, value any) bool {
	switch kind {
	case 'n':
		_, isFloat := value.(float64)
		_, isWhole := whole(value)
		return isFloat || isWhole
	case 'b':
		_, ok := value.(bool)
		return ok
	case 't':
		_, ok := value.(string)
		return ok
	case 'k':
		s, ok := value.(string)
		return ok && len(s) <= 64 && namePattern.MatchString(s)
	case 'a':
		switch value.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	}
	return true
}

func listed(names map[string]byte) string {
	var all []string
	for name := range names {
		all = append(all, name)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

func (w *Worker) takeRequest(operation string, m *nats.Msg) {
	q := &requester{w: w, m: m}
	asked, problem := q.read(operation)
	if problem == nil {
		problem = w.carryOut(operation, q, asked, time.Now())
	}
	if problem != nil {
		q.fail(problem)
	}
}

func (w *Worker) carryOut(operation string, q *requester, asked body, now time.Time) *Failure {
	own := w.memory.of("", now) // the common sender of all requests
	switch operation {
	case "reserve":
		return w.onReserveRequest(q, asked, own, now)
	case "dispatch":
		return w.onDispatch(q, asked, own, now)
	case "renew":
		if problem := w.checkEpoch(asked); problem != nil {
			return problem
		}
		ttl := time.Duration(asked.number("ttl_s", 0) * float64(time.Second))
		left, problem := w.renew(text(asked["token"]), ttl, now)
		if problem != nil {
			return problem
		}
		q.reply(body{"ttl_s": left.Seconds(), "load": w.loadReply()})
	case "release":
		if asked["token"] == nil && asked["rid"] == nil {
			return failure(400, "invalid_request", "token or rid: name the lease to release")
		}
		released := w.release(own, asked["rid"], text(asked["token"]), now)
		q.reply(body{"released": released, "load": w.loadReply()})
	case "drain":
		grace := asked.number("grace_s", defaultGrace.Seconds())
		if grace < 0 {
			return failure(400, "invalid_request", "grace_s: below 0, given %v", grace)
		}
		w.drain(time.Duration(grace * float64(time.Second)))
		q.reply(body{"draining": true, "load": w.loadReply()})
	case "resize":
		slots := asked.number("slots", -1)
		if slots < 0 || slots != float64(int(slots)) {
			return failure(400, "invalid_request", "slots: a whole number from 0 on, given %v", asked["slots"])
		}
		w.slots.Total = int(slots)
		w.presence.rewrite()
		q.reply(body{"slots": w.slots.Total, "load": w.loadReply()})
	case "stats":
		q.reply(w.statistics(now))
	case "jobs":
		q.reply(body{"epoch": w.epoch, "jobs": w.listJobs(text(asked["endpoint"]))})
	case "hold":
		q.reply(body{"accepted": false, "reason": "draining", "epoch": w.epoch, "reg_revision": 0, "tokens": []any{},
			"load": w.loadReply()})
	case "keep":
		q.reply(body{"kept": 0, "load": w.loadReply()})
	}
	return nil
}

func (w *Worker) onReserveRequest(q *requester, asked body, own *sender, now time.Time) *Failure {
	slots, ttl := asked.number("slots", 1), asked.number("ttl_s", 15)
	claim := asked.number("claim_s", ttl)
	if slots < 1 || slots != float64(int(slots)) {
		return failure(400, "invalid_request", "slots: a whole number from 1 on, given %v", asked["slots"])
	}
	if ttl < 1 || ttl > 86400 || claim < 0.05 || claim > 300 {
		return failure(400, "invalid_request", "ttl_s is 1 to 86400 and claim_s 0.05 to 300, given %v and %v", ttl, claim)
	}
	single, _ := asked["single_use"].(bool)
	lease, reason, problem := w.reserve(own, asked["rid"], int(slots), time.Duration(ttl*float64(time.Second)),
		time.Duration(claim*float64(time.Second)), single, text(asked["owner"]), now)
	if problem != nil {
		return problem
	}
	if lease == nil {
		q.reply(body{"accepted": false, "reason": reason, "epoch": w.epoch, "load": w.loadReply()})
		return nil
	}
	if text(asked["ledger"]) == "sync" {
		revision, err := w.presence.record(lease, true)
		if err != nil {
			w.slots.End(lease, "released")
			return failure(503, "storage_unavailable", "the ledger did not take the lease: %v", err)
		}
		lease.Fence = int64(revision)
	}
	q.reply(body{"accepted": true, "token": lease.Token, "epoch": w.epoch, "fence": lease.Fence,
		"ttl_s": lease.TTL.Seconds(), "load": w.loadReply()})
	return nil
}

func (w *Worker) onDispatch(q *requester, asked body, own *sender, now time.Time) *Failure {
	if problem := w.checkEpoch(asked); problem != nil {
		return problem
	}
	method, token := text(asked["method"]), text(asked["token"])
	if token == "" || method == "" {
		return failure(400, "invalid_request", "token, method: both are needed")
	}
	task, ok := w.Tasks[method]
	if !ok {
		w.slots.Spend(token, now)
		return w.unknownMethod(method)
	}
	fence := int64(0)
	if lease := w.slots.Leases[token]; lease != nil {
		fence = lease.Fence
	}
	lease, _, problem := w.slots.Start(token, now)
	if problem != nil {
		return problem
	}
	if single := w.slots.ended[token]; single != nil {
		w.presence.forget(single)
	}
	args, _ := asked["arguments"].([]any)
	named, _ := asked["arguments"].(map[string]any)
	var deadline time.Time
	if seconds := asked.number("timeout_s", 0); seconds > 0 {
		deadline = now.Add(time.Duration(seconds * float64(time.Second)))
	}
	w.requests++
	caller := &answerTo{sender: own, id: w.requests, send: func(frame []any) {
		if operation, _ := whole(frame[0]); operation == int64(opOK) {
			q.result(frame[2])
			return
		}
		details, _ := frame[4].(map[string]any)
		started, _ := frame[5].(bool)
		q.fail(&Failure{Status: statusOf(text(frame[2])), Code: text(frame[2]), Message: text(frame[3]), Details: details,
			MayHaveStarted: started})
	}}
	r := &run{method: method, lease: lease, attempt: 1, callers: []*answerTo{caller}}
	w.launch(r, task, &Call{Args: args, Named: named, Attempt: 1, Fence: fence}, deadline)
	return nil
}

func statusOf(code string) int {
	switch code {
	case "invalid_arguments":
		return 422
	case "task_cancelled":
		return 499
	case "deadline_exceeded":
		return 504
	}
	return 500
}

func (w *Worker) unknownMethod(method string) *Failure {
	var names []string
	for name := range w.Tasks {
		names = append(names, name)
	}
	sort.Strings(names)
	return failure(404, "unknown_method", "pool '%s' has no task '%.80s'; it has: %s", w.Pool, method, strings.Join(names, ", "))
}

func (w *Worker) checkEpoch(asked body) *Failure {
	if asked["epoch"] == nil || int64(asked.number("epoch", 0)) == w.epoch {
		return nil
	}
	return failure(409, "stale_epoch", "epoch %v is not that of worker %s.%s, which is %d: reserve again",
		asked["epoch"], w.Pool, w.ID, w.epoch)
}

func (w *Worker) loadReply() map[string]any {
	reserved := w.slots.Reserved()
	return map[string]any{"running": w.slots.Running, "reserved": reserved, "total": w.slots.Total,
		"ongoing": w.slots.Running + reserved, "free": w.slots.Free(), "draining": w.slots.Draining}
}

func (w *Worker) statistics(now time.Time) map[string]any {
	leases := []any{}
	for _, lease := range w.slots.Leases {
		leases = append(leases, map[string]any{"token": PublicID(lease.Token), "slots": lease.Slots, "running": lease.Busy,
			"single_use": lease.SingleUse, "owner": lease.Owner, "expires_in_s": lease.Due.Sub(now).Seconds()})
	}
	tasks := map[string]any{}
	for _, kind := range []string{"started", "succeeded", "failed", "cancelled", "crashed", "rejected"} {
		tasks[kind] = w.counts[kind]
	}
	return map[string]any{"pool": w.Pool, "worker": w.ID, "epoch": w.epoch, "load": w.loadReply(), "leases": leases,
		"tasks": tasks, "gangs": []any{}, "ledger": map[string]any{"written": w.presence.written}}
}

func (w *Worker) listJobs(endpoint string) []any {
	jobs := []any{}
	for key, r := range w.jobs {
		if endpoint == "" || endpoint == key.endpoint {
			jobs = append(jobs, map[string]any{"job": key.job, "endpoint": key.endpoint, "sequence": key.sequence, "attempt": r.attempt, "running": !r.over()})
		}
	}
	return jobs
}
