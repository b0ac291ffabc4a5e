package gangline

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

const wireVersion = 1

// Operations of frames from routers, and of answers.
const (
	opTask, opReserve, opRenew, opRelease, opCancel, opCheck, opCredit            = 1, 2, 3, 4, 5, 6, 7
	opOK, opError, opGranted, opRejected, opRenewed, opChecked, opItem, opEnd int = 1, 2, 3, 4, 5, 6, 7, 8

	flagStream, flagAttach        = 1, 4 // of TASK
	flagSingleUse, flagSync       = 1, 2 // of RESERVE
	stateUnknown, stateRunning    = 0, 1 // of CHECKED
	stateAnswered, stateForgotten = 2, 3
	reasonStale, reasonExpired    = "stale", "expired"
	reasonUnknownJob, reasonFull  = "unknown_job", "full"
)

type envelope struct {
	Epoch  int64
	Sender string
	Frames [][]any
}

// places is the length of each frame, including its operation.
var places = map[int64]int{opTask: 10, opReserve: 8, opRenew: 4, opRelease: 3, opCancel: 2, opCheck: 3, opCredit: 3}

func decodeEnvelope(data []byte) (*envelope, error) {
	decoder := msgpack.NewDecoder(bytes.NewReader(data))
	decoder.UseLooseInterfaceDecoding(true) // every integer is an int64
	value, err := decoder.DecodeInterfaceLoose()
	if err != nil {
		return nil, fmt.Errorf("not msgpack: %w", err)
	}
	parts, ok := value.([]any)
	if !ok || len(parts) != 4 {
		return nil, errors.New("an envelope is an array of four")
	}
	if version, ok := whole(parts[0]); !ok || version != wireVersion {
		return nil, fmt.Errorf("wire version %v is not spoken here, only %d", parts[0], wireVersion)
	}
	epoch, okEpoch := whole(parts[1])
	sender, okSender := parts[2].(string)
	list, okList := parts[3].([]any)
	if !okEpoch || !okSender || !okList || sender == "" || len(sender) > 64 {
		return nil, errors.New("an envelope is [version, epoch, sender, frames]")
	}
	result := &envelope{Epoch: epoch, Sender: sender}
	for _, each := range list {
		frame, ok := each.([]any)
		if !ok || len(frame) == 0 {
			return nil, errors.New("a frame is an array that starts with its operation")
		}
		operation, _ := whole(frame[0])
		if expected, known := places[operation]; !known || len(frame) != expected {
			return nil, fmt.Errorf("frame %v with %d places is not known", frame[0], len(frame))
		}
		if _, ok := whole(frame[1]); !ok && operation != opRelease {
			return nil, fmt.Errorf("frame %d: the id is %v", operation, frame[1])
		}
		result.Frames = append(result.Frames, frame)
	}
	return result, nil
}

func encodeAnswers(epoch int64, load []any, frames [][]any) []byte {
	data, err := msgpack.Marshal([]any{wireVersion, epoch, load, frames})
	if err != nil { // a result that cannot be serialized is turned into an error before it gets here
		panic(err)
	}
	return data
}

func errorFrame(id int64, f *Failure) []any {
	var details any
	if f.Details != nil {
		details = f.Details
	}
	return []any{opError, id, f.Code, f.Message, details, f.MayHaveStarted}
}

// whole reads an integer in any msgpack encoding.
func whole(value any) (int64, bool) {
	switch n := value.(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n < 1<<63
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int32:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int:
		return int64(n), true
	}
	return 0, false
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
