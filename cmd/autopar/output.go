package main

import (
	"os"
	"path/filepath"

	"github.com/autopar/autopar/wholefile"
)

// put writes a result to a file, or prints it where none is named or "-".
func (c *console) put(path string, text []byte) error {
	if path == "" || path == "-" {
		_, err := c.stdout.Write(text)
		return err
	}
	return writeFile(path, text)
}

// writeFile writes a result to a file, whole or not at all: what is there stays when the disk is full. What is no
// file, such as a pipe, is written to.
func writeFile(path string, text []byte) error {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		path = at
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, text, 0o666)
	}
	return wholefile.Write(path, text)
}
