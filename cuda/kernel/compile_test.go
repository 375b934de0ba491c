package kernel_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
)

// Compilers that need no GPU, from the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvcc or a toolkit:
//
//	AUTOPAR_LIBNVRTC   path of libnvrtc.so
//	AUTOPAR_PTXAS      path of ptxas, if it is not on PATH
//	AUTOPAR_TEST_CUDA  if set, a missing compiler is a failure, not a skip

func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("AUTOPAR_TEST_CUDA") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// TestNVRTC compiles every program for sm_80 and sm_90a, prints the registers that ptxas reports,
// and fails if a function spills registers to memory.
func TestNVRTC(t *testing.T) {
	library := os.Getenv("AUTOPAR_LIBNVRTC")
	if library == "" {
		missing(t, "AUTOPAR_LIBNVRTC is not set: no libnvrtc.so to compile with")
	}
	ptxas := os.Getenv("AUTOPAR_PTXAS")
	if ptxas == "" {
		var err error
		if ptxas, err = exec.LookPath("ptxas"); err != nil {
			missing(t, "AUTOPAR_PTXAS is not set and there is no ptxas on PATH")
		}
	}
	dir := t.TempDir()
	compiler := filepath.Join(dir, "nvrtc")
	out, err := exec.Command("g++", "-o", compiler, "testdata/nvrtc.cpp", "-ldl").CombinedOutput()
	if err != nil {
		missing(t, "g++: %v\n%s", err, out)
	}
	for _, program := range kernel.Sources() {
		for _, arch := range []string{"80", "90a"} {
			t.Run(program+"/sm_"+arch, func(t *testing.T) {
				t.Parallel()
				source := filepath.Join(dir, arch+"-"+program)
				ptx := source + ".ptx"
				require.NoError(t, os.WriteFile(source, []byte(kernel.Source(program)), 0o644))
				cmd := exec.Command(compiler, append([]string{library, source, arch, ptx}, kernel.Options()...)...)
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library)) // for the library of builtins
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				out, err = exec.Command(ptxas, "-v", "-arch=sm_"+arch, "-o", source+".cubin", ptx).CombinedOutput()
				require.NoError(t, err, "%s", out)
				if program == "norm_f32.cu" { // kernels that Fuse fuses
					text, err := os.ReadFile(ptx)
					require.NoError(t, err)
					require.True(t, strings.Contains(string(text), "add.rn.f32"), "a sum that may be one with a product has other bits than alone")
				}
				for _, f := range assembled(t, string(out)) {
					t.Logf("%-28s %3d registers, %d bytes of spills, %d of stack", f.name, f.registers, f.spills, f.stack)
					require.Zero(t, f.spills, "%s keeps registers in memory", f.name)
				}
			})
		}
	}
}

// function is what ptxas reports of a function.
type function struct {
	name                     string
	registers, spills, stack int
}

var (
	assembledName  = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	assembledStack = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	assembledRegs  = regexp.MustCompile(`Used (\d+) registers`)
)

// assembled parses the messages of ptxas -v.
func assembled(t *testing.T, messages string) (all []function) {
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	for _, line := range strings.Split(messages, "\n") {
		if m := assembledName.FindStringSubmatch(line); m != nil {
			all = append(all, function{name: m[1]})
		}
		if len(all) == 0 {
			continue
		}
		f := &all[len(all)-1]
		if m := assembledStack.FindStringSubmatch(line); m != nil && f.registers == 0 { // not of a function that it calls
			f.stack, f.spills = number(m[1]), number(m[2])+number(m[3])
		}
		if m := assembledRegs.FindStringSubmatch(line); m != nil {
			f.registers = number(m[1])
		}
	}
	require.NotEmpty(t, all, messages)
	return all
}

// TestClang compiles every program to PTX for sm_80 with a clang that has no CUDA: a second opinion on the language.
func TestClang(t *testing.T) {
	clang := ""
	for _, name := range []string{"clang++", "clang++-19", "clang", "clang-19"} {
		if path, err := exec.LookPath(name); err == nil {
			clang = path
			break
		}
	}
	if clang == "" {
		missing(t, "no clang on PATH")
	}
	dir := t.TempDir()
	for _, program := range kernel.Sources() {
		source := filepath.Join(dir, program)
		require.NoError(t, os.WriteFile(source, []byte(kernel.Source(program)), 0o644))
		out, err := exec.Command(clang, "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "--cuda-gpu-arch=sm_80",
			"-std=c++17", "-O0", "-Wall", "-Wno-unknown-cuda-version", "-S", "-o", source+".s", source).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out), program)
	}
}
