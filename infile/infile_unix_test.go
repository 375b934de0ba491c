//go:build unix

package infile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newPipe(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

// TestOpen: what is not a regular file is refused before it is opened.
func TestOpen(t *testing.T) {
	path := newPipe(t)
	_, err := Open(path)
	require.EqualError(t, err, "open "+path+": not a regular file")
	_, err = Open(filepath.Dir(path))
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(path + "s")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestReadWaitsForAWriter: Read waits for a late writer and reads until it is done, but does not
// wait for ever for one to come.
func TestReadWaitsForAWriter(t *testing.T) {
	path := newPipe(t)
	_, err := read(path, 9, 20*time.Millisecond)
	require.EqualError(t, err, "open "+path+": a pipe that nobody writes to (waited 20ms)")
	go func() {
		time.Sleep(20 * time.Millisecond)
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			w.WriteString("first ")
			time.Sleep(40 * time.Millisecond)
			w.WriteString("last")
			w.Close()
		}
	}()
	text, err := read(path, 10, 30*time.Second)
	require.NoError(t, err)
	require.Equal(t, "first last", string(text))
}
