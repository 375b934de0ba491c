package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestLostResults: a command whose results are not where they should be has failed.
func TestLostResults(t *testing.T) {
	for _, args := range [][]string{{"cluster"}, {"size", "../../examples/quick.yaml"}} {
		var stderr bytes.Buffer
		require.Equal(t, statusFailed, execute(context.Background(), args, full{}, &stderr), args)
		require.Contains(t, stderr.String(), "results are lost: no space left")
	}
}

// TestWriteFile: a file is replaced, also by the name of a link, and what is none stays what it is.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, writeFile(file, []byte("old")))
	require.NoError(t, writeFile(link, []byte("new")))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "new", string(text))

	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	require.Error(t, writeFile(socket, nil))
	info, err := os.Lstat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket, info.Mode().Type())
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, all, 3)
}
