package fake

import (
	"encoding/binary"
	"math"

	"gonum.org/v1/gonum/floats"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
)

// BLAS returns products by three loops in float64, column-major.
func (d *Driver) BLAS() driver.BLAS { return &blas{d} }

type blas struct{ driver *Driver }

func (b *blas) Close() error { return nil }

func (b *blas) Workspace() int64 { return 256 }

func (b *blas) Tune(driver.GEMM, driver.Ptr, driver.Ptr, driver.Ptr, driver.Ptr, driver.Stream) error {
	return nil
}

func (b *blas) MatMul(g driver.GEMM, x, y, z, workspace driver.Ptr, s driver.Stream) error {
	return b.product(g, x, y, z, 0, workspace, s)
}

// With runs apart if M is odd, as if that were faster, and else the product with its epilogue.
func (b *blas) With(g driver.GEMM, x, y, z, vector, workspace driver.Ptr, s driver.Stream, apart func() error) error {
	if g.M%2 > 0 {
		return apart()
	}
	return b.product(g, x, y, z, vector, workspace, s)
}

func (b *blas) product(g driver.GEMM, x, y, z, vector, workspace driver.Ptr, s driver.Stream) error {
	columns := func(trans bool, rows, cols int64) int64 {
		if trans {
			return rows
		}
		return cols
	}
	extent := func(ld, cols int64, d ir.DType) int64 { return ld * cols * d.Size() }
	rx := Range{x, extent(g.LDA, columns(g.TransA, g.M, g.K), g.TypeA)}
	ry := Range{y, extent(g.LDB, columns(g.TransB, g.K, g.N), g.TypeB)}
	rz := Range{z, extent(g.LDC, g.N, g.TC)}
	reads, writes := []Range{rx, ry}, []Range{rz, {workspace, b.Workspace()}}
	bias, sums := Range{vector, g.M * g.TC.Size()}, Range{vector, g.N * g.TC.Size()}
	switch g.Epilogue {
	case driver.AddBias:
		reads = append(reads, bias)
	case driver.SumB:
		writes = append(writes, sums)
	}
	return b.driver.give(s, "cublasLtMatmul", reads, writes, func() error {
		x := unpack(b.driver.Memory(rx), g.TypeA, g.LDA, g.M, g.K, g.TransA)
		y := unpack(b.driver.Memory(ry), g.TypeB, g.LDB, g.K, g.N, g.TransB)
		z, added := b.driver.Memory(rz), []byte(nil)
		if g.Epilogue == driver.AddBias {
			added = b.driver.Memory(bias)
		}
		row := make([]float64, g.N) // of the product
		if g.Epilogue == driver.SumB {
			for k := range g.K {
				floats.Add(row, y[k*g.N:(k+1)*g.N])
			}
			for col, sum := range row {
				g.TC.Write(b.driver.Memory(sums)[int64(col)*g.TC.Size():], float32(sum))
			}
		}
		for i := range g.M {
			clear(row)
			for k := range g.K {
				floats.AddScaled(row, x[i*g.K+k], y[k*g.N:(k+1)*g.N])
			}
			for col, sum := range row {
				to := z[(int64(col)*g.LDC+i)*g.TC.Size():]
				if added != nil {
					sum += float64(g.TC.Read(added[i*g.TC.Size():]))
				}
				if g.Accumulate {
					sum += float64(g.TC.Read(to))
				}
				g.TC.Write(to, float32(sum))
			}
		}
		return nil
	})
}

// unpack returns op(a) row by row. a has rows x cols if it is not transposed. There is a separate
// loop for float32, the most frequent type.
func unpack(m []byte, d ir.DType, ld, rows, cols int64, trans bool) []float64 {
	x := make([]float64, rows*cols)
	down, across := d.Size(), ld*d.Size() // bytes from element to element
	if trans {
		down, across = across, down
	}
	for row := range rows {
		at, line := row*down, x[row*cols:(row+1)*cols]
		if d == ir.F32 {
			for col := range line {
				line[col] = float64(math.Float32frombits(binary.LittleEndian.Uint32(m[at:])))
				at += across
			}
			continue
		}
		for col := range line {
			line[col] = float64(d.Read(m[at:]))
			at += across
		}
	}
	return x
}
