package gangline

import "time"

// keepFor is how long an answer is kept.
const keepFor = time.Minute

// answered is a task id with its answer, or one that was cancelled before it arrived (answer nil).
type answered struct {
	answer []any
	at     time.Time
}

// sender remembers the requests of one router, so that none is granted or started twice, or after it was cancelled.
type sender struct {
	running  map[int64]*run
	done     map[int64]answered
	reserves map[any]reserved // by request id: a number in frames, a string in requests
	floor    int64            // ids up to here were seen and forgotten
	seen     time.Time
}

// reserved is the answer to a reserve. If it was released before it arrived: no lease, reason "expired".
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

// sweep forgets old ids; those up to the floor count as seen.
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
