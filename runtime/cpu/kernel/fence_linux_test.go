package kernel

import (
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fences allocates operands with inaccessible pages on both sides.
type fences struct {
	memory []byte
	begin  bool // the first operand begins at the edge; else the last one ends there
	used   int  // pages
}

func newFences(t *testing.T, pages int) *fences {
	memory, err := unix.Mmap(-1, 0, pages*unix.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	return &fences{memory: memory}
}

// fenced returns an operand of n elements.
func fenced[E any](t *testing.T, f *fences, n int) []E {
	var e E
	page, size := unix.Getpagesize(), n*int(unsafe.Sizeof(e))
	first := (f.used + 1) * page
	end := first + (size+page)/page*page // at least one page
	f.used = end / page
	require.NoError(t, unix.Mprotect(f.memory[first:end], unix.PROT_READ|unix.PROT_WRITE))
	if !f.begin {
		first = end - size
	}
	return unsafe.Slice((*E)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(f.memory)), first)), n)
}

// reset frees all operands.
func (f *fences) reset(t *testing.T) {
	require.NoError(t, unix.Mprotect(f.memory, unix.PROT_NONE))
	f.used = 0
}

// The inner loops neither read nor write beyond their operands, at either edge of the accessible
// memory.
func TestLoopsStayBetweenFences(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	f := newFences(t, 64)
	for _, f.begin = range []bool{false, true} {
		for n := range 140 {
			f.reset(t)
			floats := func() []float32 { return fenced[float32](t, f, n) }
			a, b, c, x, y, z := floats(), floats(), floats(), floats(), floats(), floats()
			half, wide := fenced[uint16](t, f, n), fenced[int64](t, f, n)
			for _, set := range instructionSets() {
				for name, run := range map[string]func(){
					"add, mul, max":                func() { set.add(a, x, y); set.mul(a, x, y); set.max(a, x, y) },
					"scale, axpy, dot":             func() { set.scale(a, x, 2); set.axpy(a, x, 2); set.dot(x, y) },
					"sums":                         func() { set.sum(x); set.sum64(x); set.sumSquares(x); set.sumSquaresAbout(x, 1) },
					"maxOf, colSum":                func() { set.maxOf(x); set.colSum(a, x, 1, n) },
					"expSum, expMul, softmaxGrad":  func() { set.expSum(a, x, 1, 0); set.expMul(a, x, 0, 1); set.softmaxGrad(a, x, y, 1, 1) },
					"gelu":                         func() { set.gelu(a, x); set.geluTanh(a, x); set.geluGrad(a, x, y); set.geluTanhGrad(a, x, y) },
					"swiglu, rotate":               func() { set.swiglu(a, x, y); set.swigluGrad(a, b, x, y, z); set.rotate(a, b, x, y, z, c) },
					"normalize, normGradSums":      func() { set.normalize(a, x, y, z, 0, 1); set.normGradSums(x, y, z, 0, 1) },
					"normGradRow, normGradParams":  func() { set.normGradRow(a, x, y, z, 0, 1, 0, 0); set.normGradParams(a, b, x, y, 0, 1) },
					"adamw":                        func() { set.adamw(a, b, c, x, &adamwFactors{epsilon: 1}) },
					"addAsFixed, fixedSquares":     func() { set.addAsFixed(wide, x, 1); set.fixedSquares(x, 1) },
					"bfloat16":                     func() { set.widen[BF16](a, half); set.narrow[BF16](x, half) },
					"binary16":                     func() { set.widen[F16](a, half); set.narrow[F16](x, half) },
					"dropoutFactors, in its steps": func() { set.dropoutFactors(fenced[float32](t, f, n/dropoutStep*dropoutStep), 3, &MaskKey{}, 1<<31, 2) },
				} {
					require.NotPanics(t, run, "%s: %s of %d elements", set.name, name, n)
				}
			}
		}
	}
}

// Neither do those of matrix products.
func TestTilesStayBetweenFences(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	f := newFences(t, 64)
	for _, f.begin = range []bool{false, true} {
		for _, set := range instructionSets() {
			for _, k := range []int{1, 3, 4, 9, 16} {
				for m := 1; m <= set.rows; m++ {
					for n := 1; n <= set.cols; n++ {
						const apart = 3 // from the end of a row to the next
						f.reset(t)
						b, c := fenced[float32](t, f, k*set.cols), fenced[float32](t, f, m*(n+apart)-apart)
						rows, columns := fenced[float32](t, f, m*(k+apart)-apart), fenced[float32](t, f, k*set.rows)
						for _, acc := range []bool{false, true} {
							require.NotPanics(t, func() {
								set.product(m, n, k, rows, k+apart, 1, b, c, n+apart, acc)
								set.product(m, n, k, columns, 1, set.rows, b, c, n+apart, acc)
							}, "%s: product %d by %d of %d terms", set.name, m, n, k)
						}
					}
				}
				for _, width := range []int{set.rows, set.cols} {
					for n := 1; n <= width; n++ {
						f.reset(t)
						dst, src := fenced[float32](t, f, k*width), fenced[float32](t, f, k*n)
						require.NotPanics(t, func() {
							set.packRows(dst, src, n, k, n, width)
							set.packCols(dst, src, k, k, n, width)
						}, "%s: %d by %d to panels of %d", set.name, k, n, width)
					}
				}
			}
		}
	}
}
