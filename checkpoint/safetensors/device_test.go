package safetensors_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
)

// TestNoFileInPlaceOfADevice: an existing path that is not a regular file is not replaced.
func TestNoFileInPlaceOfADevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, safetensors.WriteFile(path, nil), "is there and no file")
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket, info.Mode().Type())
}
