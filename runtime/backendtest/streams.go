package backendtest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// testStream makes buckets of collectives on a stream while the compute stream doubles other
// tensors. Events order the two: a bucket starts after the kernels that make its operands, and the
// kernels that read its results start after it.
func testStream(t *testing.T, open Open, s runtime.Stream) {
	const ranks, rounds = 3, 20
	slab := ir.Whole([]int{1031})
	double := addNode(t, slab.Local)
	reduce := &ir.Node{Op: ir.OpAllReduce, Name: "g@all_reduce"}
	ds, _ := devices(t, open, ranks, time.Minute)
	var a arena
	const bucket = 3
	var in, out, read [bucket]runtime.Tensor // doubled from in to out, reduced there, doubled from out to read
	for i := range bucket {
		in[i], out[i], read[i] = a.tensor(ir.F32, slab), a.tensor(ir.F32, slab), a.tensor(ir.F32, slab)
	}
	aside := a.tensor(ir.F32, slab)
	var all [ranks][bucket]*runtime.Collective
	for r := range ranks {
		for i := range bucket {
			c := &runtime.Collective{Node: reduce, Group: 7, Position: r, Stream: s}
			for m := range ranks {
				c.Members = append(c.Members, runtime.Member{Rank: m, In: out[i], Out: out[i]})
			}
			all[r][i] = c
		}
		all[r][0].More = all[r][1:]
	}
	require.NoError(t, Load(ds, a.end, func(r int) ([]*runtime.Collective, []*runtime.Transfer) { return all[r][:1], nil }))
	rng := rand.New(rand.NewPCG(3, 3))
	var terms [ranks][bucket][]float32
	for r, d := range ds {
		for i := range bucket {
			terms[r][i] = random(rng, slab.Elems())
			upload(t, d, in[i], terms[r][i])
		}
		upload(t, d, aside, make([]float32, slab.Elems()))
	}
	twice := func(from, to runtime.Tensor) *runtime.Kernel {
		return &runtime.Kernel{Node: double, Args: []runtime.Tensor{from, from}, Results: []runtime.Tensor{to}, Accum: []bool{false}}
	}
	var ran [ranks][rounds]time.Duration
	errs := together(ds, func(r int, d runtime.Device) error {
		collectives := all[r]
		for round := range rounds {
			collectives[0].Ran = func(start, end time.Time) { ran[r][round] = max(1, end.Sub(start)) }
			var err error
			for i := range bucket {
				err = errors.Join(err, d.Launch(twice(in[i], out[i])))
			}
			n := int64(round + 1)
			err = errors.Join(err, d.Record(runtime.Compute),
				d.Wait(s, runtime.Event{Rank: r, Stream: runtime.Compute, N: n}),
				d.Collective(collectives[0]), d.Record(s),
				d.Launch(twice(aside, aside)), // concurrent with the bucket
				d.Wait(runtime.Compute, runtime.Event{Rank: r, Stream: s, N: n}))
			for i := range bucket {
				err = errors.Join(err, d.Launch(twice(out[i], read[i])))
			}
			if err == nil && round%5 == 4 {
				err = d.Wait(runtime.Host, runtime.Event{Rank: r, Stream: s, N: n})
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(d.Record(runtime.Compute), d.Wait(runtime.Host, runtime.Event{Rank: r, N: rounds + 1}))
	})
	require.NoError(t, errors.Join(errs...))
	for r, d := range ds {
		for i := range bucket {
			got := download(t, d, read[i])
			for k, x := range got {
				require.InDelta(t, 4*(terms[0][i][k]+terms[1][i][k]+terms[2][i][k]), x, 1e-4, "rank %d, tensor %d, element %d", r, i, k)
			}
		}
		for round := range rounds {
			require.Positive(t, ran[r][round], "rank %d is told when round %d was", r, round)
		}
	}
}

// testStreamFailures checks that a failure on a stream reaches whoever waits for the stream, with
// the collective's name, and that Abort ends the stream's waits.
func testStreamFailures(t *testing.T, open Open, s runtime.Stream) {
	const timeout = 300 * time.Millisecond
	own := runtime.Event{Rank: 0, Stream: s, N: 1}
	t.Run("late", func(t *testing.T) {
		ds, b := devices(t, open, 2, timeout)
		defer b.Abort()
		c := newMeeting(t, ds, s).collective
		err := errors.Join(ds[0].Collective(c), ds[0].Record(s), ds[0].Wait(runtime.Compute, own), ds[0].Wait(runtime.Host, own))
		var beside *runtime.StreamError
		require.ErrorAs(t, err, &beside)
		require.Equal(t, c.Node, beside.Node)
		var late *runtime.WaitError
		require.ErrorAs(t, err, &late)
		require.Equal(t, []int{1}, late.Ranks)
	})
	t.Run("abort", func(t *testing.T) {
		ds, b := devices(t, open, 2, time.Minute)
		c := newMeeting(t, ds, s).collective
		go func() {
			time.Sleep(10 * time.Millisecond)
			b.Abort()
		}()
		start := time.Now()
		err := errors.Join(ds[0].Collective(c), ds[0].Record(s), ds[0].Wait(runtime.Compute, own), ds[0].Wait(runtime.Host, own))
		require.ErrorIs(t, err, runtime.ErrAborted)
		require.Less(t, time.Since(start), 10*time.Second)
	})
}
