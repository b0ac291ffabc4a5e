// A worker of the pool "shop" in Go, configured by GANGLINE_WORKER (its name), NATS_URL and GANGLINE_NAMESPACE.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/gangline-go/gangline"
	"github.com/nats-io/nats.go"
)

var tasks = map[string]gangline.Task{
	"count": {Run: count, Description: "Words of a text.", Idempotent: true},
	"pause": {Run: pause, Description: "Sleep, and say how long."},
	"fail":  {Run: fail, Description: "Fail with a text."},
	"upto":  {Run: upTo, Description: "Numbers from 0 on.", Streams: true},
}

func count(call *gangline.Call) (any, error) {
	text, ok := call.Argument(0, "text").(string)
	if !ok {
		return nil, gangline.BadArguments("shop.count: text: Input should be a valid string")
	}
	return len(strings.Fields(text)), nil
}

func pause(call *gangline.Call) (any, error) {
	seconds, ok := number(call.Argument(0, "seconds"))
	if !ok {
		return nil, gangline.BadArguments("shop.pause: seconds: Input should be a valid number")
	}
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return seconds, nil
	case <-call.Context.Done():
		return nil, call.Context.Err()
	}
}

func fail(call *gangline.Call) (any, error) {
	text, _ := call.Argument(0, "text").(string)
	return nil, errors.New(text)
}

func upTo(call *gangline.Call) (any, error) {
	end, ok := number(call.Argument(0, "end"))
	if !ok {
		return nil, gangline.BadArguments("shop.upto: end: Input should be a valid integer")
	}
	for n := 0; n < int(end) && call.Yield(n); n++ {
	}
	return nil, nil
}

func number(value any) (float64, bool) {
	switch n := value.(type) {
	case float64:
		return n, true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	}
	return 0, false
}

func main() {
	conn, err := nats.Connect(setting("NATS_URL", nats.DefaultURL), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.Timeout(30*time.Second), nats.Name("gangline go worker"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	slots, err := strconv.Atoi(setting("GANGLINE_SLOTS", "2"))
	if err != nil || slots < 1 {
		log.Fatalf("GANGLINE_SLOTS is %q: give a number from 1 on", os.Getenv("GANGLINE_SLOTS"))
	}
	worker, err := gangline.NewWorker(conn, setting("GANGLINE_NAMESPACE", "gangline"), "shop",
		setting("GANGLINE_WORKER", "go-1"), slots, tasks)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := worker.Serve(ctx); err != nil {
		log.Fatal(err)
	}
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
