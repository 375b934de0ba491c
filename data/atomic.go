package data

import (
	"bufio"
	"os"
	"path/filepath"
)

// atomicFile is a file being written under a temporary name beside its final
// one, which it takes in commit. Until then a reader sees the old file or none.
type atomicFile struct {
	*bufio.Writer
	f    *os.File
	path string
}

// createFile begins the file, making its directory if needed.
func createFile(path string) (*atomicFile, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	return &atomicFile{bufio.NewWriterSize(f, 1<<16), f, path}, nil
}

// finish puts everything written on the disk, still under the temporary name.
func (a *atomicFile) finish() error {
	if err := a.Flush(); err != nil {
		return err
	}
	if err := a.f.Chmod(0o644); err != nil {
		return err
	}
	if err := a.f.Sync(); err != nil {
		return err
	}
	return a.f.Close()
}

// commit gives a finished file its name.
func (a *atomicFile) commit() error { return os.Rename(a.f.Name(), a.path) }

// discard removes the temporary file. It does nothing after commit.
func (a *atomicFile) discard() {
	a.f.Close()
	os.Remove(a.f.Name())
}

// WriteFile writes a whole file, and its directory if needed: others see all of it or none.
func WriteFile(path string, content []byte) error {
	a, err := createFile(path)
	if err != nil {
		return err
	}
	defer a.discard()
	if _, err := a.Write(content); err != nil {
		return err
	}
	if err := a.finish(); err != nil {
		return err
	}
	return a.commit()
}
