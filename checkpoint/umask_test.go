//go:build unix

package checkpoint

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUmask: a checkpoint has the permissions that the umask of the process leaves, such as for the
// user alone, or also for a group that may continue from it.
func TestUmask(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	for _, umask := range []fs.FileMode{0o077, 0o002} {
		syscall.Umask(int(umask))
		dir := filepath.Join(t.TempDir(), "out")
		mustSave(t, dir, snapshot(1), Retention{})
		require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			require.NoError(t, err)
			info, err := os.Stat(path)
			require.NoError(t, err)
			want := fs.FileMode(0o666)
			if e.IsDir() {
				want = 0o777
			}
			require.Equal(t, want&^umask, info.Mode().Perm(), "%s, umask %03o", path, umask)
			return nil
		}))
	}
}
