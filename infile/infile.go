// Package infile opens files that users name. No wait is without bound: opening a named pipe waits
// for a writer, and a device may have no end.
package infile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Open opens a regular file, which can be read at any offset. Anything else is a *[fs.PathError];
// it is not even opened.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	return os.Open(path)
}

// Same reports whether two names are of the same existing file.
func Same(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// WithoutPath returns the cause of an error of package os without the path, for errors that name the
// file themselves. It returns other errors as they are.
func WithoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// patience is how long a pipe may be without a writer. A shell opens one when it starts the writer.
const patience = 10 * time.Second

// Read reads a file of at most most bytes, or a pipe that somebody writes to. Anything larger was
// given by mistake, or has no end, like a device.
func Read(path string, most int64) ([]byte, error) { return read(path, most, patience) }

func read(path string, most int64, patience time.Duration) ([]byte, error) {
	file, err := openWithin(path, patience)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d bytes, too many for what it is given as", most)
	}
	return text, err
}

// openWithin opens a file of any kind. It opens a named pipe in the background, since only a writer
// ends that call.
func openWithin(path string, patience time.Duration) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return os.Open(path)
	}
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened)
	late := make(chan struct{})
	go func() {
		file, err := os.Open(path)
		select {
		case done <- opened{file, err}:
		case <-late:
			file.Close()
		}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-time.After(patience):
		close(late)
		return nil, &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("a pipe that nobody writes to (waited %v)", patience)}
	}
}
