package wholefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWholeOrNothing: a file that is begun is not there, and the one before stays, until it is committed; one that is
// discarded leaves nothing behind.
func TestWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "a")
	require.NoError(t, Write(path, []byte("before")))
	holds := func(want string) {
		t.Helper()
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	for _, commit := range []bool{false, true} {
		f, err := Create(path)
		require.NoError(t, err)
		_, err = f.Write([]byte("after"))
		require.NoError(t, err)
		holds("before")
		require.NoError(t, f.Finish())
		holds("before")
		if commit {
			require.NoError(t, f.Commit())
			holds("after")
		}
		require.NoError(t, f.Discard())
		require.NoError(t, f.Discard())
		there, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, there, 1)
	}
	holds("after")
}

// TestErrorsNameTheFile, not the temporary one.
func TestErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Create(dir)
	require.EqualError(t, err, "create "+dir+": is a directory")
	missing := filepath.Join(dir, "none", "a")
	_, err = Create(missing)
	require.EqualError(t, err, "create "+missing+": no such file or directory")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.Error(t, Write(filepath.Join(dir, "file", "a"), nil))
}
