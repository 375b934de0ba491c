// Package wholefile writes files that exist completely or not at all. A file is written under a
// temporary name in the same directory and renamed when all of it is on disk. Until then a reader
// sees the previous file, or none. What a killed process has left under a temporary name is removed
// when the file is written again.
package wholefile

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// File is a file that is being written.
type File struct {
	*os.File
	path string
	done bool // committed or discarded
}

// Create begins the file at path, whose directory must exist. Its error names path, not the
// temporary file.
func Create(path string) (*File, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "create", Path: path, Err: syscall.EISDIR}
	}
	sweep(path)
	f, err := createTemp(path)
	if err != nil {
		return nil, naming(path, "create", err)
	}
	return &File{File: f, path: path}, nil
}

// naming makes an error about a temporary file one about the file that it was to become.
func naming(path, op string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: op, Path: path, Err: at.Err}
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: op, Path: path, Err: at.Err}
	}
	return err
}

// Write is that of [os.File], with an error that names the file.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, naming(f.path, "write", err)
}

// tempForm returns the beginning of the temporary names of a file. It is short, as the name of the
// file itself may be as long as the file system allows, and another for another name.
func tempForm(path string) string {
	sum := fnv.New64a()
	sum.Write([]byte(filepath.Base(path)))
	return fmt.Sprintf(".%016x.", sum.Sum64())
}

// createTemp is os.CreateTemp in the directory of path, with permissions by the umask like any
// file; those of package os are for the user alone.
func createTemp(path string) (*os.File, error) {
	for try := 0; ; try++ {
		name := fmt.Sprintf("%s%08x.tmp", tempForm(path), rand.Uint32())
		f, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil {
			if failed := lock(f); failed == nil && gone(f) || errors.Is(failed, syscall.EWOULDBLOCK) { // sweep was faster: it has removed the file, or is about to
				f.Close()
				err = fs.ErrExist
			}
		}
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return f, err
		}
	}
}

// gone reports whether a file has lost its name.
func gone(f *os.File) bool {
	_, err := os.Stat(f.Name())
	return errors.Is(err, fs.ErrNotExist)
}

// sweep removes what killed processes have left of a file. Living processes hold a lock on theirs.
// Failures do not matter.
func sweep(path string) {
	form := regexp.MustCompile(`^` + regexp.QuoteMeta(tempForm(path)) + `[0-9a-f]{8}\.tmp$`)
	entries, _ := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if !e.Type().IsRegular() || !form.MatchString(e.Name()) {
			continue
		}
		if f, err := os.Open(filepath.Join(filepath.Dir(path), e.Name())); err == nil {
			if lock(f) == nil {
				os.Remove(f.Name())
			}
			f.Close()
		}
	}
}

// Finish makes everything written durable, still under the temporary name. Nothing may be written
// after it.
func (f *File) Finish() error { return naming(f.path, "sync", f.Sync()) }

// Commit gives a finished file its name. It replaces an existing file.
func (f *File) Commit() error {
	if err := os.Rename(f.Name(), f.path); err != nil {
		return naming(f.path, "create", err)
	}
	f.done = true
	if err := f.Close(); err != nil { // releases the lock
		return err
	}
	// The name is on disk only when the directory is.
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
	return errors.Join(os.Remove(f.Name()), f.Close())
}

// Obstacle says what keeps dir from being made: dir itself or a path above it that is a file, or a
// link to nothing, or a link before "..", which is above what the link names for the system, but above
// the link where paths are joined. It returns "" if nothing does.
func Obstacle(dir string) string {
	words := strings.Split(filepath.ToSlash(dir), "/")
	for i, word := range words {
		before := filepath.Clean(strings.Join(words[:i], "/"))
		if to, err := os.Readlink(before); word == ".." && err == nil {
			return fmt.Sprintf("%s is a link to %s, after which .. may not lead back; leave both out", before, to)
		}
	}
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		to, noLink := os.Readlink(at)
		switch {
		case err == nil && !info.IsDir():
			return at + " is a file"
		case err == nil || at == filepath.Dir(at):
			return ""
		case noLink == nil && !errors.Is(err, fs.ErrPermission):
			return fmt.Sprintf("%s is a link to %s, which leads nowhere", at, to)
		}
	}
}

// Unwritable says why no file can be begun in dir, or where it is to be made: in the directory nearest
// above. It returns "" if one can, which it has tried, and if a disk or a network has failed, which may
// be over when a file is written.
func Unwritable(dir string) string {
	dir = filepath.Clean(dir)
	for up := filepath.Dir(dir); up != dir; dir, up = up, filepath.Dir(up) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	path := filepath.Join(dir, "probe")
	sweep(path)
	temp, err := createTemp(path)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	switch {
	case err == nil:
		(&File{File: temp}).Discard()
	case !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE) && !errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Sprintf("no file can be made in %s: %v", dir, err)
	}
	return ""
}

// Write writes a whole file, and makes its directory if there is none.
func Write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
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
