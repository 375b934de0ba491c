//go:build unix

package data

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPipesAreNoBins: a pipe in place of a data file is refused; opening it would wait for a
// writer.
func TestPipesAreNoBins(t *testing.T) {
	for name, opened := range map[string]string{TrainFile: "cannot open (`autopar data prepare` writes it)", MetaFile: "cannot open"} {
		dir := t.TempDir()
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
		_, err := OpenBins(dir, BinsOptions{BlockSize: 2})
		require.EqualError(t, err, "data: "+filepath.Join(dir, name)+": "+opened+": not a regular file")
	}
}
