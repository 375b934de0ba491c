package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

const unitsAttribute = driver.Multiprocessors

// patience bounds how long a rank waits for another.
const patience = time.Minute

// kernels measures on the first GPU: a kernel that does next to nothing, additions of growing size,
// and copies from and to the host.
func (r *Result) kernels(ctx context.Context, system *cuda.System, budget time.Duration) (err error) {
	backend := cuda.New(system, cuda.Options{Eager: true, GPUs: []int{0}})
	devices, err := backend.Open(runtime.World{Ranks: 1, Timeout: patience})
	if err != nil {
		return err
	}
	d := devices[0].(*cuda.Device)
	defer func() { err = errors.Join(err, d.Close()) }()
	if r.held, err = d.Held(); err != nil {
		return err
	}
	if r.held > r.memory/2 {
		return &cuda.DeviceError{Msg: fmt.Sprintf("%d of %d bytes of GPU 0 are taken already: a profile is of a GPU by itself", r.held, r.memory)}
	}
	largest := min(768<<20, r.memory/4) // bytes of the three tensors of the largest addition
	turn := budget / (turns * 40)
	for bytes := int64(3 << 10); bytes <= largest; bytes *= 4 {
		k, need, err := addition(int(bytes / 12))
		if err != nil {
			return err
		}
		if err := errors.Join(d.Check(k), d.Alloc(runtime.OnDevice, need)); err != nil {
			return err
		}
		launch := func() error { return d.Launch(k) }
		timed := func(n int) (float64, error) { return d.Time(n, launch) }
		n, err := repeats(turn, timed)
		if err != nil {
			return err
		}
		seconds, err := d.TimeGraph(n, launch)
		if err != nil {
			return err
		}
		if len(r.Streams) == 0 {
			r.Launch.InGraph = seconds
			if r.Launch.Alone, err = least(turn, timed); err != nil {
				return err
			}
		}
		r.Streams = append(r.Streams, Rate{bytes, seconds})
	}
	for bytes := int64(4 << 10); bytes <= min(64<<20, largest); bytes *= 4 {
		if err := errors.Join(ctx.Err(), d.Alloc(runtime.OnDevice, bytes), d.Alloc(runtime.OnHost, bytes)); err != nil {
			return err
		}
		for _, way := range []struct {
			op   ir.Op
			from runtime.Space
			to   *[]Rate
		}{{ir.OpStash, runtime.OnDevice, &r.ToHost}, {ir.OpFetch, runtime.OnHost, &r.FromHost}} {
			slab := ir.Whole([]int{int(bytes / 4)})
			k := &runtime.Kernel{
				Node: &ir.Node{Op: way.op, Name: way.op.String()}, Accum: []bool{false},
				Args: []runtime.Tensor{{Space: way.from, DType: ir.F32, Slab: slab}}, Results: []runtime.Tensor{{Space: 1 - way.from, DType: ir.F32, Slab: slab}},
			}
			if err := d.Check(k); err != nil {
				return err
			}
			seconds, err := least(turn, func(n int) (float64, error) { return d.Time(n, func() error { return d.Launch(k) }) })
			if err != nil {
				return err
			}
			*way.to = append(*way.to, Rate{bytes, seconds})
		}
	}
	return nil
}

// addition returns a kernel that adds two tensors, and the bytes of arena that it needs.
func addition(elems int) (k *runtime.Kernel, bytes int64, err error) {
	g := ir.NewGraph("addition")
	shape := []int{elems}
	x, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: ir.F32, Shape: shape}, nil)
	if err != nil {
		return nil, 0, err
	}
	n, err := g.Add(ir.OpAdd, nil, "sum", ir.Forward, x, x)
	if err != nil {
		return nil, 0, err
	}
	size := (4*int64(elems) + 255) / 256 * 256
	at := func(i int64) runtime.Tensor {
		return runtime.Tensor{Offset: i * size, DType: ir.F32, Slab: ir.Whole(shape)}
	}
	return &runtime.Kernel{Node: n, Args: []runtime.Tensor{at(0), at(1)}, Results: []runtime.Tensor{at(2)}, Accum: []bool{false}}, 3 * size, nil
}

// collectives measures NCCL's collectives over all GPUs, if there are several.
func (r *Result) collectives(ctx context.Context, system *cuda.System, budget time.Duration) (err error) {
	if r.GPUs == 1 {
		return nil
	}
	lib, err := system.Collectives(r.GPUs)
	if err != nil {
		return fmt.Errorf("%w; CUDA_VISIBLE_DEVICES=0 measures one GPU without it", err)
	}
	version, err := lib.Version()
	if err != nil {
		return err
	}
	r.NCCL = fmt.Sprintf("%d.%d.%d", version/10000, version/100%100, version%100)
	backend := cuda.New(system, cuda.Options{Eager: true})
	devices, err := backend.Open(runtime.World{Ranks: r.GPUs, Timeout: patience})
	if err != nil {
		return err
	}
	defer func() {
		for _, d := range devices {
			err = errors.Join(err, d.Close())
		}
	}()
	var sizes []int64
	for bytes := int64(4 << 10); bytes <= min(256<<20, r.memory/8); bytes *= 4 {
		sizes = append(sizes, bytes)
	}
	ops := []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather}
	turn := budget / time.Duration(turns*len(ops)*len(sizes))
	for _, bytes := range sizes {
		part := int(bytes) / 4 / r.GPUs
		for _, d := range devices {
			if err := errors.Join(ctx.Err(), d.Alloc(runtime.OnDevice, 2*4*int64(part*r.GPUs)+512)); err != nil {
				return err
			}
		}
		for _, op := range ops {
			seconds, err := together(backend, devices, op, part, turn)
			if err != nil {
				return fmt.Errorf("%s of %d bytes over %d GPUs: %w", op, bytes, r.GPUs, err)
			}
			r.Collectives = append(r.Collectives, Collective{op, r.GPUs, 4 * int64(part*r.GPUs), seconds})
		}
	}
	held, err := devices[0].(*cuda.Device).Held() // with a communicator
	r.held = max(r.held, held)
	return err
}

// together times an f32 collective in which every rank's part has part elements. All ranks repeat
// it equally often.
func together(backend *cuda.Backend, devices []runtime.Device, op ir.Op, part int, turn time.Duration) (float64, error) {
	n := len(devices)
	whole := ir.Whole([]int{part * n})
	node := &ir.Node{Op: op, Name: "profile"}
	offset := (4*int64(part*n) + 255) / 256 * 256
	var members []runtime.Member
	for rank := range n {
		mine := ir.Slab{Global: whole.Global, Offset: []int{rank * part}, Local: []int{part}}
		m := runtime.Member{Rank: rank, In: runtime.Tensor{DType: ir.F32, Slab: whole}, Out: runtime.Tensor{DType: ir.F32, Slab: whole, Offset: offset}}
		switch op {
		case ir.OpReduceScatter:
			m.Out.Slab = mine
		case ir.OpAllGather:
			m.In.Slab = mine
		}
		members = append(members, m)
	}
	each := func(do func(d *cuda.Device, c *runtime.Collective) (float64, error)) (float64, error) { // the result of the slowest rank
		seconds, errs := make([]float64, n), make([]error, n)
		var ranks sync.WaitGroup
		for i := range n {
			ranks.Go(func() {
				seconds[i], errs[i] = do(devices[i].(*cuda.Device), &runtime.Collective{Node: node, Members: members, Position: i})
				if errs[i] != nil {
					backend.Abort() // the others would wait in vain
				}
			})
		}
		ranks.Wait()
		return slices.Max(seconds), errors.Join(errs...)
	}
	_, err := each(func(d *cuda.Device, c *runtime.Collective) (float64, error) {
		err, more := d.Prepare([]*runtime.Collective{c}, nil), true
		for more && err == nil {
			more, err = d.Join()
		}
		return 0, err
	})
	if err != nil {
		return 0, err
	}
	return least(turn, func(repeat int) (float64, error) {
		return each(func(d *cuda.Device, c *runtime.Collective) (float64, error) {
			return d.Time(repeat, func() error { return d.Collective(c) })
		})
	})
}
