package driver

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// majorsFor returns the major versions of CUDA libraries that run on a driver, best first. A
// library of a newer CUDA than the driver's does not.
func majorsFor(driver int) []int {
	if driver >= 13000 {
		return []int{13, 12}
	}
	return []int{12}
}

// nvrtc is NVRTC.
type nvrtc struct {
	lib          *shared
	major, minor int32

	create, compile, destroy, logSize, log, cubinSize, cubin, errorString proc
}

// NewCompiler loads NVRTC for a driver of a version.
func NewCompiler(driver int) (Compiler, error) {
	lib, err := libNVRTC.open(majorsFor(driver))
	if err != nil {
		return nil, err
	}
	if strings.ContainsRune(lib.file, '/') { // if the loader found it by its bare name, it also finds what lies beside it
		lib.loadBuiltins()
	}
	return newNVRTC(lib)
}

// loadBuiltins loads the library of builtins that lies beside NVRTC. When NVRTC compiles, it loads
// that library by its bare name. The loader finds it among the loaded libraries or in its own
// directories, but NVRTC 13.0 does not make it look beside NVRTC. If there is none, the log of the
// first program says so.
func (s *shared) loadBuiltins() {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(s.file), "libnvrtc-builtins.so.[0-9]*")) // the pattern is well formed
	for _, file := range files {
		_, _ = dlopen(file)
	}
}

func newNVRTC(lib *shared) (*nvrtc, error) {
	var missing error
	c := &nvrtc{
		lib: lib, create: lib.proc("nvrtcCreateProgram", &missing), compile: lib.proc("nvrtcCompileProgram", &missing),
		destroy: lib.proc("nvrtcDestroyProgram", &missing), logSize: lib.proc("nvrtcGetProgramLogSize", &missing),
		log: lib.proc("nvrtcGetProgramLog", &missing), cubinSize: lib.proc("nvrtcGetCUBINSize", &missing),
		cubin: lib.proc("nvrtcGetCUBIN", &missing), errorString: lib.proc("nvrtcGetErrorString", &missing),
	}
	version := lib.proc("nvrtcVersion", &missing)
	if missing != nil {
		return nil, missing
	}
	if err := c.check(version, version.call(uintptr(unsafe.Pointer(&c.major)), uintptr(unsafe.Pointer(&c.minor)))); err != nil {
		return nil, err
	}
	if c.Version() < MinCUDA {
		return nil, lib.tooOld(cudaVersion(c.Version()), cudaVersion(MinCUDA))
	}
	return c, nil
}

func (c *nvrtc) check(p proc, code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: p.name, Code: code, Name: c.errorString.callString(code)}
}

func (c *nvrtc) Version() int { return int(c.major)*1000 + int(c.minor)*10 }

func (c *nvrtc) Compile(name, source, arch string, options []string) (cubin []byte, err error) {
	options = append([]string{"--gpu-architecture=" + arch}, options...)
	var prog uintptr
	err = c.check(c.create, c.create.call(uintptr(unsafe.Pointer(&prog)), uintptr(unsafe.Pointer(zero(source))), uintptr(unsafe.Pointer(zero(name))), 0, 0, 0))
	if err != nil {
		return nil, err
	}
	defer func() {
		if gone := c.check(c.destroy, c.destroy.call(uintptr(unsafe.Pointer(&prog)))); err == nil {
			err = gone
		}
	}()
	list := make([]unsafe.Pointer, len(options))
	for i, o := range options {
		list[i] = unsafe.Pointer(zero(o))
	}
	code := c.compile.call(prog, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0])))
	keep(list)
	const invalidOption = 5
	if code == invalidOption { // the other options are as old as the oldest NVRTC
		return nil, &MissingError{
			Library: fmt.Sprintf("%s (%s)", c.lib.file, c.lib.what),
			Msg:     fmt.Sprintf("has version %s, which does not compile for this GPU (%s: %s); %s", cudaVersion(c.Version()), arch, c.text(prog), c.lib.get),
		}
	}
	if err := c.check(c.compile, code); err != nil {
		return nil, fmt.Errorf("compiling %s for %s: %w\n%s", name, arch, err, c.text(prog))
	}
	var size int64
	if err := c.check(c.cubinSize, c.cubinSize.call(prog, uintptr(unsafe.Pointer(&size)))); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, fmt.Errorf("compiling %s: no machine code for %s", name, arch)
	}
	cubin = make([]byte, size)
	return cubin, c.check(c.cubin, c.cubin.call(prog, uintptr(start(cubin))))
}

// text returns the compiler's log.
func (c *nvrtc) text(prog uintptr) string {
	var size int64
	if c.logSize.call(prog, uintptr(unsafe.Pointer(&size))) != 0 || size <= 1 {
		return "(no log)"
	}
	log := make([]byte, size)
	if c.log.call(prog, uintptr(start(log))) != 0 {
		return "(no log)"
	}
	return strings.TrimSpace(cString(log))
}

// cached keeps machine code in files, and in memory for the life of the process.
type cached struct {
	Compiler
	dir   string        // "" keeps no files
	cores chan struct{} // bounds how many programs are compiled at a time

	mu   sync.Mutex
	made map[string]func() ([]byte, error) // by file; a call waits for whoever compiles it
}

// Cached returns a compiler that keeps machine code in files of dir, named by the hash of all that
// it depends on. If dir is empty or cannot be written, each process compiles everything once. A
// call for a program that another call is compiling waits for it. No more programs are compiled at
// a time than there are cores.
func Cached(c Compiler, dir string) Compiler {
	return &cached{Compiler: c, dir: dir, cores: make(chan struct{}, runtime.NumCPU()), made: map[string]func() ([]byte, error){}}
}

func (c *cached) Compile(name, source, arch string, options []string) ([]byte, error) {
	h := sha256.New()
	for _, s := range append([]string{fmt.Sprint(c.Version()), arch, name, source}, options...) {
		fmt.Fprintf(h, "%d:%s;", len(s), s)
	}
	file := filepath.Join(c.dir, fmt.Sprintf("%x.cubin", h.Sum(nil)))
	c.mu.Lock()
	made := c.made[file]
	if made == nil {
		made = sync.OnceValues(func() ([]byte, error) {
			if kept, err := os.ReadFile(file); c.dir != "" && err == nil {
				if cubin, ok := unsealed(kept); ok {
					return cubin, nil
				}
			}
			c.cores <- struct{}{}
			defer func() { <-c.cores }()
			cubin, err := c.Compiler.Compile(name, source, arch, options)
			if err == nil && c.dir != "" {
				replaceFile(file, sealed(cubin))
			}
			return cubin, err
		})
		c.made[file] = made
	}
	c.mu.Unlock()
	return made()
}

// sealed appends a checksum. unsealed returns what it was appended to; ok is false if that has changed, as
// when a machine has lost power before it had all of a file on disk. The driver would not load such code.
func sealed(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(slices.Clip(data), sum[:]...)
}

func unsealed(file []byte) (data []byte, ok bool) {
	n := len(file) - sha256.Size
	if n <= 0 {
		return nil, false
	}
	sum := sha256.Sum256(file[:n])
	return file[:n:n], bytes.Equal(sum[:], file[n:])
}

// replaceFile writes a file whole or not at all. Errors are dropped: a cache that cannot be written
// only costs time.
func replaceFile(file string, data []byte) {
	if os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return
	}
	_, err = f.Write(data)
	if f.Close() != nil || err != nil || os.Rename(f.Name(), file) != nil {
		os.Remove(f.Name())
	}
}
