// A producer in Go: calls tasks, submits durable ones, and reads their results.
//
//	producer call TARGET [BODY]        run a task, and print its result
//	producer submit TARGET [BODY] [Header:Value ...]
//	                                   publish a durable task, and print its job's id
//	producer result JOB                wait for the result, and print it
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"example.com/gangline-go/gangline"
	"github.com/nats-io/nats.go"
)

const patience = 30 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) < 2 {
		return errors.New("usage: producer call|submit TARGET [BODY] [Header:Value ...], or producer result JOB")
	}
	url, namespace := os.Getenv("NATS_URL"), os.Getenv("GANGLINE_NAMESPACE")
	if url == "" {
		url = nats.DefaultURL
	}
	if namespace == "" {
		namespace = "gangline"
	}
	conn, err := nats.Connect(url, nats.Timeout(patience))
	if err != nil {
		return err
	}
	defer conn.Close()
	names := gangline.Names{Namespace: namespace}
	body := ""
	if len(words) > 2 {
		body = words[2]
	}
	switch words[0] {
	case "call":
		return call(conn, names.Call(words[1]), body)
	case "submit":
		var headers []string
		if len(words) > 3 {
			headers = words[3:]
		}
		return submit(conn, names.Task(words[1]), body, headers)
	case "result":
		return result(conn, namespace, words[1])
	}
	return fmt.Errorf("%q is not call, submit or result", words[0])
}

func call(conn *nats.Conn, subject, body string) error {
	answer, err := conn.Request(subject, []byte(body), patience)
	if err != nil {
		return err
	}
	if problem := answer.Header.Get("Nats-Service-Error"); problem != "" {
		return fmt.Errorf("%s: %s", answer.Header.Get("Nats-Service-Error-Code"), problem)
	}
	fmt.Println(string(answer.Data))
	return nil
}

// submit returns when the server has stored the task; after that it cannot be lost.
func submit(conn *nats.Conn, subject, body string, headers []string) error {
	task := nats.NewMsg(subject)
	task.Data = []byte(body)
	for _, each := range headers {
		name, value, _ := strings.Cut(each, ":")
		task.Header.Set(name, strings.TrimSpace(value))
	}
	answer, err := conn.RequestMsg(task, patience)
	if err != nil {
		return err
	}
	var ack struct {
		Seq   uint64
		Error *struct{ Description string }
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return err
	}
	if ack.Error != nil {
		return errors.New(ack.Error.Description)
	}
	if job := task.Header.Get("Gangline-Job"); job != "" {
		fmt.Println(job)
	} else {
		fmt.Println(ack.Seq) // without an id of its own, a job's id is its sequence in the stream
	}
	return nil
}

// record is the entry of an ended job in the result bucket.
type record struct {
	State  string
	Result json.RawMessage
	Reason string
	Error  *struct{ Message string }
}

// results opens the result bucket. The first dispatcher of a namespace creates it. A task may be stored before that, so
// this waits for the bucket.
func results(stream nats.JetStreamContext, name string, limit <-chan time.Time) (nats.KeyValue, error) {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		bucket, err := stream.KeyValue(name)
		if !errors.Is(err, nats.ErrBucketNotFound) {
			return bucket, err
		}
		select {
		case <-look.C:
		case <-limit:
			return nil, fmt.Errorf("%s: %w: does a dispatcher run?", name, err)
		}
	}
}

func result(conn *nats.Conn, namespace, job string) error {
	stream, err := conn.JetStream()
	if err != nil {
		return err
	}
	limit := time.After(patience)
	bucket, err := results(stream, strings.ToUpper(namespace)+"_RESULTS", limit)
	if err != nil {
		return err
	}
	watcher, err := bucket.Watch("result." + job)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for {
		select {
		case entry := <-watcher.Updates():
			if entry == nil { // the end of the existing entries
				continue
			}
			var end record
			if err := json.Unmarshal(entry.Value(), &end); err != nil {
				return err
			}
			if end.State != "done" {
				if end.Error != nil {
					return fmt.Errorf("%s (%s): %s", end.State, end.Reason, end.Error.Message)
				}
				return errors.New(end.State)
			}
			fmt.Println(string(end.Result))
			return nil
		case <-limit:
			return fmt.Errorf("job %s has no result after %s", job, patience)
		}
	}
}
