package data

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// goSourceSize bounds goSource: the size of tiny Shakespeare, so that a run on
// either takes about as long.
const goSourceSize = 1_115_394

// goSourcePackages lists the packages that goSource joins, in this order.
func goSourcePackages() []string {
	return []string{
		"bufio", "bytes", "encoding/json", "errors", "fmt", "go/ast", "go/parser", "go/printer", "io",
		"sort", "strconv", "strings", "sync", "text/template", "time", "go/types",
	}
}

// goSource is the corpus that is present wherever autopar is built: the source
// text of some packages of the Go standard library. It joins the ASCII-only
// .go files that are not tests, in sorted order, and stops at a line end within
// 1,115,394 bytes, so one toolchain always gives one text. The error wraps
// ErrUnavailable when there is no toolchain.
func goSource(ctx context.Context) (Corpus, error) {
	root, version, err := goToolchain(ctx)
	if err != nil {
		return Corpus{}, fmt.Errorf("data: Go source text is %w: %w", ErrUnavailable, err)
	}
	text, err := goSourceText(root)
	if err != nil {
		return Corpus{}, fmt.Errorf("data: Go source text is %w: %w", ErrUnavailable, err)
	}
	return textCorpus("Go source text", version+" ("+filepath.Join(root, "src")+")", text), nil
}

// goToolchain asks the go command for its GOROOT and version.
func goToolchain(ctx context.Context) (root, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return "", "", fmt.Errorf("go env GOROOT: %w", err)
	}
	root, version, ok := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !ok || root == "" {
		return "", "", fmt.Errorf("go env GOROOT printed %q", out)
	}
	return root, version, nil
}

func goSourceText(root string) ([]byte, error) {
	var text []byte
	for _, pkg := range goSourcePackages() {
		dir := filepath.Join(root, "src", filepath.FromSlash(pkg))
		entries, err := os.ReadDir(dir) // sorted by name
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			name := entry.Name()
			if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				continue
			}
			source, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			if !isASCII(source) {
				continue
			}
			text = append(text, source...)
			if len(text) > goSourceSize {
				end := bytes.LastIndexByte(text[:goSourceSize], '\n') + 1
				return text[:end], nil
			}
		}
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("no source files in %s", root)
	}
	return text, nil
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}
