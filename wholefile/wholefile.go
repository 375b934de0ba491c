// Package wholefile writes files that are there whole or not at all: each under a temporary name beside its own, which it
// takes when all of it is on disk. Until then a reader sees the file before it, or none.
package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// File is a file that is being written.
type File struct {
	*os.File
	path string
	done bool // committed or discarded
}

// Create begins the file at path, in a directory that is there. Its error names path, not the temporary file.
func Create(path string) (*File, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "create", Path: path, Err: syscall.EISDIR}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &fs.PathError{Op: "create", Path: path, Err: at.Err}
	}
	if err != nil {
		return nil, err
	}
	return &File{File: f, path: path}, nil
}

// Finish puts everything written on disk, under the temporary name still. Nothing can be written after it.
func (f *File) Finish() error {
	if err := f.Chmod(0o644); err != nil { // CreateTemp's are private
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// Commit gives a finished file its name, in place of what had it.
func (f *File) Commit() error {
	if err := os.Rename(f.Name(), f.path); err != nil {
		return err
	}
	f.done = true
	// The name is on disk only once the directory is.
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Discard removes a file that is not committed. It may be called again.
func (f *File) Discard() error {
	if f.done {
		return nil
	}
	f.done = true
	err := f.Close()
	if errors.Is(err, os.ErrClosed) { // it was finished
		err = nil
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// Write writes a whole file, and makes its directory if there is none.
func Write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Finish(); err != nil {
		return err
	}
	return f.Commit()
}
