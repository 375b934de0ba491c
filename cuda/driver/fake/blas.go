package fake

import (
	"encoding/binary"
	"math"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// BLAS returns the products of runtime/cpu: a matrix column by column is its transpose row by row.
func (d *Driver) BLAS() driver.BLAS { return &blas{d, kernel.NewPool(1)} }

type blas struct {
	driver *Driver
	pool   *kernel.Pool // the driver does one piece of work at a time
}

func (b *blas) Close() error { return nil }

func (b *blas) Workspace() int64 { return 256 }

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
	rowsX, colsX, rowsY, colsY := g.K, g.M, g.N, g.K // row by row, as they lie in memory
	if g.TransA {
		rowsX, colsX = g.M, g.K
	}
	if g.TransB {
		rowsY, colsY = g.K, g.N
	}
	rx, ry := Range{x, rowsX * g.LDA * g.TypeA.Size()}, Range{y, rowsY * g.LDB * g.TypeB.Size()}
	rz := Range{z, g.N * g.LDC * g.TC.Size()}
	reads, writes := []Range{rx, ry}, []Range{rz, {workspace, b.Workspace()}}
	bias, sums := Range{vector, g.M * g.TC.Size()}, Range{vector, g.N * g.TC.Size()}
	switch g.Epilogue {
	case driver.AddBias:
		reads = append(reads, bias)
	case driver.SumB:
		writes = append(writes, sums)
	}
	return b.driver.give(s, "cublasLtMatmul", reads, writes, func() error {
		x := unpack(b.driver.Memory(rx), g.TypeA, g.LDA, rowsX, colsX)
		y := unpack(b.driver.Memory(ry), g.TypeB, g.LDB, rowsY, colsY)
		product := make([]float32, g.N*g.M)
		multiply := kernel.MatMulNN
		switch {
		case g.TransA && g.TransB:
			return invalid("cublasLtMatmul", "both matrices are transposed, which nothing needs")
		case g.TransA:
			multiply = kernel.MatMulNT
		case g.TransB:
			multiply = kernel.MatMulTN
		}
		multiply(b.pool, int(g.N), int(g.M), int(g.K), y, x, product, false)
		added := make([]float32, g.M)
		switch g.Epilogue {
		case driver.AddBias:
			added = unpack(b.driver.Memory(bias), g.TC, g.M, 1, g.M)
		case driver.SumB:
			sum, down, across := b.driver.Memory(sums), int64(1), g.K
			if g.TransB {
				down, across = g.N, 1
			}
			for j := range g.N {
				total := float64(0)
				for k := range g.K {
					total += float64(y[j*across+k*down])
				}
				g.TC.Write(sum[j*g.TC.Size():], float32(total))
			}
		}
		memory := b.driver.Memory(rz)
		for j := range g.N {
			z := memory[j*g.LDC*g.TC.Size():]
			for i, v := range product[j*g.M : (j+1)*g.M] {
				to := z[int64(i)*g.TC.Size():]
				if v += added[i]; g.Accumulate {
					v += g.TC.Read(to)
				}
				g.TC.Write(to, v)
			}
		}
		return nil
	})
}

// unpack returns rows that lie ld elements apart. There is a separate loop for float32, the most frequent
// type.
func unpack(m []byte, d ir.DType, ld, rows, cols int64) []float32 {
	x := make([]float32, 0, rows*cols)
	for row := range rows {
		line := m[row*ld*d.Size():][:cols*d.Size()]
		if d == ir.F32 {
			for ; len(line) > 0; line = line[4:] {
				x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(line)))
			}
		}
		for ; len(line) > 0; line = line[d.Size():] {
			x = append(x, d.Read(line))
		}
	}
	return x
}
