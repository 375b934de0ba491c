package cuda

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// openFakes opens a rank on each of so many GPUs.
func openFakes(t *testing.T, ranks int, timeout time.Duration, nccl func(driver.Collectives) driver.Collectives) (*fake.Driver, *Backend, []runtime.Device) {
	h := &hollow{Driver: fake.New(fake.Options{Devices: ranks})}
	b := New(&System{
		Driver: h, BLAS: func(int) (driver.BLAS, error) { return hollowBLAS{h.BLAS(), h}, nil },
		Engine:      func(int) (Engine, error) { return newKernels(h, stubCompiler{}, 90, 227<<10), nil },
		Collectives: func(int) (driver.Collectives, error) { return nccl(h.Collectives()), nil },
	}, Options{})
	ds, err := b.Open(runtime.World{Ranks: ranks, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, d := range ds {
			require.NoError(t, d.Close())
		}
	})
	return h.Driver, b, ds
}

func asItIs(c driver.Collectives) driver.Collectives { return c }

// exchanges are what ranks exchange: sums of groups of ranks, by number, and messages from one rank to another.
type exchanges struct {
	sums     map[int][]int
	messages [][2]int
	op       ir.Op // in place of sums
}

var sixteen = runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}

func (x exchanges) of(rank int) (collectives []*runtime.Collective, transfers []*runtime.Transfer) {
	for number, ranks := range x.sums {
		c := &runtime.Collective{Node: &ir.Node{Op: ir.OpAllReduce, Name: "x"}, Group: number, Position: slices.Index(ranks, rank)}
		out := sixteen
		if x.op == ir.OpAllToAll {
			c.Node.Op, c.Attr.Dim, c.Attr.To, out.Offset = x.op, 0, 0, 64
		}
		for _, r := range ranks {
			c.Members = append(c.Members, runtime.Member{Rank: r, In: sixteen, Out: out})
		}
		if c.Position >= 0 {
			collectives = append(collectives, c)
		}
	}
	for _, ends := range x.messages {
		send := &ir.Node{Op: ir.OpSend, Name: "x@send"}
		switch rank {
		case ends[0]:
			transfers = append(transfers, &runtime.Transfer{Node: send, Peer: ends[1], Local: sixteen})
		case ends[1]:
			transfers = append(transfers, &runtime.Transfer{Node: &ir.Node{Op: ir.OpRecv, Name: "x@recv", Args: []*ir.Value{{Def: send}}}, Peer: ends[0], Local: sixteen})
		}
	}
	return collectives, transfers
}

// joinedBy returns the numbers of the groups that a rank has joined, in order.
func joinedBy(b *Backend, d *fake.Driver, rank int) (numbers []int) {
	for _, id := range d.Joined(rank) {
		for n, g := range b.groups {
			if g.id == id {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}

// TestJoinInOrder: every rank joins its groups in ascending order of their numbers, on its own GPU, before it has any work. A
// program that is loaded later joins only the groups that are new.
func TestJoinInOrder(t *testing.T) {
	d, b, ds := openFakes(t, 4, 10*time.Second, asItIs)
	first := exchanges{sums: map[int][]int{7: {0, 1, 2}, 2: {0, 1, 2, 3}, 11: {1, 3}, 4: {0, 2}, 5: {2, 3}}, messages: [][2]int{{0, 1}, {1, 0}, {2, 3}, {3, 0}, {1, 3}}}
	second := exchanges{sums: map[int][]int{9: {0, 3}, 2: {0, 1, 2, 3}, 1: {0, 1}, 3: {1, 2, 3}}, messages: [][2]int{{0, 1}, {3, 2}}}
	more := exchanges{sums: map[int][]int{2: {0, 1, 2, 3}}, op: ir.OpAllToAll} // by messages
	had := make([][]int, len(ds))
	for i, x := range []exchanges{first, second, first, more, more} {
		require.NoError(t, backendtest.Load(ds, 128, x.of))
		for rank := range ds {
			numbers := map[int]bool{}
			for n, ranks := range x.sums {
				numbers[n] = slices.Contains(ranks, rank)
			}
			for _, ends := range x.messages {
				numbers[b.pair(ends[0], ends[1])] = slices.Contains(ends[:], rank)
			}
			for _, n := range slices.Sorted(maps.Keys(numbers)) {
				if numbers[n] && !slices.Contains(had[rank], n) {
					had[rank] = append(had[rank], n)
				}
			}
			require.Equal(t, had[rank], joinedBy(b, d, rank), "rank %d, program %d", rank, i)
		}
	}
	require.True(t, ds[0].(*Device).memberships[2].connected)
}

// TestNoneInAStep: a collective or message whose communicator was not made when a program was loaded fails with its name.
func TestNoneInAStep(t *testing.T) {
	d, _, ds := openFakes(t, 3, time.Minute, asItIs)
	require.NoError(t, backendtest.Load(ds, 64, exchanges{sums: map[int][]int{1: {0, 1}}}.of))
	collectives, transfers := exchanges{sums: map[int][]int{6: {0, 2}}, messages: [][2]int{{0, 2}, {2, 0}}}.of(0)
	require.ErrorContains(t, ds[0].Collective(collectives[0]), "rank 0 was told of no collective in NCCL's group 6 before this step")
	require.ErrorContains(t, ds[0].Send(transfers[0]), "rank 0 was told of no message in NCCL's pair for messages from rank 0 to rank 2 before this step")
	require.ErrorContains(t, ds[0].Recv(transfers[1]), "rank 0 was told of no message in NCCL's pair for messages from rank 2 to rank 0 before this step")
	require.NoError(t, ds[0].(runtime.Preparer).Prepare(collectives, nil))
	require.ErrorContains(t, ds[0].Collective(collectives[0]), "rank 0 has not joined NCCL's group 6 (ranks 0, 2) before this step")
	require.Len(t, d.Joined(0), 1)
}

// slow is a Collectives whose ranks never join, and that knows where they meet.
type slow struct{ driver.Collectives }

func (c slow) NewID() (driver.ID, error) {
	id, err := c.Collectives.NewID()
	copy(id[8:], []byte{2, 0, 0xad, 0x9c, 10, 0, 0, 7})
	return id, err
}

func (c slow) Join(int, driver.ID, int) (driver.Comm, error) { select {} }

// mute is a Collectives whose first messages never arrive.
type mute struct{ driver.Collectives }

func (c mute) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	comm, err := c.Collectives.Join(ranks, id, rank)
	return muteComm{comm}, err
}

type muteComm struct{ driver.Comm }

func (muteComm) Send(driver.Ptr, int64, ir.DType, int, driver.Stream) error { return nil }

// TestJoinIsBounded: if a communicator is never complete, every rank that waits has an error with its number, the group, and what
// it waits for, and closing does not wait for it.
func TestJoinIsBounded(t *testing.T) {
	const timeout = 50 * time.Millisecond
	sum, message := exchanges{sums: map[int][]int{3: {0, 1}}}, exchanges{messages: [][2]int{{0, 1}}}
	for name, tt := range map[string]struct {
		nccl func(driver.Collectives) driver.Collectives
		exchanges
		want string // for each rank that comes
		come int    // how many of the two ranks
	}{
		"in NCCL":                {func(c driver.Collectives) driver.Collectives { return slow{c} }, sum, "rank %d has not joined NCCL's group 3 (ranks 0, 1) at 10.0.0.7:44444 within 50ms", 2},
		"for a rank":             {asItIs, sum, "rank %d joining NCCL's group 3 (ranks 0, 1): waited 50ms for rank 1", 1},
		"for a rank with a pair": {asItIs, message, "rank %d joining NCCL's pair for messages from rank 0 to rank 1: waited 50ms for rank 1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, b, ds := openFakes(t, 2, timeout, tt.nccl)
			t.Cleanup(b.Abort)
			err := backendtest.Load(ds[:tt.come], 64, tt.of)
			for rank := range tt.come {
				require.ErrorContains(t, err, fmt.Sprintf(tt.want, rank))
			}
		})
	}
	t.Run("for the first message", func(t *testing.T) {
		_, b, ds := openFakes(t, 2, timeout, func(c driver.Collectives) driver.Collectives { return mute{c} })
		t.Cleanup(b.Abort)
		require.ErrorContains(t, backendtest.Load(ds, 64, message.of), "rank 1 has not joined NCCL's pair for messages from rank 0 to rank 1 at ")
	})
	t.Run("for another process", func(t *testing.T) {
		_, b, ds := openFakes(t, 2, timeout, asItIs)
		t.Cleanup(b.Abort)
		b.others = &others{names: map[int]chan driver.ID{}}
		require.NoError(t, ds[1].(runtime.Preparer).Prepare(sum.of(1)))
		_, err := ds[1].(runtime.Preparer).Join()
		require.ErrorContains(t, err, "rank 1 joining NCCL's group 3 (ranks 0, 1): waited 50ms for rank 0")
	})
	t.Run("until the run fails", func(t *testing.T) {
		_, b, ds := openFakes(t, 2, time.Minute, asItIs)
		time.AfterFunc(timeout, b.Abort)
		require.ErrorIs(t, backendtest.Load(ds[:1], 64, sum.of), runtime.ErrAborted)
	})
}
