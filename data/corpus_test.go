package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func readCorpus(t *testing.T, c Corpus) string {
	r, err := c.Open()
	require.NoError(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

func remoteFor(text, url string) remoteFile {
	sum := sha256.Sum256([]byte(text))
	return remoteFile{name: "a text", file: "text.txt", url: url, sha256: hex.EncodeToString(sum[:]), size: int64(len(text))}
}

func TestRemoteFileIsVerifiedAndCached(t *testing.T) {
	const text = "To be, or not to be"
	served, requests := text, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		io.WriteString(w, served)
	}))
	defer server.Close()
	f := remoteFor(text, server.URL)
	opts := CorpusOptions{CacheDir: filepath.Join(t.TempDir(), "cache")}
	cached := filepath.Join(opts.CacheDir, "text.txt")

	for bad, want := range map[string]string{
		"To be":               "5 bytes, want 19",
		text + "!":            "more than the 19 bytes wanted",
		"To be, or not 2 be":  "18 bytes, want 19",
		"to be, or not to be": "SHA-256 is ",
	} {
		served = bad
		_, err := f.find(t.Context(), opts)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, want)
		require.NoFileExists(t, cached)
	}

	served = text
	c, err := f.find(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, text, readCorpus(t, c))
	require.Equal(t, text, readCorpus(t, c), "a second time")
	require.Equal(t, []string{"text.txt"}, fileNames(t, opts.CacheDir))
	require.Equal(t, "downloaded and verified", c.Reason)

	before := requests
	c, err = f.find(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, before, requests, "the cache was not used")
	require.Equal(t, cached, c.Source)

	// A damaged cache is replaced, not trusted.
	require.NoError(t, os.WriteFile(cached, []byte("to be, or not to be"), 0o644))
	_, err = f.find(t.Context(), CorpusOptions{CacheDir: opts.CacheDir, Offline: true})
	require.ErrorIs(t, err, ErrUnavailable)
	c, err = f.find(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, text, readCorpus(t, c))
}

func TestDownloadIsBounded(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)
	begin := time.Now()
	_, err := remoteFor("x", server.URL).find(t.Context(), CorpusOptions{CacheDir: t.TempDir(), Timeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrUnavailable)
	require.Less(t, time.Since(begin), 30*time.Second)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = remoteFor("x", server.URL).find(ctx, CorpusOptions{CacheDir: t.TempDir()})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnavailable)
}

func TestShakespearePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.txt")
	require.NoError(t, os.WriteFile(path, []byte("abc"), 0o644))
	c, err := ShakespeareOrGoSource(t.Context(), CorpusOptions{Path: path})
	require.NoError(t, err)
	require.Equal(t, "abc", readCorpus(t, c))

	// A path that is wrong is the user's mistake, not a reason to fall back.
	var input *InputError
	for _, bad := range []string{path + "x", filepath.Dir(path)} {
		_, err = ShakespeareOrGoSource(t.Context(), CorpusOptions{Path: bad})
		require.ErrorAs(t, err, &input)
		require.Equal(t, bad, input.File)
	}
}

func TestGoSource(t *testing.T) {
	c, err := ShakespeareOrGoSource(t.Context(), CorpusOptions{CacheDir: t.TempDir(), Offline: true})
	if err != nil {
		require.ErrorIs(t, err, ErrUnavailable)
		t.Skip(err)
	}
	require.Equal(t, "Go source text", c.Name)
	require.Contains(t, c.Reason, "tiny Shakespeare is not available here: it is not in the cache")
	text := readCorpus(t, c)
	require.Greater(t, len(text), 1_000_000)
	require.LessOrEqual(t, len(text), goSourceSize)
	require.True(t, isASCII([]byte(text)))
	require.Contains(t, text, "package bufio")

	again, err := goSource(t.Context())
	require.NoError(t, err)
	require.True(t, text == readCorpus(t, again), "not deterministic")

	p, err := Prepare(t.Context(), c, CharEncoding, t.TempDir())
	require.NoError(t, err)
	require.EqualValues(t, len(text), p.TrainTokens+p.ValTokens)
	require.Less(t, p.VocabSize, 128)
}
