package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWrongFlags: they are told before any file is read.
func TestWrongFlags(t *testing.T) {
	for _, c := range []struct {
		mode, checkout   string
		gigabytes, batch int
		file, rest, want string
	}{
		{"search", "dir", 36, 64, "", "", ""},
		{"price", "dir", 36, 64, "plan.json", "", ""},
		{"search", "dir", 36, 64, "", "x", `"x" is no flag`},
		{"prize", "dir", 36, 64, "", "", `-mode is "prize", want search, plan or price`},
		{"search", "", 36, 64, "", "", "-checkout is missing: the directory of a clone of Galvatron"},
		{"search", "dir", 0, 64, "", "", "-memory is 0 GB, must be between 1 and 1048576"},
		{"search", "dir", 36, -1, "", "", "-batch is -1, must be at least 1"},
		{"price", "dir", 36, 64, "", "", "-o is missing: the file of the plan to price"},
	} {
		var rest []string
		if c.rest != "" {
			rest = []string{c.rest}
		}
		b := bench{batch: c.batch, file: c.file}
		require.Equal(t, c.want, b.wrong(c.mode, c.checkout, c.gigabytes, rest))
	}
}
