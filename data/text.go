package data

import (
	"bufio"
	"context"
	"errors"
	"io"
	"unicode/utf8"
)

// textReader reads characters as Python's text mode does: strict UTF-8, with
// "\r\n" and a lone "\r" turned into "\n". Its memory does not grow with the
// file.
type textReader struct {
	name   string // for errors
	r      *bufio.Reader
	offset int64 // bytes consumed
}

func newTextReader(ctx context.Context, name string, r io.Reader) *textReader {
	return &textReader{name: name, r: bufio.NewReaderSize(contextReader{ctx, r}, 1<<16)}
}

// next returns the next character, or io.EOF after the last.
func (t *textReader) next() (rune, error) {
	c, size, err := t.r.ReadRune()
	if err != nil {
		return 0, err
	}
	if c == utf8.RuneError && size == 1 {
		return 0, inputErrorf(t.name, "the byte at offset %d is not valid UTF-8", t.offset)
	}
	t.offset += int64(size)
	if c == '\r' {
		b, err := t.r.Peek(1)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if len(b) == 1 && b[0] == '\n' {
			t.r.Discard(1) // cannot fail: the byte is buffered
			t.offset++
		}
		c = '\n'
	}
	return c, nil
}

// contextReader fails reads once its context is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
