package gangline

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const (
	heartbeatEvery   = time.Second
	heartbeatTTL     = 3 * time.Second
	registrationTTL  = time.Minute
	registerEvery    = 20 * time.Second
	leasesEvery      = 5 * time.Second
	storageTimeout   = 2 * time.Second
	version          = "0.1.0"
	markerTTLSeconds = 10
)

var errTaken = errors.New("another process has this worker id: give this one another id, or stop that one first")

// presence writes this worker's keys in the ledger: `reg` (what it serves), `alive` (its heartbeat), and its leases.
// It writes `alive` only while the key is its own, so that two processes with one id detect each other.
type presence struct {
	w          *Worker
	aliveAt    uint64 // revision of our own heartbeat
	beats      time.Time
	registered time.Time
	leases     time.Time
	published  bool
	written    int
}

func newPresence(w *Worker) *presence { return &presence{w: w} }

// claim takes the id, and returns the newest epoch of any process with this id.
func (p *presence) claim() (int64, error) {
	if err := p.bucket(); err != nil {
		return 0, err
	}
	epoch := int64(0)
	var first uint64
	for give := time.Now().Add(heartbeatTTL + time.Second); ; time.Sleep(250 * time.Millisecond) {
		revision, value, err := p.read(p.w.Names.Alive(p.w.Pool, p.w.ID))
		if err != nil {
			return 0, err
		}
		if value == nil {
			revision, err = p.put(p.w.Names.Alive(p.w.Pool, p.w.ID), p.heartbeat(), heartbeatTTL, &revision)
			if err == nil {
				p.aliveAt, p.beats = revision, time.Now()
				break
			}
			continue
		}
		epoch = max(epoch, epochOf(value))
		if first != 0 && revision != first || time.Now().After(give) {
			return 0, errTaken
		}
		first = revision
	}
	_, value, err := p.read(p.w.Names.Registration(p.w.Pool, p.w.ID))
	if value != nil {
		epoch = max(epoch, epochOf(value))
	}
	return epoch, err
}

func (p *presence) publish() error {
	p.published = true
	return p.register(true)
}

// tick writes the keys that are due. The answers of storage go to the worker's loop.
func (p *presence) tick(now time.Time) {
	if now.Sub(p.beats) >= heartbeatEvery {
		p.beats = now
		body, at := p.heartbeat(), p.aliveAt
		go func() {
			revision, err := p.put(p.w.Names.Alive(p.w.Pool, p.w.ID), body, heartbeatTTL, &at)
			p.w.post(func() { p.onBeat(revision, err) })
		}()
	}
	if p.published && now.Sub(p.registered) >= registerEvery {
		p.rewrite()
	}
	if now.Sub(p.leases) >= leasesEvery { // also restores keys after a lost connection or a server restart
		p.leases = now
		for _, lease := range p.w.slots.Leases {
			_, _ = p.record(lease, false)
		}
	}
}

func (p *presence) onBeat(revision uint64, err error) {
	if err == nil {
		p.aliveAt = revision
		return
	}
	revision, value, readErr := p.read(p.w.Names.Alive(p.w.Pool, p.w.ID))
	switch {
	case readErr != nil:
		_ = p.bucket() // a restarted server may have lost it
	case value == nil, instanceOf(value) == p.w.instance:
		p.aliveAt = revision
		p.beats = time.Time{}
		p.rewrite()
	default:
		slog.Error("another process took this worker's id: leaving")
		p.w.drain(0)
	}
}

func (p *presence) heartbeat() []byte {
	w := p.w
	body, _ := json.Marshal(map[string]any{"v": 1, "epoch": w.epoch, "instance": w.instance, "running": w.slots.Running,
		"reserved": w.slots.Reserved(), "total": w.slots.Total, "draining": w.slots.Draining, "models": []string{}})
	return body
}

func (p *presence) rewrite() {
	if p.published {
		p.registered = time.Now()
		_ = p.register(false)
	}
}

func (p *presence) register(wait bool) error {
	w := p.w
	state := "serving"
	if w.slots.Draining {
		state = "draining"
	}
	methods := map[string]any{}
	for name, task := range w.Tasks {
		methods[name] = map[string]any{"slots": 1, "idempotent": task.Idempotent, "streams": task.Streams,
			"description": task.Description}
	}
	host, _ := os.Hostname()
	if node := os.Getenv("GANGLINE_NODE"); node != "" {
		host = node
	}
	body, _ := json.Marshal(map[string]any{"v": 1, "pool": w.Pool, "worker": w.ID, "epoch": w.epoch, "instance": w.instance,
		"state": state, "slots": w.slots.Total, "methods": methods, "node": host, "zone": os.Getenv("GANGLINE_ZONE"),
		"labels": map[string]string{"language": "go"}, "pid": os.Getpid(), "version": version,
		"started_at": float64(w.startedAt.UnixMilli()) / 1000})
	key := w.Names.Registration(w.Pool, w.ID)
	if wait {
		_, err := p.put(key, body, registrationTTL, nil)
		return err
	}
	return p.send(key, body, registrationTTL)
}

// record writes a lease; with waiting it returns the revision, for a fence that grows over the whole system.
func (p *presence) record(lease *Lease, wait bool) (uint64, error) {
	w := p.w
	now := time.Now()
	left := lease.Due.Sub(now)
	body, _ := json.Marshal(map[string]any{"v": 1, "pool": w.Pool, "worker": w.ID, "epoch": w.epoch, "token": PublicID(lease.Token),
		"slots": lease.Slots, "fence": lease.Fence, "single_use": lease.SingleUse, "owner": lease.Owner,
		"granted_at": unix(lease.GrantedAt), "expires_at": unix(now.Add(left))})
	p.written++
	key := w.Names.Lease(w.Pool, w.ID, lease.Token)
	if wait {
		return p.put(key, body, left+time.Second, nil)
	}
	return 0, p.send(key, body, left+time.Second)
}

func (p *presence) forget(lease *Lease) { p.purge(p.w.Names.Lease(p.w.Pool, p.w.ID, lease.Token)) }

func (p *presence) withdraw() {
	p.purge(p.w.Names.Alive(p.w.Pool, p.w.ID))
	p.purge(p.w.Names.Registration(p.w.Pool, p.w.ID))
}

// -- the bucket, as plain messages ------------------------------------------------------------------------------------

func message(key string, body []byte, ttl time.Duration) *nats.Msg {
	m := nats.NewMsg(key)
	m.Data = body
	m.Header.Set("Nats-TTL", strconv.Itoa(int(math.Max(1, math.Ceil(ttl.Seconds()))))+"s")
	return m
}

// send writes without waiting for storage.
func (p *presence) send(key string, body []byte, ttl time.Duration) error {
	return p.w.conn.PublishMsg(message(key, body, ttl))
}

// put writes if the key is still at revision `at` (nil: unconditionally).
func (p *presence) put(key string, body []byte, ttl time.Duration, at *uint64) (uint64, error) {
	m := message(key, body, ttl)
	if at != nil {
		m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(*at, 10))
	}
	answer, err := p.w.conn.RequestMsg(m, storageTimeout)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Seq   uint64
		Error *struct{ Description string }
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, err
	}
	if ack.Error != nil {
		return 0, errors.New(ack.Error.Description)
	}
	return ack.Seq, nil
}

func (p *presence) purge(key string) {
	m := message(key, nil, markerTTLSeconds*time.Second)
	m.Header.Set("KV-Operation", "PURGE")
	_ = p.w.conn.PublishMsg(m)
}

// read returns the newest revision of a key, from the stream's leader; value nil: there is none, or it was deleted.
func (p *presence) read(key string) (uint64, []byte, error) {
	asked, _ := json.Marshal(map[string]string{"last_by_subj": key})
	answer, err := p.w.conn.Request("$JS.API.STREAM.MSG.GET.KV_"+p.w.Names.Bucket(), asked, storageTimeout)
	if err != nil {
		return 0, nil, err
	}
	var found struct {
		Message *struct {
			Seq  uint64
			Data []byte
			Hdrs []byte
		}
		Error *struct {
			Code        int
			ErrCode     int `json:"err_code"`
			Description string
		}
	}
	if err := json.Unmarshal(answer.Data, &found); err != nil {
		return 0, nil, err
	}
	if found.Error != nil {
		if found.Error.ErrCode == 10037 { // no message
			return 0, nil, nil
		}
		return 0, nil, errors.New(found.Error.Description)
	}
	headers := string(found.Message.Hdrs)
	if strings.Contains(headers, "KV-Operation:") || strings.Contains(headers, "Nats-Marker-Reason:") {
		return found.Message.Seq, nil, nil
	}
	return found.Message.Seq, found.Message.Data, nil
}

// bucket creates the ledger if it does not exist, as every part of Gangline does.
func (p *presence) bucket() error {
	name := p.w.Names.Bucket()
	storage := os.Getenv("GANGLINE_STORAGE")
	if storage == "" {
		storage = "memory"
	}
	replicas, _ := strconv.Atoi(os.Getenv("GANGLINE_REPLICAS"))
	asked, _ := json.Marshal(map[string]any{
		"name": "KV_" + name, "subjects": []string{"$KV." + name + ".>"}, "retention": "limits", "max_msgs_per_subject": 1,
		"discard": "new", "storage": storage, "num_replicas": max(1, replicas), "duplicate_window": int64(2 * time.Minute),
		"max_msgs": -1, "max_bytes": -1, "max_consumers": -1, "max_msg_size": -1,
		"allow_direct": true, "allow_rollup_hdrs": true, "deny_delete": true, "allow_msg_ttl": true, "allow_atomic": true,
		"subject_delete_marker_ttl": int64(markerTTLSeconds * time.Second),
		// Revisions of a recreated bucket continue above all revisions seen of an earlier one.
		"first_seq": time.Since(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds(),
	})
	answer, err := p.w.conn.Request("$JS.API.STREAM.CREATE.KV_"+name, asked, storageTimeout)
	if err != nil {
		return fmt.Errorf("no JetStream: %w", err)
	}
	var made struct {
		Error *struct {
			ErrCode     int `json:"err_code"`
			Description string
		}
	}
	_ = json.Unmarshal(answer.Data, &made)
	if made.Error != nil && made.Error.ErrCode != 10058 { // it exists
		return fmt.Errorf("bucket %s: %s", name, made.Error.Description)
	}
	return nil
}

// announce shows the worker to `nats service ls`.
func (w *Worker) announce() (micro.Service, error) {
	return micro.AddService(w.conn, micro.Config{Name: "gangline-worker", Version: version,
		Description: "tasks of pool " + w.Pool + ", in Go",
		Metadata:    map[string]string{"pool": w.Pool, "worker": w.ID}})
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func epochOf(value []byte) int64 {
	var record struct{ Epoch int64 }
	_ = json.Unmarshal(value, &record)
	return record.Epoch
}

func instanceOf(value []byte) string {
	var record struct{ Instance string }
	_ = json.Unmarshal(value, &record)
	return record.Instance
}
