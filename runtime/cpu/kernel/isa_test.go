package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The inner loops write only their results: a result of each length lies between guards.
func TestLoopsStayInside(t *testing.T) {
	rnd := random(t, 71)
	const guard = 16
	for _, set := range instructionSets() {
		for n := range 70 {
			x, y, z := rnd.floats(n), rnd.floats(n), rnd.floats(n)
			factors := adamwFactors{epsilon: 1}
			for name, run := range map[string]func(a, b, c []float32){
				"add":            func(a, _, _ []float32) { set.add(a, x, y) },
				"mul":            func(a, _, _ []float32) { set.mul(a, x, y) },
				"max":            func(a, _, _ []float32) { set.max(a, x, y) },
				"scale":          func(a, _, _ []float32) { set.scale(a, x, 2) },
				"axpy":           func(a, _, _ []float32) { set.axpy(a, x, 2) },
				"colSum":         func(a, _, _ []float32) { set.colSum(a, x, 1, n) },
				"expSum":         func(a, _, _ []float32) { set.expSum(a, x, 1, 0) },
				"expMul":         func(a, _, _ []float32) { set.expMul(a, x, 0, 1) },
				"softmaxGrad":    func(a, _, _ []float32) { set.softmaxGrad(a, x, y, 1, 1) },
				"gelu":           func(a, _, _ []float32) { set.gelu(a, x) },
				"geluTanh":       func(a, _, _ []float32) { set.geluTanh(a, x) },
				"geluGrad":       func(a, _, _ []float32) { set.geluGrad(a, x, y) },
				"geluTanhGrad":   func(a, _, _ []float32) { set.geluTanhGrad(a, x, y) },
				"normalize":      func(a, _, _ []float32) { set.normalize(a, x, y, z, 0, 1) },
				"normGradRow":    func(a, _, _ []float32) { set.normGradRow(a, x, y, z, 0, 1, 0, 0) },
				"normGradParams": func(a, b, _ []float32) { set.normGradParams(a, b, x, y, 0, 1) },
				"adamw":          func(a, b, c []float32) { set.adamw(a, b, c, x, &factors) },
			} {
				var whole [3][]float32
				for i := range whole {
					whole[i] = make([]float32, n+2*guard)
					for j := range whole[i] {
						whole[i][j] = 7
					}
				}
				inside := func(i int) []float32 { return whole[i][guard : guard+n] }
				run(inside(0), inside(1), inside(2))
				for i := range whole {
					for j := range guard {
						require.Equal(t, float32(7), whole[i][j], "%s %s n=%d", set.name, name, n)
						require.Equal(t, float32(7), whole[i][guard+n+j], "%s %s n=%d", set.name, name, n)
					}
				}
			}
		}
	}
}

// Instruction sets that the environment excludes are not chosen.
func TestInstructionSetsLeftOut(t *testing.T) {
	if os.Getenv("PRINT_ISA") != "" {
		fmt.Println("isa:", bestISA().name)
		return
	}
	at := map[string]int{}
	for i, set := range instructionSets() {
		at[set.name] = i
	}
	for set, option := range map[string]string{"amx": "cpu.amxtile=off", "avx512": "cpu.avx512f=off", "avx2": "cpu.avx2=off"} {
		if at[set] == 0 {
			continue
		}
		child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), "PRINT_ISA=1", "GODEBUG="+option)
		out, err := child.Output()
		require.NoError(t, err)
		require.Contains(t, string(out), "isa: "+instructionSets()[at[set]-1].name+"\n", option)
	}
}

// Packing, which only copies, is exact.
func TestPack(t *testing.T) {
	rnd := random(t, 72)
	for _, set := range instructionSets() {
		for _, width := range []int{set.rows, set.cols} {
			for _, k := range []int{1, 7, 8, 9, 31} {
				for n := 1; n <= width; n++ {
					const ld = 100
					src := rnd.floats(ld * ld)
					rows, cols := rnd.floats(k*width+16), rnd.floats(k*width+16)
					beyond := clone(rows[k*width:])
					set.packRows(rows, src, ld, k, n, width)
					set.packCols(cols, src, ld, k, n, width)
					require.Equal(t, beyond, rows[k*width:], "%s rows k=%d n=%d", set.name, k, n)
					for q := range k {
						for j := range width {
							var row, col float32
							if j < n {
								row, col = src[q*ld+j], src[j*ld+q]
							}
							require.Equal(t, row, rows[q*width+j], "%s rows k=%d n=%d", set.name, k, n)
							require.Equal(t, col, cols[q*width+j], "%s cols k=%d n=%d", set.name, k, n)
						}
					}
				}
			}
		}
	}
}
