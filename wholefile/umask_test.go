//go:build unix

package wholefile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUmask: files and directories have the permissions that the umask of the process leaves.
func TestUmask(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	for _, umask := range []int{0o077, 0o002} {
		syscall.Umask(umask)
		path := filepath.Join(t.TempDir(), "sub", "a")
		require.NoError(t, Write(path, nil))
		for name, want := range map[string]int{path: 0o666, filepath.Dir(path): 0o777} {
			info, err := os.Stat(name)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(want&^umask), info.Mode().Perm(), "%s, umask %03o", name, umask)
		}
	}
}
