package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/wholefile"
)

// training is the context of a command that trains, and where it prints. A line that cannot be printed is no reason to lose
// hours of training: the command goes on, and has failed at its end. Where nobody reads the lines any more, as when Ctrl-C
// ends tee too, it finishes and saves, instead of being killed by the next line.
func (c *console) training(ctx context.Context) (context.Context, io.Writer) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // writes return the error, then
	ctx, gone := context.WithCancel(ctx)
	return ctx, trainingOutput{c, gone}
}

// trainingOutput is the standard output of a command that trains.
type trainingOutput struct {
	con  *console
	gone func()
}

// Write never fails.
func (o trainingOutput) Write(text []byte) (int, error) {
	_, err := o.con.stdout.Write(text)
	o.con.lose(err)
	if errors.Is(err, syscall.EPIPE) {
		o.gone()
	}
	return len(text), nil
}

// apart refuses an output that is one of the files a command reads, or writes besides: a plan or a configuration that somebody
// has edited would be gone. Files that are not named are "" or "-"; to write to a pipe or a terminal replaces nothing.
func apart(flag, out string, others ...string) error {
	info, err := os.Stat(out)
	regular := err == nil && info.Mode().IsRegular()
	for _, other := range others {
		if out != "" && out != "-" && other != "" && (filepath.Clean(out) == filepath.Clean(other) || regular && infile.Same(out, other)) {
			return usagef("%s %s would replace %s; name another file", flag, out, other)
		}
	}
	return nil
}

// notDirectory refuses an output that cannot be written because of what is there, before work is done for it.
func notDirectory(flag, out string) error {
	if info, err := os.Stat(out); err == nil && info.IsDir() {
		return usagef("%s %s is a directory; name a file in it", flag, out)
	}
	if info, err := os.Stat(filepath.Dir(out)); err != nil || !info.IsDir() {
		return usagef("%s %s is to be in %s, which is no directory", flag, out, filepath.Dir(out))
	}
	return nil
}

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
