// Package kerneltest runs the kernels of package kernel on the CPU, for tests. g++ compiles them
// with a shim that replaces primitives.cu, and they run in a process of their own.
package kerneltest

import (
	"bufio"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
)

//go:embed testdata/shim.h
var shim string // what primitives.cu defines

//go:embed testdata/watch.h
var watch string // what a watched worker does

//go:embed testdata/worker.cpp
var source string

var compiling sync.Mutex

// Build compiles all programs, each once per version of its text, and returns the path of the
// worker. The device has warpgroups, as from Hopper on. It skips the test if there is no compiler.
func Build(t *testing.T) string { return build(t) }

// BuildWithout is Build for a device without warpgroups.
func BuildWithout(t *testing.T) string { return build(t, withoutWarpgroups) }

// BuildWatched is Build of a worker that sees all accesses to memory: see watch.h. It is slower.
func BuildWatched(t *testing.T) string { return build(t, watched) }

// BuildWatchedWithout is BuildWatched for a device without warpgroups.
func BuildWatchedWithout(t *testing.T) string { return build(t, watched, withoutWarpgroups) }

const (
	withoutWarpgroups = "-DWITHOUT_WARPGROUPS" // makes another of those programs that have warpgroups
	watched           = "-DWATCHED"
)

// build compiles a variant.
func build(t *testing.T, variant ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("g++")
	if err != nil || goruntime.GOARCH != "amd64" {
		t.Skip("no g++ for amd64: the kernels are not run on the CPU")
	}
	compiling.Lock()
	defer compiling.Unlock()

	units := map[string]string{"worker": source}
	for _, p := range kernel.Programs() {
		units[strings.TrimSuffix(p, ".cu")] = "#include \"shim.h\"\n" + kernel.Portable(p) + offers(p)
	}
	flags := []string{"-std=c++17", "-O1", "-mf16c", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-Wno-unknown-pragmas",
		"-fsanitize=alignment,shift,bounds", "-fsanitize-undefined-trap-on-error"}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "autopar", "kernels")
	require.NoError(t, os.MkdirAll(cache, 0o755))
	forget(t, cache)

	dir := t.TempDir()
	for name, text := range map[string]string{"shim.h": shim, "watch.h": watch} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	// compiled runs the compiler unless its output exists. Its name has a hash of all that it
	// depends on.
	compiled := func(name string, depends []string, args ...string) string {
		hash := sha256.Sum256([]byte(strings.Join(append(append([]string{compiler}, args...), depends...), "\x00")))
		made := filepath.Join(cache, name+"-"+hex.EncodeToString(hash[:8]))
		if _, err := os.Stat(made); err == nil {
			return made
		}
		fresh := filepath.Join(dir, name+".made")
		cmd := exec.Command(compiler, append([]string{"-o", fresh}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("g++ %s: %v\n%s", name, err, out)
			return made
		}
		bytes, err := os.ReadFile(fresh)
		if err == nil {
			temporary := fmt.Sprintf("%s.%d", made, os.Getpid())
			err = errors.Join(os.WriteFile(temporary, bytes, 0o755), os.Rename(temporary, made))
		}
		if err != nil {
			t.Error(err)
		}
		return made
	}
	slots := make(chan struct{}, 2)
	var group sync.WaitGroup
	names := slices.Sorted(maps.Keys(units))
	objects := make([]string, len(names))
	for i, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".cpp"), []byte(units[name]), 0o644))
		args := append(slices.Clone(flags), "-c", name+".cpp")
		if slices.Contains(variant, withoutWarpgroups) && strings.Contains(units[name], "warpgroups") {
			args = append(args, withoutWarpgroups)
		}
		if slices.Contains(variant, watched) {
			if args = append(args, watched); name == "worker" {
				args = append(args, "-O2")
			} else {
				args = append(args, "-fsanitize=thread") // without its library: the worker defines the calls
			}
		}
		depends := []string{shim, units[name]}
		if name == "worker" {
			depends = append(depends, watch)
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			objects[i] = compiled(name, depends, args...)
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	worker := compiled("run", nil, objects...)
	if t.Failed() {
		t.FailNow()
	}
	return worker
}

// forget removes files that were neither made nor used for a week.
func forget(t *testing.T, cache string) {
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 7*24*time.Hour {
			_ = os.Remove(filepath.Join(cache, e.Name()))
		}
	}
}

// functionsOf lists the device functions of a program, with their namespaces, from its text.
func functionsOf(program string) (functions []string) {
	space := regexp.MustCompile(`(?m)^#define TYPE (\w+)$`)
	text := regexp.MustCompile(`(?m)^#define \w*KERNEL.*$`).ReplaceAllString(kernel.Portable(program), "")
	for i, of := range space.FindAllStringSubmatchIndex(text, -1) {
		body := text[of[1]:]
		if next := space.FindAllStringIndex(text, -1); i+1 < len(next) {
			body = text[of[1]:next[i+1][0]]
		}
		suffix := text[of[2]:of[3]]
		for _, name := range names(body) {
			functions = append(functions, "type_"+suffix+"::"+name+"_"+suffix)
		}
	}
	return functions
}

// names lists the functions that KERNEL defines, including those whose macros name them by an
// argument.
func names(body string) (names []string) {
	for _, m := range regexp.MustCompile(`KERNEL\((\w+)(##(\w+))?, `).FindAllStringSubmatchIndex(body, -1) {
		name := body[m[2]:m[3]]
		if m[4] < 0 {
			names = append(names, name)
			continue
		}
		defines := regexp.MustCompile(`#define (\w+)\(`).FindAllStringSubmatch(body[:m[0]], -1)
		macro := defines[len(defines)-1][1]
		for _, use := range regexp.MustCompile(`(?m)^`+macro+`\((\w+)`).FindAllStringSubmatch(body, -1) {
			names = append(names, name+use[1])
		}
	}
	return names
}

// offers returns code that makes a program's functions known to the worker.
func offers(program string) string {
	var b strings.Builder
	for i, f := range functionsOf(program) {
		fmt.Fprintf(&b, "static bool offered_%d = offer(%q, %s);\n", i, f[strings.Index(f, "::")+2:], f)
	}
	return b.String()
}

// Worker is a process that runs device functions.
type Worker struct {
	Base    uint64 // address of its arena
	Reverse bool   // runs blocks and threads in the opposite order

	in   *bufio.Writer
	out  *bufio.Reader
	died func() string
}

// Start starts a worker that Build has made. It ends with the test.
func Start(t *testing.T, path string) *Worker {
	t.Helper()
	cmd := exec.Command(path)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	w := &Worker{in: bufio.NewWriterSize(in, 1<<16), out: bufio.NewReaderSize(out, 1<<16), died: func() string { return fmt.Sprint(cmd.Wait(), " ", stderr.String()) }}
	require.NoError(t, binary.Read(w.out, binary.LittleEndian, &w.Base))
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return w
}

func (w *Worker) put(x any) { _ = binary.Write(w.in, binary.LittleEndian, x) }

// Bytes is a range of the arena, with its data.
type Bytes struct {
	At   int64
	Data []byte
}

// Write copies data to the arena, before the next launch.
func (w *Worker) Write(b Bytes) {
	w.put([]byte{'w'})
	w.put([]uint64{uint64(b.At), uint64(len(b.Data))})
	_, _ = w.in.Write(b.Data)
}

// Poison makes n bytes of the arena NaN, before the next launch.
func (w *Worker) Poison(at, n int64) {
	w.put([]byte{'p'})
	w.put([]uint64{uint64(at), uint64(n)})
}

// Read copies ranges of the arena to their data.
func (w *Worker) Read(all ...Bytes) error {
	for _, b := range all {
		w.put([]byte{'r'})
		w.put([]uint64{uint64(b.At), uint64(len(b.Data))})
	}
	if err := w.in.Flush(); err != nil {
		return err
	}
	for _, b := range all {
		if _, err := io.ReadFull(w.out, b.Data); err != nil {
			return err
		}
	}
	return nil
}

// Range is a part of the arena, and whether launches may write there.
type Range struct {
	At, Bytes int64
	Writes    bool
}

// LaunchWithin is Launch of functions that access nothing of the arena but these ranges. A watched worker ends if one does.
func (w *Worker) LaunchWithin(ranges []Range, all ...kernel.Launch) error {
	w.within(ranges)
	defer w.within(nil)
	return w.Launch(all...)
}

func (w *Worker) within(ranges []Range) {
	w.put([]byte{'a'})
	w.put(uint32(len(ranges)))
	w.put(ranges)
}

// Launch runs device functions one after another and waits for them.
func (w *Worker) Launch(all ...kernel.Launch) error {
	for _, l := range all {
		w.put([]byte{'l'})
		w.put(uint32(len(l.Name)))
		w.put([]byte(l.Name))
		w.put(l.Grid)
		w.put(l.Block)
		w.put([]uint32{l.Shared, uint32(len(l.Args))})
		w.put(l.Args)
		w.put(l.Sizes)
		w.put(w.Reverse)
	}
	_ = w.in.Flush() // if it fails, there is no answer
	var refused error
	for _, l := range all {
		var n uint32
		if err := binary.Read(w.out, binary.LittleEndian, &n); err != nil {
			return fmt.Errorf("%s killed the worker: %s", l.Name, w.died())
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(w.out, message); err != nil {
			return err
		}
		if n > 0 && refused == nil {
			refused = fmt.Errorf("worker: %s", message)
		}
	}
	return refused
}
