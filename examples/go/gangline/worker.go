package gangline

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	freezeAfter  = time.Second            // a longer stall of this process starts a new epoch
	tick         = 100 * time.Millisecond // how often timers are checked
	defaultGrace = 30 * time.Second
)

// Worker serves one pool. All state belongs to one goroutine, the loop of Serve; others send functions to it.
type Worker struct {
	Names     Names
	Pool, ID  string
	Tasks     map[string]Task
	conn      *nats.Conn
	epoch     int64
	epochs    map[int64]bool // of this process
	instance  string
	startedAt time.Time
	slots     *Slots
	memory    memory
	runs      map[*run]bool
	jobs      map[jobKey]*run // durable tasks that are running, or ended less than keepFor ago
	outbox    map[string][][]any
	counts    map[string]int
	presence  *presence
	events    chan func()
	looked    time.Time // last check of the clock
	drainBy   time.Time
	drained   chan struct{}
	requests  int64
}

// NewWorker declares a worker with this many slots; nothing is sent before Serve.
func NewWorker(conn *nats.Conn, namespace, pool, id string, slots int, tasks map[string]Task) (*Worker, error) {
	for kind, name := range map[string]string{"namespace": namespace, "pool": pool, "worker": id} {
		if err := CheckName(kind, name); err != nil {
			return nil, err
		}
	}
	w := &Worker{Names: Names{namespace}, Pool: pool, ID: id, Tasks: tasks, conn: conn,
		epochs: map[int64]bool{}, instance: randomName(), startedAt: time.Now(),
		memory: memory{map[string]*sender{}}, runs: map[*run]bool{}, jobs: map[jobKey]*run{},
		outbox: map[string][][]any{}, counts: map[string]int{}, events: make(chan func(), 4096),
		drained: make(chan struct{})}
	w.slots = newSlots(slots, 0)
	w.presence = newPresence(w)
	return w, nil
}

// Serve claims the id, serves until ctx ends (then it drains) or an operator drains it, and returns.
func (w *Worker) Serve(ctx context.Context) error {
	previous, err := w.presence.claim()
	if err != nil {
		return err
	}
	w.newEpoch(previous)
	subscription, err := w.conn.Subscribe(w.Names.Operations(w.Pool, w.ID), func(m *nats.Msg) {
		w.post(func() { w.take(m) })
	})
	if err != nil {
		return err
	}
	defer subscription.Unsubscribe()
	if err := w.conn.Flush(); err != nil {
		return err
	}
	discovery, err := w.announce()
	if err != nil {
		return err
	}
	defer discovery.Stop()
	if err := w.presence.publish(); err != nil {
		return err
	}
	w.event("joined")
	slog.Info("serving", "worker", w.Pool+"."+w.ID, "slots", w.slots.Total, "epoch", w.epoch)
	w.loop(ctx)
	w.presence.withdraw()
	w.event("left")
	return w.conn.Flush()
}

func (w *Worker) loop(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	w.looked = time.Now()
	stop := ctx.Done()
	for {
		select {
		case <-stop:
			stop = nil
			w.drain(defaultGrace)
		case <-w.drained:
			return
		case do := <-w.events:
			w.lookForFreeze()
			do()
			for more := true; more; { // answer together what arrived together
				select {
				case next := <-w.events:
					next()
				default:
					more = false
				}
			}
		case <-ticker.C:
			w.lookForFreeze()
			w.onTick(time.Now())
		}
		w.flush()
	}
}

func (w *Worker) post(do func()) { w.events <- do }

// lookForFreeze is called before anything else: messages that piled up during a freeze must meet a new epoch.
func (w *Worker) lookForFreeze() {
	now := time.Now()
	if gap := now.Sub(w.looked); gap > freezeAfter {
		slog.Warn("stood still, so all leases are void", "for", gap)
		w.newEpoch(w.epoch)
		w.presence.rewrite()
		w.event("epoch")
	}
	w.looked = now
}

func (w *Worker) newEpoch(previous int64) {
	w.epoch = max(previous+1, time.Now().UnixMilli())
	w.epochs[w.epoch] = true
	w.slots.NewEpoch(w.epoch)
}

func (w *Worker) onTick(now time.Time) {
	for _, lease := range w.slots.Expire(now) {
		w.presence.forget(lease)
	}
	w.memory.sweep(now)
	for key, r := range w.jobs {
		if r.over() && now.Sub(r.ended) > keepFor {
			delete(w.jobs, key)
		}
	}
	w.presence.tick(now)
	if !w.slots.Draining {
		return
	}
	if now.After(w.drainBy) {
		for _, lease := range w.slots.Leases {
			w.slots.End(lease, "lease_expired")
			w.presence.forget(lease)
		}
		for r := range w.runs {
			r.cancel(afterStart("task_cancelled", "the worker is leaving"))
		}
	}
	if len(w.runs) == 0 && len(w.slots.Leases) == 0 {
		select {
		case <-w.drained:
		default:
			close(w.drained)
		}
	}
}

func (w *Worker) drain(grace time.Duration) {
	by := time.Now().Add(grace)
	if w.slots.Draining && by.After(w.drainBy) {
		return
	}
	w.drainBy = by
	if !w.slots.Draining {
		w.slots.Draining = true
		w.presence.rewrite()
		w.event("draining")
	}
}

// take handles one message on one of our subjects.
func (w *Worker) take(m *nats.Msg) {
	operation := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if operation == "frames" {
		w.takeFrames(m)
	} else {
		w.takeRequest(operation, m)
	}
}

func (w *Worker) load() []any {
	draining := 0
	if w.slots.Draining {
		draining = 1
	}
	return []any{w.slots.Running, w.slots.Reserved(), w.slots.Total, draining}
}

// answer adds a frame to the message that the next flush sends to that subject.
func (w *Worker) answer(reply string, frame []any) {
	if reply != "" {
		w.outbox[reply] = append(w.outbox[reply], frame)
	}
}

func (w *Worker) flush() {
	for reply, frames := range w.outbox {
		delete(w.outbox, reply)
		if err := w.conn.Publish(reply, encodeAnswers(w.epoch, w.load(), frames)); err != nil {
			slog.Error("answers not sent", "to", reply, "error", err)
		}
	}
}

func (w *Worker) event(kind string) {
	body := fmt.Sprintf(`{"event":%q,"pool":%q,"worker":%q,"epoch":%d}`, kind, w.Pool, w.ID, w.epoch)
	_ = w.conn.Publish(w.Names.Event(w.Pool, w.ID), []byte(body))
}

func randomName() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:])
	return base64.RawURLEncoding.EncodeToString(bits[:])
}
