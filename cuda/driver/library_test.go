package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// strict makes tests fail that would be skipped for lack of a tool (make test-cuda).
func strict() bool { return os.Getenv("AUTOPAR_TEST_CUDA") != "" }

func skip(t *testing.T, why string) {
	t.Helper()
	if strict() {
		t.Fatal("AUTOPAR_TEST_CUDA is set: " + why)
	}
	t.Skip(why)
}

// fakeLibrary compiles testdata/fake.c, which has the functions of all libraries, and
// returns its file.
func fakeLibrary(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		skip(t, "gcc is not here, which compiles the libraries that stand for CUDA's")
	}
	file := filepath.Join(t.TempDir(), "libfake.so")
	args := append([]string{"-shared", "-fPIC", "-O1", "-w", "-o", file, "testdata/fake.c"}, flags...)
	out, err := exec.Command(gcc, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// fakes is the loaded library, with its log.
type fakes struct {
	t                *testing.T
	lib              *shared
	log, fail, async proc
}

func loadFakes(t *testing.T, flags ...string) *fakes {
	t.Helper()
	file := fakeLibrary(t, flags...)
	handle, err := dlopen(file)
	if err != nil {
		skip(t, err.Error())
	}
	lib := &shared{library: libCUDA, file: file, handle: handle}
	var missing error
	f := &fakes{t: t, lib: lib, log: lib.proc("fake_log", &missing), fail: lib.proc("fake_fail", &missing), async: lib.proc("fake_async", &missing)}
	require.NoError(t, missing)
	return f
}

// said returns what was logged since the last call, line by line.
func (f *fakes) said() []string {
	b := make([]byte, 1<<16)
	f.log.call(addressOf(b), uintptr(len(b)))
	return strings.Split(strings.TrimSuffix(cString(b), "\n"), "\n")
}

// failNext makes the next call of a function fail.
func (f *fakes) failNext(name string, code int) {
	f.fail.call(addressOf(append([]byte(name), 0)), uintptr(code))
}

// line formats a call as the library logs it.
func line(name string, words ...uint64) string {
	var b strings.Builder
	b.WriteString(name)
	for _, w := range words {
		fmt.Fprintf(&b, " %x", w)
	}
	return b.String()
}

// TestCandidates finds libraries in all places, in order.
func TestCandidates(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{
		"toolkit/lib64/libnvrtc.so.12", "toolkit/targets/x86_64-linux/lib/libnvrtc.so.13",
		"venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"home/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), nil, 0o644))
	}
	vars := map[string]string{"CUDA_HOME": root + "/toolkit", "VIRTUAL_ENV": root + "/venv", "HOME": root + "/home"}
	find := func(l library, majors ...int) []string {
		var here []string
		for _, c := range l.candidates(majors, func(v string) string { return vars[v] }) {
			if rest, ok := strings.CutPrefix(c, root+"/"); ok || !strings.Contains(c, "/") {
				here = append(here, rest)
			}
		}
		return here
	}
	require.Equal(t, []string{
		"libnvrtc.so.13", "libnvrtc.so.12",
		"toolkit/lib64/libnvrtc.so.12", "toolkit/targets/x86_64-linux/lib/libnvrtc.so.13",
		"venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"home/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
	}, find(libNVRTC, majorsFor(13000)...))
	require.Equal(t, []string{
		"libnvrtc.so.12", "toolkit/lib64/libnvrtc.so.12",
		"venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"home/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
	}, find(libNVRTC, majorsFor(12080)...), "a driver of CUDA 12 does not run libraries of 13")
	require.Equal(t, []string{"libnccl.so.2", "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"}, find(libNCCL, 2))
	vars["AUTOPAR_LIBNCCL"] = root + "/mine.so"
	require.Equal(t, []string{"mine.so"}, find(libNCCL, 2), "what is named is what is meant")
}

// TestMissing checks the errors for a library that is missing, not a library, the wrong one, or too
// old.
func TestMissing(t *testing.T) {
	for _, l := range []library{libCUDA, libNVRTC, libCUBLASLt, libNCCL} {
		t.Setenv(l.variable, "/nowhere/lib.so")
	}
	opens := map[*library]func() error{
		&libCUDA:     func() error { _, err := Open(); return err },
		&libNVRTC:    func() error { _, err := NewCompiler(13000); return err },
		&libCUBLASLt: func() error { _, err := NewLt(13000, LtOptions{}); return err },
		&libNCCL:     func() error { _, err := NewCollectives(1); return err },
	}
	for l, open := range opens {
		var missing *MissingError
		err := open()
		require.ErrorAs(t, err, &missing)
		for _, part := range []string{l.stem + ".so.", l.what, l.get, l.variable + "=FILE"} {
			require.ErrorContains(t, err, part)
		}
	}
	text := filepath.Join(t.TempDir(), "text.so")
	require.NoError(t, os.WriteFile(text, []byte("text"), 0o644))
	t.Setenv(libCUDA.variable, text)
	_, err := Open()
	require.ErrorContains(t, err, "text.so")

	old := fakeLibrary(t, "-DVERSION=11080")
	for l, open := range opens {
		t.Setenv(l.variable, old)
		err := open()
		var missing *MissingError
		require.ErrorAs(t, err, &missing, l.stem)
		require.ErrorContains(t, err, "want at least")
		require.ErrorContains(t, err, old)
	}
	other := fakeLibrary(t, "-Dcublas=x", "-DcublasLtMatmul=gone")
	t.Setenv(libCUBLASLt.variable, other)
	_, err = NewLt(13000, LtOptions{})
	require.ErrorContains(t, err, "has no cublasLtMatmul")
}

// TestBuiltins: NVRTC finds the library of builtins that it loads by name even if that lies only
// beside it.
func TestBuiltins(t *testing.T) {
	const builtins = "libnvrtc-builtins.so.13.7"
	nvrtc := fakeLibrary(t, "-DBUILTINS=\""+builtins+"\"")
	t.Setenv(libNVRTC.variable, nvrtc)
	compile := func() error {
		c, err := NewCompiler(13000)
		require.NoError(t, err)
		_, err = c.Compile("a.cu", "right", "sm_90a", nil)
		return err
	}
	require.ErrorContains(t, compile(), "nvrtcCompileProgram: NVRTC_ERROR (7)")
	require.NoError(t, os.Rename(fakeLibrary(t, "-Wl,-soname,"+builtins), filepath.Join(filepath.Dir(nvrtc), builtins)))
	require.NoError(t, compile())
}

// TestNoGPU checks the error if there is a driver but no GPU.
func TestNoGPU(t *testing.T) {
	f := loadFakes(t)
	f.failNext("cuInit", 100)
	_, err := newLibcuda(f.lib)
	require.ErrorContains(t, err, "CUDA_ERROR_NO_DEVICE (100)")
	require.ErrorContains(t, err, "is there a GPU")
}
