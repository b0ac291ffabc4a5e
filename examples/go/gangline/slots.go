package gangline

import "time"

// Lease is the right to use slots of this worker for a bounded time; its token is its identity.
type Lease struct {
	Token     string
	Slots     int
	Busy      int // slots in use by its tasks
	TTL       time.Duration
	Due       time.Time // when it ends: first the claim timeout, later TTL after each use or renewal
	SingleUse bool
	Owner     string
	Fence     int64
	GrantedAt time.Time
	ended     string // why its token is no longer valid, as an error code
}

// Slots is the limiter that all paths share: reserved + running never exceeds total.
type Slots struct {
	Total    int
	Running  int
	Leases   map[string]*Lease
	Draining bool
	ended    map[string]*Lease
	fence    int64
}

func newSlots(total int, epoch int64) *Slots {
	return &Slots{Total: total, Leases: map[string]*Lease{}, ended: map[string]*Lease{}, fence: epoch << 20}
}

// Reserved is the number of slots held by leases but not in use.
func (s *Slots) Reserved() int {
	reserved := 0
	for _, lease := range s.Leases {
		reserved += lease.Slots - lease.Busy
	}
	return reserved
}

func (s *Slots) Free() int { return max(0, s.Total-s.Running-s.Reserved()) }

// Grant reserves slots, or returns why not: "full" or "draining".
func (s *Slots) Grant(token string, slots int, ttl, claim time.Duration, single bool, owner string, now time.Time) (*Lease, string) {
	if s.Draining {
		return nil, "draining"
	}
	if slots > s.Free() {
		return nil, "full"
	}
	s.fence++
	lease := &Lease{Token: token, Slots: slots, TTL: ttl, Due: now.Add(claim), SingleUse: single, Owner: owner,
		Fence: s.fence, GrantedAt: now}
	s.Leases[token] = lease
	return lease, ""
}

// Find returns the live lease of a token; an overdue one ends here, even if its timer has not fired.
func (s *Slots) Find(token string, now time.Time) (*Lease, *Failure) {
	if lease, ok := s.Leases[token]; ok {
		if lease.Due.After(now) {
			return lease, nil
		}
		s.End(lease, "lease_expired")
	}
	if lease, ok := s.ended[token]; ok {
		switch lease.ended {
		case "lease_expired":
			return nil, failure(410, "lease_expired", "lease %.8s... ran out: reserve again, and renew in time", token)
		case "stale_epoch":
			return nil, failure(409, "stale_epoch", "lease %.8s... is of an earlier epoch: reserve again", token)
		}
		return nil, failure(404, "unknown_token", "lease %.8s... was used up or released: reserve again", token)
	}
	return nil, failure(404, "unknown_token", "no lease %.8s... here: reserve one first", token)
}

// End frees the idle slots of a lease now, and the others when their tasks end.
func (s *Slots) End(lease *Lease, why string) {
	delete(s.Leases, lease.Token)
	lease.ended = why
	s.ended[lease.Token] = lease
}

// Expire ends overdue leases.
func (s *Slots) Expire(now time.Time) (ended []*Lease) {
	for _, lease := range s.Leases {
		if !lease.Due.After(now) {
			s.End(lease, "lease_expired")
			ended = append(ended, lease)
		}
	}
	for token, lease := range s.ended {
		if now.Sub(lease.Due) > time.Minute && lease.Busy == 0 {
			delete(s.ended, token)
		}
	}
	return ended
}

// Start puts a task of one slot on a lease (token) or on a free slot (none).
// The reason is one of REJECTED; a failure is an error of the lease.
func (s *Slots) Start(token string, now time.Time) (lease *Lease, reason string, problem *Failure) {
	if token == "" {
		switch {
		case s.Draining:
			return nil, "draining", nil
		case s.Free() < 1:
			return nil, "full", nil
		}
		s.Running++
		return nil, "", nil
	}
	lease, problem = s.Find(token, now)
	if problem != nil {
		return nil, "", problem
	}
	if lease.Busy == lease.Slots {
		return nil, "", failure(429, "lease_busy", "all slots of lease %.8s... are in use: wait for a task to end", token)
	}
	s.Running++
	if lease.SingleUse {
		s.End(lease, "used")
		return nil, "", nil // from here on the slot belongs to the task
	}
	lease.Busy++
	lease.Due = now.Add(lease.TTL)
	return lease, "", nil
}

// Spend consumes a single-use token whose task cannot start.
func (s *Slots) Spend(token string, now time.Time) {
	if token == "" {
		return
	}
	if lease, problem := s.Find(token, now); problem == nil && lease.SingleUse {
		s.End(lease, "used")
	}
}

// Finish takes a task off its slot: back to its lease, or free.
func (s *Slots) Finish(lease *Lease) {
	s.Running--
	if lease != nil {
		lease.Busy--
	}
}

// NewEpoch drops every lease; running tasks continue and stay counted.
func (s *Slots) NewEpoch(epoch int64) {
	s.fence = max(s.fence, epoch<<20)
	for _, lease := range s.Leases {
		s.End(lease, "stale_epoch")
	}
}
