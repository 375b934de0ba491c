package config

import (
	"fmt"
	"strings"
)

// SetFlag is the File of errors in an override.
const SetFlag = "--set"

// Error is an input that cannot be used. It prints as "gpt.yaml:3: model.n_layer: wants an integer, got ...".
type Error struct {
	File string // as given by the caller, or SetFlag
	Line int    // 1-based; 0 when no line applies
	Key  string // section.key, or empty
	Msg  string
	Err  error // cause, if any
}

func (e *Error) Error() string {
	var parts []string
	switch {
	case e.File != "" && e.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", e.File, e.Line))
	case e.File != "":
		parts = append(parts, e.File)
	}
	if e.Key != "" {
		parts = append(parts, e.Key)
	}
	parts = append(parts, e.Msg)
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// origin is where a value was written. The zero origin is a default.
type origin struct {
	file string
	line int
}

func (o origin) refuse(key, format string, args ...any) *Error {
	return &Error{File: o.file, Line: o.line, Key: key, Msg: fmt.Sprintf(format, args...)}
}
