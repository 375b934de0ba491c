package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The generated files in the package are those this generator writes.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	files, err := generate()
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		if string(got) != string(want) {
			t.Errorf("%s is out of date; run: go generate ./runtime/cpu/kernel", name)
		}
	}
}
