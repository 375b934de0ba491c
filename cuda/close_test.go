package cuda

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// endless is a Collectives whose communicators never end.
type endless struct{ driver.Collectives }

func (c endless) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	comm, err := c.Collectives.Join(ranks, id, rank)
	return endlessComm{comm}, err
}

type endlessComm struct{ driver.Comm }

func (endlessComm) Close() error { select {} }

// refusing is a Collectives that refuses sums, and counts open groups of calls.
type refusing struct {
	driver.Collectives
	open *atomic.Int32
}

func (c refusing) GroupStart() error { c.open.Add(1); return c.Collectives.GroupStart() }
func (c refusing) GroupEnd() error   { c.open.Add(-1); return c.Collectives.GroupEnd() }
func (c refusing) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	comm, err := c.Collectives.Join(ranks, id, rank)
	return refusingComm{comm}, err
}

type refusingComm struct{ driver.Comm }

func (refusingComm) AllReduce(driver.Ptr, driver.Ptr, int64, ir.DType, ir.Reduction, driver.Stream) error {
	return errors.New("refused")
}

// twoRanks opens a backend of two GPUs, and returns a function that lets a rank sum numbers over
// both.
func twoRanks(t *testing.T, nccl func(driver.Collectives) driver.Collectives) (*Backend, []runtime.Device, func(rank int) error) {
	_, b, ds := openFakes(t, 2, time.Minute, nccl)
	sums := make([]*runtime.Collective, 2)
	require.NoError(t, backendtest.Load(ds, 64, func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
		collectives, _ := exchanges{sums: map[int][]int{3: {0, 1}}}.of(rank)
		sums[rank] = collectives[0]
		return collectives, nil
	}))
	return b, ds, func(rank int) error {
		return ds[rank].Collective(sums[rank])
	}
}

// TestGroupsEnd: a group of NCCL calls is closed even if one is refused; otherwise the thread's
// next calls would belong to it.
func TestGroupsEnd(t *testing.T) {
	var open atomic.Int32
	_, ds, sum := twoRanks(t, func(c driver.Collectives) driver.Collectives { return refusing{c, &open} })
	errs := make(chan error, 2)
	for rank := range ds {
		go func() { errs <- sum(rank) }()
	}
	for range ds {
		require.ErrorContains(t, <-errs, "refused")
	}
	require.Zero(t, open.Load())
}

// TestCloseIsBounded: closing does not wait for ever for NCCL or a stream, and says what it has
// abandoned.
func TestCloseIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		nccl func(driver.Collectives) driver.Collectives
		sums int // by the first rank; the other makes one
		want string
	}{
		"a communicator": {func(c driver.Collectives) driver.Collectives { return endless{c} }, 1, "cuda: NCCL has not ended rank "},
		"a stream":       {func(c driver.Collectives) driver.Collectives { return c }, 2, "cuda: a stream of rank 0 is at work still after 50ms; GPU 0 (fake device 0) stays open"},
	} {
		t.Run(name, func(t *testing.T) {
			b, ds, sum := twoRanks(t, tt.nccl)
			b.bound = 50 * time.Millisecond
			errs := make(chan error, 2)
			for rank := range ds {
				go func() {
					err := sum(rank)
					for range tt.sums - 1 {
						if rank == 0 && err == nil {
							err = sum(rank)
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

// TestContextsLast: the context of a GPU outlives the backend that was its only user.
func TestContextsLast(t *testing.T) {
	d := &keeper{Driver: fake.New(fake.Options{}), kept: map[int]bool{}}
	for range 2 {
		c, err := d.RetainPrimary(0)
		require.NoError(t, err)
		require.NoError(t, d.ReleasePrimary(0))
		require.NoError(t, d.SetCurrent(c))
	}
	require.NoError(t, d.ReleasePrimary(0), "the use that stays")
	require.Error(t, d.ReleasePrimary(0), "there is one")
}
