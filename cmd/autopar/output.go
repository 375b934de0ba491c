package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/export"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/wholefile"
)

// training returns the context of a command that trains, and the writer that it prints to. A line that cannot be printed must
// not cost hours of training: the command goes on, and fails at its end. If the reader of its output is gone, for example
// because Ctrl-C has also ended tee, the context is canceled: the command finishes the step and saves, instead of being killed
// by SIGPIPE at the next line.
func (c *console) training(ctx context.Context) (context.Context, io.Writer) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // so that a write returns an error instead of killing the process
	ctx, gone := context.WithCancel(ctx)
	return ctx, trainingOutput{c, gone}
}

// trainingOutput is the standard output of a command that trains.
type trainingOutput struct {
	con  *console
	gone func()
}

// Write never fails: the console records an error.
func (o trainingOutput) Write(text []byte) (int, error) {
	_, err := o.con.stdout.Write(text)
	o.con.lose(err)
	if errors.Is(err, syscall.EPIPE) {
		o.gone()
	}
	return len(text), nil
}

// apart refuses an output that cannot be a file, or is one of the other files that a command reads or writes: it would replace a
// plan or a configuration that somebody may have edited. flag names the output in the error. Names that are "" or "-" stand for
// no file; an output to a pipe or terminal replaces nothing.
func apart(flag, out string, others ...string) error {
	if err := mayBeFile(flag, out); err != nil {
		return err
	}
	info, err := os.Stat(out)
	regular := err == nil && info.Mode().IsRegular()
	for _, other := range others {
		if out != "" && out != "-" && other != "" && (filepath.Clean(out) == filepath.Clean(other) || regular && infile.Same(out, other)) {
			return usagef("%s %s would replace %s; name another file", flag, out, other)
		}
	}
	return nil
}

// toFile refuses an output that is never printed, but is named as if it were: a file named "-" is not what is asked for, and two
// such outputs would be the same.
func toFile(flag, out string) error {
	if out == "-" {
		return usagef("%s - is not the standard output here; name a file", flag)
	}
	return nil
}

// mayBeFile refuses an output file that is a directory, or that cannot be written where it is, before work is done for it. Names
// that are "" or "-" stand for no file.
func mayBeFile(flag, out string) error {
	if out == "" || out == "-" {
		return nil
	}
	info, err := os.Stat(out)
	dir, name := filepath.Split(out) // unlike Dir it does not clean
	if err == nil && info.IsDir() || name == "" || name == "." || name == ".." {
		return usagef("%s %s is a directory; name a file in it", flag, out)
	}
	why := wholefile.Obstacle(dir)
	if why == "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		why = infile.WithoutPath(err).Error()
	}
	path, endless := followed(out)
	switch {
	case why != "" || endless != nil:
	case err != nil || info.Mode().IsRegular(): // which is replaced: see writeFile
		why = wholefile.Unwritable(filepath.Dir(path))
	case info.Mode()&fs.ModeNamedPipe == 0: // whose reader may come
		if f, err := os.OpenFile(out, os.O_WRONLY, 0); err != nil {
			why = infile.WithoutPath(err).Error()
		} else {
			f.Close()
		}
	}
	if why != "" {
		return usagef("%s %s cannot be written: %s", flag, out, why)
	}
	return nil
}

// mayBeDirectory refuses an output directory that cannot be one, or in which no file can be made. "" stands for none.
func mayBeDirectory(flag, dir string) error {
	if err := namesDirectory(flag, dir); err != nil || dir == "" {
		return err
	}
	if why := wholefile.Unwritable(dir); why != "" {
		return usagef("%s %s cannot be written: %s", flag, dir, why)
	}
	return nil
}

// namesDirectory refuses a directory if it, or one above it, is a file or a link to nothing, or if it is named as if it were printed.
func namesDirectory(flag, dir string) error {
	if dir == "-" {
		return usagef("%s - is not the standard output here; name a directory", flag)
	}
	if why := wholefile.Obstacle(dir); why != "" {
		return usagef("%s %s cannot be a directory: %s", flag, dir, why)
	}
	return nil
}

// mayBeRun refuses the directory of a run if it cannot be a directory, or be written to, is a checkpoint, or holds those of another run. Checkpoints
// that a run saved in a checkpoint would not be found again, because the one that it is comes first, and would be removed together
// with it.
func mayBeRun(flag, dir string) error {
	if err := mayBeDirectory(flag, dir); err != nil {
		return err
	}
	if run := checkpoint.RunOf(dir); run != "" {
		return usagef("%s %s holds the checkpoints of a run, want the directory of a run, such as that one's, %s", flag, dir, run)
	}
	if !checkpoint.Is(dir) {
		return nil
	}
	return usagef("%s %s is a checkpoint, want the directory of a run: autopar checkpoint merge %s -o DIR makes one to go on from", flag, dir, export.Quote(dir))
}

// followed returns the path that a path stands for: itself, or what it names as a link.
func followed(path string) (string, error) {
	for at := path; ; {
		to, err := os.Readlink(at)
		if err != nil { // no link, or nothing there
			return at, nil
		}
		if _, err := os.Stat(at); errors.Is(err, syscall.ELOOP) {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(at) + string(filepath.Separator) + to // not cleaned: .. after a link is not what is before the link
		}
		at = to
	}
}

// put writes a result to a file, or prints it if the path is "" or "-".
func (c *console) put(path string, text []byte) error {
	if path == "" || path == "-" {
		_, err := c.stdout.Write(text)
		return err
	}
	return writeFile(path, text)
}

// writeFile writes a result to a file, whole or not at all: if the disk is full, the old file stays. If the path is a link, it
// writes to what the link names, which may be a file that is not there yet. If it is not a regular file, such as a pipe, it writes
// to that directly, by the path as it is: a link to a pipe, as /dev/stdout may be one, does not name another path.
func writeFile(path string, text []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, text, 0o666)
	}
	path, err := followed(path)
	if err != nil {
		return err
	}
	return wholefile.Write(path, text)
}
