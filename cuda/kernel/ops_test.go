package kernel_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/cuda/kernel/kerneltest"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// backend runs launches on workers. Its devices do not communicate.
type backend struct {
	t       *testing.T
	path    string
	watched bool // it finds races in any order, so each group runs once
}

func (b backend) Open(w runtime.World) ([]runtime.Device, error) {
	var all []runtime.Device
	for range w.Ranks {
		all = append(all, &device{Worker: kerneltest.Start(b.t, b.path), turned: map[string]bool{}, watched: b.watched})
	}
	return all, nil
}
func (b backend) Abort() {}

// device is a worker whose arena holds the device's arena, the host's arena and scratch memory, far
// apart.
type device struct {
	*kerneltest.Worker
	runtime.Device // for methods that the tests do not call
	sizes          [2]int64
	groups         map[*runtime.Kernel]kernel.Group // by their first kernels; the other kernels have no group
	turned         map[string]bool                  // groups that have run in both orders
	watched        bool
}

const spaceBytes = 1 << 30

func (d *device) Alloc(space runtime.Space, bytes int64) error {
	d.sizes[space] = max(d.sizes[space], bytes)
	return nil
}

func (d *device) check(space runtime.Space, offset int64, n int) error {
	if offset < 0 || offset+int64(n) > d.sizes[space] {
		return fmt.Errorf("bytes [%d, %d) of an arena of %d", offset, offset+int64(n), d.sizes[space])
	}
	return nil
}

func (d *device) Upload(space runtime.Space, offset int64, src []byte) error {
	if err := d.check(space, offset, len(src)); err != nil {
		return err
	}
	d.Write(kerneltest.Bytes{At: int64(space)*spaceBytes + offset, Data: src})
	return nil
}

func (d *device) Download(dst []byte, space runtime.Space, offset int64) error {
	if err := d.check(space, offset, len(dst)); err != nil {
		return err
	}
	return d.Read(kerneltest.Bytes{At: int64(space)*spaceBytes + offset, Data: dst})
}

// at returns the address of a tensor.
func (d *device) at(t runtime.Tensor) uint64 {
	return d.Base + uint64(t.Space)*spaceBytes + uint64(t.Offset)
}

// Fuse finds groups. Every kernel must be in one.
func (d *device) Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) error {
	d.groups = map[*runtime.Kernel]kernel.Group{}
	for _, k := range run {
		d.groups[k] = nil
	}
	for _, g := range kernel.Fuse(run, uses) {
		if len(g) == 1 && len(run) > 1 {
			return fmt.Errorf("%s is done alone", g[0].Node.Op)
		}
		d.groups[g[0]] = g
	}
	return nil
}

// Launch runs a group. The first group of each kind runs twice from the same memory, the second
// time with blocks and threads in reverse: the results must have the same bits. Later groups, of
// other sizes, alternate between the two orders. Those of f16 have the same code as those of bf16,
// and run once.
func (d *device) Launch(k *runtime.Kernel) error {
	g, fused := d.groups[k]
	if !fused {
		g = kernel.Group{k}
	}
	if len(g) == 0 {
		return nil
	}
	if d.watched || k.Results[0].DType == ir.F16 {
		return d.once(g)
	}
	name := fmt.Sprint(overwrites(g))
	for _, k := range g {
		name += fmt.Sprint(" ", k.Node.Op)
	}
	defer func() { d.Reverse = !d.Reverse }()
	if d.turned[name] {
		return d.once(g)
	}
	d.turned[name] = true
	var before []byte
	if overwrites(g) {
		before = make([]byte, d.sizes[0])
		if err := d.Read(kerneltest.Bytes{Data: before}); err != nil {
			return err
		}
	}
	if err := d.once(g); err != nil {
		return err
	}
	after, err := d.results(g)
	if err != nil {
		return err
	}
	if before != nil {
		d.Write(kerneltest.Bytes{Data: before})
	}
	d.Reverse = !d.Reverse
	if err := d.once(g); err != nil {
		return err
	}
	again, err := d.results(g)
	if err != nil {
		return err
	}
	if !bytes.Equal(after, again) {
		return fmt.Errorf("%s: the results depend on the order of blocks or threads", k.Node.Op)
	}
	return nil
}

// overwrites reports whether a launch overwrites its operands, so that it cannot be repeated.
func overwrites(g kernel.Group) bool {
	for _, k := range g {
		for i, r := range k.Results {
			if k.Accum[i] {
				return true
			}
			for _, a := range k.Args {
				if a.Space == r.Space && a.Offset == r.Offset {
					return true
				}
			}
		}
	}
	return false
}

// results returns the memory of all results.
func (d *device) results(g kernel.Group) (all []byte, err error) {
	for _, k := range g {
		for _, r := range k.Results {
			x := kerneltest.Bytes{At: int64(d.at(r) - d.Base), Data: make([]byte, r.Bytes())}
			if err := d.Read(x); err != nil {
				return nil, err
			}
			all = append(all, x.Data...)
		}
	}
	return all, nil
}

func (d *device) once(g kernel.Group) error {
	// Scratch memory holds NaN, and is followed by memory that nobody may write.
	const guard = 64
	scratch, n := int64(2*spaceBytes), kernel.Scratch(g)
	d.Poison(scratch, n+guard)
	all, err := kernel.Launches(g, d.at, d.Base+uint64(scratch))
	if err != nil {
		return err
	}
	for _, l := range all {
		if !slices.Contains(kernel.Sources(), l.Program) {
			return fmt.Errorf("%s is of program %s, which there is not", l.Name, l.Program)
		}
	}
	within := []kerneltest.Range{{At: scratch, Bytes: n, Writes: true}}
	for _, k := range g {
		for _, list := range [][]runtime.Tensor{k.Args, k.Results} {
			for _, t := range list {
				within = append(within, kerneltest.Range{At: int64(d.at(t) - d.Base), Bytes: t.Bytes(), Writes: len(list) > 0 && &list[0] == &k.Results[0]})
			}
		}
	}
	if err := d.LaunchWithin(within, all...); err != nil {
		return err
	}
	after := make([]byte, guard)
	if err := d.Read(kerneltest.Bytes{At: scratch + n, Data: after}); err != nil {
		return err
	}
	if bytes.Count(after, []byte{0xff}) != guard {
		return fmt.Errorf("%s wrote past its %d bytes of scratch memory", g[0].Node.Op, n)
	}
	return nil
}

func (d *device) Close() error { return nil }

// leftToOthers reports whether a communicator runs an op.
func leftToOthers(op ir.Op) bool {
	switch op {
	case ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpSend, ir.OpRecv:
		return true
	}
	return op.Class() == ir.Leaf
}

// TestOps compares every op with package interp, in every type, cut in every way, in place and
// accumulating. See backendtest for tolerances.
func TestOps(t *testing.T) {
	t.Parallel()
	path := kerneltest.Build(t)
	backendtest.RunOps(t, func(t *testing.T) runtime.Backend { return backend{t: t, path: path} },
		func(op ir.Op, attr ir.Attr) bool { return leftToOthers(op) })
}

// TestTensorCores is the same for attention on tensor cores.
func TestTensorCores(t *testing.T) {
	t.Parallel()
	path := kerneltest.Build(t)
	backendtest.RunWideHeads(t, func(t *testing.T) runtime.Backend { return backend{t: t, path: path} })
}

// TestWithoutWarpgroups is the same for devices before Hopper, which multiply tiles otherwise.
func TestWithoutWarpgroups(t *testing.T) {
	t.Parallel()
	path := kerneltest.BuildWithout(t)
	backendtest.RunSomeWideHeads(t, func(t *testing.T) runtime.Backend { return backend{t: t, path: path} })
}

// TestWatched runs some of the samples, of each op the first and then every twelfth, and fused ones, with a worker that sees races and
// accesses out of bounds whatever the results are.
func TestWatched(t *testing.T) {
	t.Parallel()
	path := kerneltest.BuildWatched(t)
	open := func(t *testing.T) runtime.Backend { return backend{t, path, true} }
	samples := map[ir.Op]int{}
	backendtest.RunOps(t, open, func(op ir.Op, attr ir.Attr) bool {
		n := samples[op]
		samples[op]++
		return leftToOthers(op) || n%12 > 0
	})
	backendtest.RunSomeWideHeads(t, open)
	backendtest.RunFused(t, open, func(op ir.Op, _ ir.Attr) bool { return leftToOthers(op) || op == ir.OpMatMul })
}

// TestWatchedWithoutWarpgroups is the same for attention on tensor cores before Hopper.
func TestWatchedWithoutWarpgroups(t *testing.T) {
	t.Parallel()
	path := kerneltest.BuildWatchedWithout(t)
	backendtest.RunSomeWideHeads(t, func(t *testing.T) runtime.Backend { return backend{t, path, true} })
}

// TestEveryOpHasAKernel fails if the CPU has an op that this package lacks.
func TestEveryOpHasAKernel(t *testing.T) {
	for _, op := range ir.Ops() {
		require.NotEqual(t, leftToOthers(op), kernel.Has(op), "%s", op)
	}
}
