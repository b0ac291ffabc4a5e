package gangline

import "time"

// keepFor is how long an answer can be had again.
const keepFor = time.Minute

// answered is a task id that has its answer, or was withdrawn before it came (answer nil).
type answered struct {
	answer []any
	at     time.Time
}

// sender is what is remembered of one router: nothing is granted or started twice for it, nor after it was undone.
type sender struct {
	running  map[int64]*run
	done     map[int64]answered
	reserves map[any]reserved // by request id: a number of frames, a text of requests
	floor    int64            // ids up to here were seen and forgotten
	seen     time.Time
}

// reserved is the answer to a reserve; released before it came: no lease, reason "expired".
type reserved struct {
	lease  *Lease
	reason string
	at     time.Time
}

type memory struct{ senders map[string]*sender }

func (m *memory) of(name string, now time.Time) *sender {
	known, ok := m.senders[name]
	if !ok {
		known = &sender{running: map[int64]*run{}, done: map[int64]answered{}, reserves: map[any]reserved{}, floor: -1}
		m.senders[name] = known
	}
	known.seen = now
	return known
}

func (s *sender) settle(id int64, answer []any, now time.Time) {
	s.done[id] = answered{answer, now}
	delete(s.running, id)
}

// sweep forgets what is old; the floor says of forgotten ids that they were seen.
func (m *memory) sweep(now time.Time) {
	for name, s := range m.senders {
		for id, known := range s.done {
			if now.Sub(known.at) > keepFor {
				s.floor = max(s.floor, id)
				delete(s.done, id)
			}
		}
		for rid, known := range s.reserves {
			if now.Sub(known.at) > keepFor && (known.lease == nil || known.lease.ended != "") {
				delete(s.reserves, rid)
			}
		}
		if len(s.running) == 0 && now.Sub(s.seen) > 10*keepFor {
			delete(m.senders, name)
		}
	}
}
