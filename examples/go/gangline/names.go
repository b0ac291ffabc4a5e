// Package gangline is a worker for Gangline, written from docs/reference/protocol.md alone.
//
// It shows what a worker in another language needs: slots and leases (slots.go), a cache of earlier requests (memory.go),
// frames of routers (frames.go, intake.go), requests of operators and other languages (requests.go), and its keys in the
// ledger (presence.go). It does not support gangs, and answers so to a coordinator.
package gangline

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Names builds every subject and key.
type Names struct{ Namespace string }

// CheckName reports why a name is not valid as one token of a subject.
func CheckName(kind, value string) error {
	if !namePattern.MatchString(value) {
		return fmt.Errorf("%s %q: use 1 to 128 letters, digits, '_' and '-'", kind, value)
	}
	return nil
}

func (n Names) Bucket() string { return strings.ToUpper(n.Namespace) + "_LEDGER" }

func (n Names) Operations(pool, worker string) string {
	return fmt.Sprintf("%s.worker.%s.%s.*", n.Namespace, pool, worker)
}

func (n Names) Event(pool, worker string) string {
	return fmt.Sprintf("%s.event.worker.%s.%s", n.Namespace, pool, worker)
}

func (n Names) key(kind, pool, worker string) string {
	return fmt.Sprintf("$KV.%s.%s.%s.%s", n.Bucket(), kind, pool, worker)
}

func (n Names) Registration(pool, worker string) string { return n.key("reg", pool, worker) }
func (n Names) Alive(pool, worker string) string        { return n.key("alive", pool, worker) }
func (n Names) Lease(pool, worker, token string) string {
	return n.key("lease", pool, worker) + "." + PublicID(token)[1:]
}

// PublicID names a lease where others can read it. It does not give the token away.
func PublicID(token string) string {
	digest := sha256.Sum256([]byte(token))
	return "~" + base64.RawURLEncoding.EncodeToString(digest[:16])
}

func (n Names) Call(target string) string { return n.Namespace + ".call." + target }
func (n Names) Task(target string) string { return n.Namespace + ".task." + target }
func (n Names) Result(job string) string {
	return fmt.Sprintf("$KV.%s_RESULTS.result.%s", strings.ToUpper(n.Namespace), job)
}
