package wholefile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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

	long := filepath.Join(dir, strings.Repeat("a", 1000))
	require.EqualError(t, Write(long, nil), "create "+long+": file name too long")
	path := filepath.Join(dir, "a")
	f, err := Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = f.Write([]byte("a"))
	require.EqualError(t, err, "write "+path+": file already closed")
	require.EqualError(t, f.Finish(), "sync "+path+": file already closed")
}

// TestLongNames: a file may have the longest name that the file system allows.
func TestLongNames(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []int{241, 242, 255} {
		path := filepath.Join(dir, strings.Repeat("a", n))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Skipf("%d bytes are too many here: %v", n, err)
		}
		require.NoError(t, Write(path, []byte("whole")))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "whole", string(text))
	}
}

// TestObstacle: a file where a directory is to be made, or above it, or a link that leads nowhere.
func TestObstacle(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link, good, loop := filepath.Join(dir, "link"), filepath.Join(dir, "good"), filepath.Join(dir, "loop")
	require.NoError(t, os.Symlink("gone", link))
	require.NoError(t, os.Symlink(dir, good))
	require.NoError(t, os.Symlink("loop", loop))
	for path, want := range map[string]string{
		dir: "", filepath.Join(dir, "a", "b"): "", file: file + " is a file", filepath.Join(file, "a", "b"): file + " is a file", "": "", "/": "",
		link: link + " is a link to gone, which leads nowhere", filepath.Join(link, "a"): link + " is a link to gone, which leads nowhere",
		link + "/../a": link + " is a link to gone, after which .. may not lead back; leave both out", dir + "/a/../b": "",
		good + "//../a/": good + " is a link to " + dir + ", after which .. may not lead back; leave both out",
		loop:             loop + " is a link to loop, which leads nowhere", good: "", filepath.Join(good, "a"): "",
	} {
		require.Equal(t, want, Obstacle(path), path)
	}
}

// TestUnwritable: that no file can be made is known from trying, in the directory nearest above one that is to be made.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		require.Empty(t, Unwritable(path))
	}
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, all)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Equal(t, "no file can be made in "+file+": not a directory", Unwritable(file))
	if runtime.GOOS == "linux" {
		for _, path := range []string{"/proc", "/proc/a/b"} {
			require.Equal(t, "no file can be made in /proc: no such file or directory", Unwritable(path))
		}
	}
}

// TestLeftovers: what a killed process has left goes when the file is written again; what is being written, and what only looks
// like it, stays.
func TestLeftovers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nothing tells what is left from what is being written")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.bin")
	left, other := filepath.Join(dir, tempForm(path)+"0123abcd.tmp"), filepath.Join(dir, tempForm("b.bin")+"0123abcd.tmp")
	for _, name := range []string{left, other} {
		require.NoError(t, os.WriteFile(name, []byte("half"), 0o644))
	}
	f, err := Create(path)
	require.NoError(t, err)
	require.NoFileExists(t, left)
	require.FileExists(t, other)
	_, err = f.Write([]byte("mine"))
	require.NoError(t, err)
	require.NoError(t, f.Finish())
	require.NoError(t, Write(path, []byte("of another")))
	require.NoError(t, f.Commit(), "it was being written")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
}

// TestWrittenByMany: the file that one begins is not removed by another that begins at the same time, even before the first has
// locked it.
func TestWrittenByMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for range 500 {
				f, err := Create(path)
				if err == nil {
					err = f.Discard() // which fails if the file has lost its name
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}
