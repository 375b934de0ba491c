package data

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/wholefile"
)

// ErrUnavailable is wrapped by errors that say a corpus could not be obtained
// because there is no network, no cache or no toolchain: nothing the user
// typed is wrong.
var ErrUnavailable = errors.New("not available here")

// Corpus is a text that can be read from its start any number of times.
type Corpus struct {
	Name   string // short, e.g. "tiny Shakespeare"
	Source string // the path, URL or toolchain it came from
	Reason string // why this one was used, for the user; empty when it was asked for

	open func() (io.ReadCloser, error)
}

// Open returns the text as bytes of UTF-8.
func (c Corpus) Open() (io.ReadCloser, error) { return c.open() }

// FileCorpus is the text in a file. A missing or unreadable file is reported
// as an *InputError.
func FileCorpus(path string) (Corpus, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Corpus{}, &InputError{File: path, Detail: "cannot read the text", Err: infile.WithoutPath(err)}
	}
	if !info.Mode().IsRegular() {
		return Corpus{}, inputErrorf(path, "the text must be a regular file, because it is read twice")
	}
	return Corpus{
		Name:   filepath.Base(path),
		Source: path,
		open:   func() (io.ReadCloser, error) { return os.Open(path) },
	}, nil
}

// textCorpus is a text held in memory.
func textCorpus(name, source string, text []byte) Corpus {
	return Corpus{Name: name, Source: source, open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text)), nil
	}}
}

// remoteFile is a file on the web with known content.
type remoteFile struct {
	name   string // of the corpus
	file   string // in the cache directory
	url    string
	sha256 string
	size   int64
}

// tinyShakespeare is the corpus of nanoGPT's shakespeare and shakespeare_char.
func tinyShakespeare() remoteFile {
	return remoteFile{
		name:   "tiny Shakespeare",
		file:   "tinyshakespeare.txt",
		url:    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
		sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
		size:   1_115_394,
	}
}

// CorpusOptions says where to look for a corpus. The zero value looks in the
// user's cache and then on the web.
type CorpusOptions struct {
	Path     string        // a file to use instead of the corpus
	CacheDir string        // default: autopar in os.UserCacheDir
	Timeout  time.Duration // bound on a whole download; default 20 s
	Offline  bool          // do not download
}

// Shakespeare returns tiny Shakespeare: opts.Path if set, else the copy in the
// cache, else a download, which is verified and put into the cache. The error
// wraps ErrUnavailable when it is neither in the cache nor downloadable, and is
// an *InputError when opts.Path cannot be read.
func Shakespeare(ctx context.Context, opts CorpusOptions) (Corpus, error) {
	if opts.Path != "" {
		return FileCorpus(opts.Path)
	}
	return tinyShakespeare().find(ctx, opts)
}

// ShakespeareOrGoSource is Shakespeare, or if that is unavailable the text of goSource, with the
// reason in the corpus.
func ShakespeareOrGoSource(ctx context.Context, opts CorpusOptions) (Corpus, error) {
	corpus, err := Shakespeare(ctx, opts)
	if !errors.Is(err, ErrUnavailable) {
		return corpus, err
	}
	fallback, fallbackErr := goSource(ctx)
	if fallbackErr != nil {
		return Corpus{}, errors.Join(err, fallbackErr)
	}
	fallback.Reason = err.Error()
	return fallback, nil
}

func (f remoteFile) find(ctx context.Context, opts CorpusOptions) (Corpus, error) {
	dir := opts.CacheDir
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return Corpus{}, fmt.Errorf("data: %s is %w: there is no cache directory for it: %w", f.name, ErrUnavailable, err)
		}
		dir = filepath.Join(cache, "autopar")
	}
	path := filepath.Join(dir, f.file)
	if text, err := os.ReadFile(path); err == nil && f.verify(text) == nil {
		corpus := textCorpus(f.name, path, text)
		corpus.Reason = "found in the cache"
		return corpus, nil
	}
	if opts.Offline {
		return Corpus{}, fmt.Errorf("data: %s is %w: it is not in the cache (%s), and downloading is off", f.name, ErrUnavailable, path)
	}
	timeout := opts.Timeout
	if timeout == 0 {
		timeout = 20 * time.Second
	}
	text, err := f.download(ctx, timeout)
	if err != nil {
		if ctx.Err() != nil {
			return Corpus{}, ctx.Err()
		}
		return Corpus{}, fmt.Errorf("data: %s is %w: it is not in the cache (%s), and the download failed: %w", f.name, ErrUnavailable, path, err)
	}
	corpus := textCorpus(f.name, f.url, text)
	corpus.Reason = "downloaded and verified"
	if err := wholefile.Write(path, text); err != nil {
		corpus.Reason += ", but not cached: " + err.Error()
	}
	return corpus, nil
}

// download fetches and verifies the file.
func (f remoteFile) download(ctx context.Context, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", f.url, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, f.size+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.url, err)
	}
	if err := f.verify(text); err != nil {
		return nil, fmt.Errorf("%s: %w", f.url, err)
	}
	return text, nil
}

func (f remoteFile) verify(text []byte) error {
	if int64(len(text)) < f.size {
		return fmt.Errorf("%d bytes, want %d", len(text), f.size)
	}
	if int64(len(text)) > f.size {
		return fmt.Errorf("more than the %d bytes wanted", f.size)
	}
	sum := sha256.Sum256(text)
	if got := hex.EncodeToString(sum[:]); got != f.sha256 {
		return fmt.Errorf("SHA-256 is %s, want %s", got, f.sha256)
	}
	return nil
}
