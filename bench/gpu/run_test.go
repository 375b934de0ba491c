// Package gpu_test runs the script of the GPU machine where nothing but the script is real.
package gpu_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bundle makes what `make gpu` does, of programs that say what those would: the binaries of tests pass, PyTorch takes 120 ms a
// step, and autopar 100.
func bundle(t *testing.T) string {
	for _, needed := range []string{"sh", "awk", "timeout", "sed"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	script, err := os.ReadFile("run.sh")
	require.NoError(t, err)
	passes := "echo '--- PASS: Test (1.00s)'; echo PASS\n"
	for name, text := range map[string]string{
		"run.sh":                          string(script),
		"commit":                          "0123abc\n",
		"gpt2.py":                         "",
		"gpt2.yaml":                       "",
		"shakespeare_char.yaml":           "",
		"data/shakespeare_char/train.bin": "",
		"cuda/driver/none":                "",
		"cuda/kernel/none":                "",
		"tests/driver.test":               passes,
		"tests/kernel.test":               passes,
		"tests/autopar.test":              "echo '| losses | 0 |'\n" + passes,
		"tests/cuda.test":                 "echo '| product | 700 |'; echo '    gpu_test.go:40: [driver for CUDA 13.0, a GPU]'\n" + passes,
		"bin/nvidia-smi":                  "case $* in *memory.used*) echo 2048; exec sleep 60 ;; esac; echo 'A GPU, 1.2'\n",
		"bin/compute-sanitizer":           passes,
		"bin/python": `case $1 in
-c) case $2 in *sysconfig*) echo /nowhere ;; *is_available*) echo asked >>order ;; esac ;;
*)
	echo PyTorch >>order
	echo "# PyTorch 2.11"
	shift
	while [ "$1" != --steps ]; do echo "$1 120.00 273067 20.50"; shift; done
	;;
esac
`,
		"autopar": `case $1 in
bench) echo autopar >>order; sleep 0.1; printf '{\n  "median_ms": 100,\n  "predicted_ms": 101.5,\n  "arena_bytes": 21474836480\n}\n' ;;
profile) while [ "$1" != -o ]; do shift; done; echo measured; printf '# Products\n# p\n# Attention: rates\n# forward 300\n' >"$2" ;;
run) echo 'step 5000: train loss 0.8, val loss '"${LOSS:-1.47}"' (lr 1e-4)' ;;
esac
`,
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		if text != "" && name != "commit" && name != "run.sh" {
			text = "#!/bin/sh\n" + text
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o777))
	}
	return dir
}

// run runs stages, and returns the page that they leave, and the exit status.
func run(t *testing.T, dir string, page string, env []string, stages ...string) (string, int) {
	cmd := exec.Command(filepath.Join(dir, "run.sh"), stages...)
	cmd.Dir = filepath.Join(dir, "data") // of which OUT is told, and not of the script's
	cmd.Env = append(os.Environ(), "OUT=../out", "TMPDIR="+dir, "PYTHON=python", "PYTHONPATH=", "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	status := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "out", page))
	require.NoError(t, err, "%s", out)
	require.True(t, strings.HasSuffix(string(out), string(text)), "%s", out) // it ends with the page
	return string(text), status
}

// TestScript: every stage has its line, the tables are whole whatever stage comes last, and one call leaves the page of another.
func TestScript(t *testing.T) {
	dir := bundle(t)
	// 124,373,760 parameters but for the 1,024 x 768 of positions, and attention, at 989 TFLOP/s.
	step := func(batch int) string {
		tokens := float64(batch) * 1024 / 0.1
		return fmt.Sprintf("| %d | 100.00 | %.0f | %.1f %% | 101.50 | 20.00 | 2.00 | 120.00 | 20.50 | 1.20 |\n", batch, tokens,
			100*tokens*(6*(124373760-1024*768)+12*12*768*1024)/989e12)
	}
	first, status := run(t, dir, "gpu-first.md", nil, "first")
	require.Zero(t, status)
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	require.NoError(t, err)
	require.Equal(t, "autopar\nasked\nPyTorch\n", string(order), "what is measured comes before what it is compared with, which may take all the time")
	second, status := run(t, dir, "gpu-second.md", nil, "second")
	require.Zero(t, status)
	third, status := run(t, dir, "gpu-third.md", nil, "third")
	require.Zero(t, status)
	for _, c := range []struct {
		page  string
		lines []string
	}{
		{first, []string{
			"| machine | A GPU, 1.2 |", "| driver: libraries found and called | passed |", "| NCCL with one rank | passed |",
			"| conformance suite on the GPU | passed |", "| libraries | driver for CUDA 13.0, a GPU |", "| a step of GPT-2 124M, batch 32 | 100.00 ms |",
			"| steps | 1 of 1 batches |", "Commit 0123abc, PyTorch 2.11.", step(32),
		}},
		{second, []string{
			"| what this machine does (autopar profile) | passed |", "measured\nAttention: rates\nforward 300\n", "| matrix products | passed |", "| product | 700 |",
			"| steps | 4 of 4 batches |", step(8) + step(16) + step(32) + step(64),
		}},
		{third, []string{
			"| loopback, 1 to 8 ranks, against the CPU | passed |", "| losses | 0 |", "| shakespeare_char, best val loss at most 1.48 | passed | 1.47,",
			"| compute-sanitizer memcheck, small ops | passed |", "| compute-sanitizer racecheck, small ops | passed |", "| kernels compiled, registers and spills | passed |",
		}},
	} {
		for _, line := range c.lines {
			require.Contains(t, c.page, line)
		}
	}
	again, err := os.ReadFile(filepath.Join(dir, "out", "gpu-first.md"))
	require.NoError(t, err)
	require.Equal(t, first, string(again))
	page, status := run(t, dir, "gpu-first.md", nil)
	require.Zero(t, status)
	require.Contains(t, page, step(32), "what no stage is named for")
	alone, status := run(t, dir, "gpu-rates.md", nil, "rates")
	require.Zero(t, status)
	require.Contains(t, alone, "| product | 700 |")
}

// TestScriptOutlivesKernels: after an access that a GPU refuses its process does nothing more. The tests after it run in another.
func TestScriptOutlivesKernels(t *testing.T) {
	dir := bundle(t)
	suite := `#!/bin/sh
for last; do :; done
echo "$last" >>skips
say() { echo "=== RUN   TestGPUConformance/ops/$1"; echo "    ops.go:9: cuEventQuery: $2"; echo "        --- FAIL: TestGPUConformance/ops/$1 (0.01s)"; exit 1; }
case $last in
*gelu*) say cast/7 "no number" ;;
*norm*) say 'gelu/[f16[3]]' 'CUDA_ERROR_ILLEGAL_ADDRESS (700)' ;;
*) say norm/1 'CUDA_ERROR_MISALIGNED_ADDRESS (716)' ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tests/cuda.test"), []byte(suite), 0o777))
	page, status := run(t, dir, "gpu-conformance.md", nil, "conformance")
	require.Equal(t, 1, status)
	for _, line := range []string{
		"| conformance suite on the GPU | **failed** |",
		"| conformance suite on the GPU without TestGPUConformance/ops/norm/1 | **failed** |",
		"| conformance suite on the GPU without TestGPUConformance/ops/gelu/[f16[3]] | **failed** |",
		"| the first of what failed | TestGPUConformance/ops/norm/1 (0.01s) | failed-ops.txt |",
	} {
		require.Contains(t, page, line)
	}
	skips, err := os.ReadFile(filepath.Join(dir, "cuda", "skips"))
	require.NoError(t, err)
	const norm = "^$|^TestGPUConformance$/^ops$/^norm$/^1$"
	require.Equal(t, "^$\n"+norm+"\n"+norm+`|^TestGPUConformance$/^ops$/^gelu$/^\[f16\[3\]\]$`+"\n", string(skips))
	failed, err := os.ReadFile(filepath.Join(dir, "out", "failed-ops.txt"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(failed), "\n"))

	always := "#!/bin/sh\nn=$(cat n 2>/dev/null); echo x$n >n; echo \"=== RUN   TestGPUConformance/ops/x$n\"; echo CUDA_ERROR_LAUNCH_FAILED; exit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tests/cuda.test"), []byte(always), 0o777))
	page, _ = run(t, dir, "gpu-conformance.md", nil, "conformance")
	require.Equal(t, 4, strings.Count(page, "| conformance suite on the GPU"), "there are other stages")
}

// TestScriptEnds: when the time of a call is over nothing is begun, and PyTorch, which takes what is left, comes last.
func TestScriptEnds(t *testing.T) {
	dir := bundle(t)
	page, status := run(t, dir, "gpu-step.md", []string{"BUDGET=0", "BATCHES=8"}, "step", "rates")
	require.Zero(t, status)
	require.Contains(t, page, "| a step of GPT-2 124M, batch 8 | skipped | no time left of 0 s |")
	require.Contains(t, page, "| PyTorch | skipped | no time left of 0 s |")
	require.NoFileExists(t, filepath.Join(dir, "order"), "to load PyTorch may take a minute")

	page, _ = run(t, dir, "gpu-second.md", nil, "second")
	require.Less(t, strings.Index(page, "| matrix products |"), strings.Index(page, "| a step of GPT-2 124M, batch 8 |"))
}

// TestScriptFails: what failed says so in its line and by the exit status, and stops nothing else; without a GPU all is said once.
func TestScriptFails(t *testing.T) {
	dir := bundle(t)
	page, status := run(t, dir, "gpu-train.md", []string{"LOSS=1.49"}, "train", "sanitizer")
	require.Equal(t, 1, status)
	require.Contains(t, page, "| shakespeare_char, best val loss at most 1.48 | **failed** | 1.49,")
	require.Contains(t, page, "| compute-sanitizer racecheck, small ops | passed |")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "autopar"), []byte("#!/bin/sh\necho 'autopar: no room'; exit 1\n"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tests/cuda.test"), []byte("#!/bin/sh\necho '--- SKIP: Test (0.00s)'; echo '    no GPU'\n"), 0o777))
	page, status = run(t, dir, "gpu-first.md", []string{"BATCHES=8 16"}, "first")
	require.Equal(t, 1, status)
	require.Contains(t, page, "| conformance suite on the GPU | skipped | no GPU, conformance-1.txt |")
	require.Contains(t, page, "| a step of GPT-2 124M, batch 16 | **failed** | autopar: no room, step-16.json |")
	require.Contains(t, page, "| 16 | - | - | - | - | - | - | 120.00 | 20.50 | - |")
	require.Contains(t, page, "| steps | 0 of 2 batches |")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "tests/driver.test"), []byte("#!/bin/sh\necho 'AUTOPAR_TEST_CUDA is set: no libcuda'; exit 1\n"), 0o777))
	page, status = run(t, dir, "gpu-first.md", nil, "first")
	require.Equal(t, 2, status)
	require.Contains(t, page, "| GPU | **none that can be used** | no libcuda |")
	require.NotContains(t, page, "conformance")
}

// TestScriptOnSeveralGPUs: plans for as many GPUs as there are run in one process and in several; other losses than a CPU's fail, and missing ones.
func TestScriptOnSeveralGPUs(t *testing.T) {
	dir := bundle(t)
	page, status := run(t, dir, "gpu-several.md", nil, "several")
	require.Zero(t, status)
	require.Contains(t, page, "| several GPUs | skipped | 0 GPUs;")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin/nvidia-smi"), []byte("#!/bin/sh\nfor i in 0 1 2 3; do echo GPU $i: A; done\n"), 0o777))
	trains := `#!/bin/sh
way=$1 loss=$LOSS updates=0123456789
case "$*" in *cuda*) ;; *) loss=4 ;; esac
[ $way = launch ] && updates=${UPDATES:-$updates}
while [ $# -gt 1 ]; do
	[ "$1" = --out ] && mkdir -p "$2" && echo "$updates" | fold -w 1 | while read -r i; do echo "{\"iter\":$i,\"loss\":$loss,\"lr\":1}"; done >"$2/metrics.jsonl"
	shift
done
echo autopar: done
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "autopar"), []byte(trains), 0o777))
	page, status = run(t, dir, "gpu-several.md", []string{"LOSS=4.00005"}, "several")
	require.Zero(t, status)
	require.Contains(t, page, "| several GPUs | 6 plans on up to 4 |")
	require.Contains(t, page, "| --dp 2 --tp 2 --zero 3 | 5.0e-05 | 5.0e-05 |")
	require.NotContains(t, page, "--dp 2 --tp 2 --pp 2", "for 8")

	page, status = run(t, dir, "gpu-several.md", []string{"LOSS=4.0002"}, "several")
	require.Equal(t, 1, status)
	require.Contains(t, page, "| --tp 2 | **2.0e-04** autopar: done, several-run-tp2.txt | **2.0e-04** autopar: done, several-launch-tp2.txt |")

	page, status = run(t, dir, "gpu-several.md", []string{"LOSS=4", "UPDATES=012345678"}, "several")
	require.Equal(t, 1, status)
	require.Contains(t, page, "| --tp 2 | 0.0e+00 | **failed** autopar: done, several-launch-tp2.txt |")
}
