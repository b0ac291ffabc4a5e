package gangline

import "fmt"

// Failure is an error on the wire: in an ERROR frame, or with Nats-Service-Error.
type Failure struct {
	Code           string         `json:"code" msgpack:"code"`
	Message        string         `json:"message" msgpack:"message"`
	MayHaveStarted bool           `json:"may_have_started" msgpack:"may_have_started"`
	Details        map[string]any `json:"details,omitempty" msgpack:"details,omitempty"`
	Status         int            `json:"-" msgpack:"-"`
}

func (f *Failure) Error() string { return f.Code + ": " + f.Message }

func failure(status int, code, format string, values ...any) *Failure {
	return &Failure{Status: status, Code: code, Message: fmt.Sprintf(format, values...)}
}

// BadArguments is what a task returns when its arguments do not fit.
func BadArguments(format string, values ...any) error {
	return failure(422, "invalid_arguments", format, values...)
}

func afterStart(code, format string, values ...any) *Failure {
	f := failure(500, code, format, values...)
	f.MayHaveStarted = true
	return f
}
