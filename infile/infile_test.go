package infile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadHasAnEnd: a file without end is not read for ever.
func TestReadHasAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, make([]byte, 5), 0o600))
	text, err := Read(path, 5)
	require.NoError(t, err)
	require.Len(t, text, 5)
	_, err = Read(path, 4)
	require.ErrorContains(t, err, "more than 4 bytes")
}
