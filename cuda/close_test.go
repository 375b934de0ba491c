package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// endless are collectives whose communicators do not end.
type endless struct{ driver.Collectives }

func (c endless) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	comm, err := c.Collectives.Join(ranks, id, rank)
	return endlessComm{comm}, err
}

type endlessComm struct{ driver.Comm }

func (endlessComm) Close() error { select {} }

// TestCloseIsBounded: closing does not wait for ever for NCCL, nor for a stream, and says what it has left behind.
func TestCloseIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		nccl func(driver.Collectives) driver.Collectives
		sums int // on the first rank; one on the other
		want string
	}{
		"a communicator": {func(c driver.Collectives) driver.Collectives { return endless{c} }, 1, "cuda: NCCL has not ended rank "},
		"a stream":       {func(c driver.Collectives) driver.Collectives { return c }, 2, "cuda: a stream of rank 0 is at work still after 50ms; GPU 0 (fake device 0) stays open"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hollow{Driver: fake.New(fake.Options{Devices: 2})}
			b := New(&System{
				Driver: h, BLAS: func(int) (driver.BLAS, error) { return hollowBLAS{h.BLAS(), h}, nil },
				Engine:      func(int) (Engine, error) { return newKernels(h, stubCompiler{}, 90), nil },
				Collectives: func() (driver.Collectives, error) { return tt.nccl(h.Collectives()), nil },
			}, Options{})
			b.bound = 50 * time.Millisecond
			ds, err := b.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
			require.NoError(t, err)
			x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}
			node := &ir.Node{Op: ir.OpAllReduce, Name: "x"}
			errs := make(chan error, 2)
			for rank, d := range ds {
				require.NoError(t, d.Alloc(runtime.OnDevice, 64))
				go func() {
					c := &runtime.Collective{Node: node, Group: 3, Position: rank, Members: []runtime.Member{{Rank: 0, In: x, Out: x}, {Rank: 1, In: x, Out: x}}}
					err := d.Collective(c)
					for range tt.sums - 1 {
						if rank == 0 && err == nil {
							err = d.Collective(c)
						}
					}
					errs <- err
				}()
			}
			for range ds {
				require.NoError(t, <-errs)
			}
			require.NoError(t, ds[0].Close())
			require.ErrorContains(t, ds[1].Close(), tt.want)
		})
	}
}
