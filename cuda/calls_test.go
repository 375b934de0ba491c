package cuda

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// calls is what one rank asks of the driver, of cuBLASLt and of NCCL.
type calls struct {
	kernels, packing, products int   // packing counts those kernels that pack and unpack
	copies, fromHost, toHost   int   // on the device, and between it and the host
	records, waits, polls      int   // of events; a poll is the host's
	made                       int   // events and memory
	memory, code               int   // allocations of memory, and modules and functions that were loaded
	groups, members, small     int   // NCCL's groups and calls alone, all its calls, and those of less than 64 KiB
	bytes                      int64 // of all its calls
}

// silent is a driver, an engine's compiler and NCCL that do nothing but count.
type silent struct {
	driver.Driver // nil: the backend makes no other call
	calls
	next  uint64
	depth int
	in    int // calls in the open group
}

func (s *silent) handle() uint64 {
	s.next += 1 << 8
	return s.next
}

func (s *silent) DeviceCount() (int, error)                    { return 1, nil }
func (s *silent) DeviceName(int) (string, error)               { return "silent", nil }
func (s *silent) SetCurrent(driver.Context) error              { return nil }
func (s *silent) MemInfo() (free, total int64, err error)      { return 1 << 50, 1 << 50, nil }
func (s *silent) Attribute(int, driver.Attribute) (int, error) { return 132, nil }

func (s *silent) Alloc(bytes int64) (driver.Ptr, error) {
	s.made++
	s.memory++
	p := s.handle()
	s.next += uint64(bytes)
	return driver.Ptr(p), nil
}
func (s *silent) Free(driver.Ptr) error { return nil }
func (s *silent) AllocHost(bytes int64) ([]byte, error) {
	s.made++
	s.memory++
	return make([]byte, bytes), nil
}
func (s *silent) FreeHost([]byte) error { return nil }

func (s *silent) CopyToDevice(driver.Ptr, []byte, driver.Stream) error {
	s.fromHost++
	return nil
}
func (s *silent) CopyToHost([]byte, driver.Ptr, driver.Stream) error {
	s.toHost++
	return nil
}
func (s *silent) Copy(driver.Ptr, driver.Ptr, int64, driver.Stream) error {
	s.copies++
	return nil
}
func (s *silent) Set8(driver.Ptr, byte, int64, driver.Stream) error { return nil }

func (s *silent) CreateStream() (driver.Stream, error) { return driver.Stream(s.handle()), nil }
func (s *silent) CreateEvent(bool) (driver.Event, error) {
	s.made++
	return driver.Event(s.handle()), nil
}
func (s *silent) RecordEvent(driver.Event, driver.Stream) error {
	s.records++
	return nil
}
func (s *silent) WaitEvent(driver.Stream, driver.Event) error {
	s.waits++
	return nil
}
func (s *silent) EventDone(driver.Event) (bool, error) {
	s.polls++
	return true, nil
}

func (s *silent) LoadModule([]byte) (driver.Module, error) {
	s.code++
	return 1, nil
}
func (s *silent) ModuleFunction(driver.Module, string) (driver.Function, error) {
	s.code++
	return driver.Function(s.handle()), nil
}
func (s *silent) SetFunctionAttribute(driver.Function, driver.FunctionAttribute, int) error {
	return nil
}
func (s *silent) Launch(driver.Function, driver.Dims, driver.Dims, uint32, driver.Stream, []uint64) error {
	s.kernels++
	return nil
}

// silentEngine counts kernels that pack.
type silentEngine struct {
	Engine
	*silent
}

func (e silentEngine) Close() error { return e.Engine.Close() }
func (e silentEngine) Move(s driver.Stream, d ir.DType, to, from driver.Ptr, dims ...kernel.Dim) error {
	e.packing++
	return e.Engine.Move(s, d, to, from, dims...)
}

// silentBLAS counts products, each as one call. It has chosen all algorithms before, so it tries none. The code of each is loaded
// when it first runs.
type silentBLAS struct {
	driver.BLAS
	*silent
	ran map[driver.GEMM]bool
}

func (b silentBLAS) product(g driver.GEMM) error {
	b.products++
	if !b.ran[g] {
		b.ran[g] = true
		b.code++
	}
	return nil
}

func (silentBLAS) Workspace() int64 { return 32 << 20 }
func (b silentBLAS) MatMul(g driver.GEMM, _, _, _, _ driver.Ptr, _ driver.Stream) error {
	return b.product(g)
}
func (b silentBLAS) With(g driver.GEMM, _, _, _, _, _ driver.Ptr, _ driver.Stream, _ func() error) error {
	return b.product(g)
}

func (s *silent) GroupStart() error {
	s.depth++
	return nil
}

func (s *silent) GroupEnd() error {
	s.depth--
	if s.depth == 0 && s.in > 0 {
		s.groups++
		s.in = 0
	}
	return nil
}
func (s *silent) NewID() (driver.ID, error) { return driver.ID{}, nil }
func (s *silent) Join(int, driver.ID, int) (driver.Comm, error) {
	return silentComm{s}, nil
}

// silentComm counts what ranks exchange.
type silentComm struct{ *silent }

func (c silentComm) call(elems int64, d ir.DType) error {
	bytes := elems * d.Size()
	c.members++
	c.bytes += bytes
	if bytes < 64<<10 {
		c.small++
	}
	if c.depth == 0 {
		c.groups++
	} else {
		c.in++
	}
	return nil
}
func (c silentComm) AllReduce(_, _ driver.Ptr, elems int64, d ir.DType, _ ir.Reduction, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) ReduceScatter(_, _ driver.Ptr, elems int64, d ir.DType, _ ir.Reduction, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) AllGather(_, _ driver.Ptr, elems int64, d ir.DType, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) Reduce(_, _ driver.Ptr, elems int64, d ir.DType, _ ir.Reduction, _ int, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) Send(_ driver.Ptr, elems int64, d ir.DType, _ int, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) Recv(_ driver.Ptr, elems int64, d ir.DType, _ int, _ driver.Stream) error {
	return c.call(elems, d)
}
func (c silentComm) Failure() error { return nil }
func (c silentComm) Abort() error   { return nil }
func (c silentComm) Close() error   { return nil }

// Version is of no library. It settles which of the embedded methods is meant.
func (s *silent) Version() (int, error) { return 0, nil }

// absent is a rank of another process, of which the one that is watched needs nothing.
type absent struct{}

func (absent) Alloc(runtime.Space, int64) error            { return nil }
func (absent) Upload(runtime.Space, int64, []byte) error   { return nil }
func (absent) Download([]byte, runtime.Space, int64) error { return nil }
func (absent) Launch(*runtime.Kernel) error                { return nil }
func (absent) Collective(*runtime.Collective) error        { return nil }
func (absent) Send(*runtime.Transfer) error                { return nil }
func (absent) Recv(*runtime.Transfer) error                { return nil }
func (absent) Record(runtime.Stream) error                 { return nil }
func (absent) Wait(runtime.Stream, runtime.Event) error    { return nil }
func (absent) Close() error                                { return nil }
func (absent) End([]int64) error                           { return nil }
func (absent) Last([]byte) error                           { return nil }
func (absent) Meets() bool                                 { return true }
func (absent) Expect(*runtime.Transfer) error              { return nil }

// watched is a backend that has one rank of a world, and pretends to have the others.
type watched struct {
	*Backend
	rank int
}

func (w watched) Open(world runtime.World) (devices []runtime.Device, err error) {
	b := w.Backend
	b.world, b.devices = world, make([]*Device, world.Ranks)
	b.others = &others{names: map[int]chan driver.ID{}, conns: make([]net.Conn, world.Ranks)}
	engine, err := b.system.Engine(0)
	if err != nil {
		return nil, err
	}
	blas, err := b.system.BLAS(0)
	if err != nil {
		return nil, err
	}
	for r := range world.Ranks {
		if r != w.rank {
			b.others.conns[r] = deaf{}
			devices = append(devices, absent{})
			continue
		}
		d := newDevice(b, &gpu{engine: engine, blas: blas}, r)
		b.devices[r] = d
		devices = append(devices, d)
		if err := d.open(); err != nil {
			return nil, err
		}
	}
	for g := -(world.Ranks + 1) * (world.Ranks + 1); g < 1000; g++ {
		b.others.name(g) <- driver.ID{}
	}
	return devices, nil
}

// deaf is a connection to a rank that hears nothing.
type deaf struct{ net.Conn }

func (deaf) SetWriteDeadline(time.Time) error { return nil }
func (deaf) Write(b []byte) (int, error)      { return len(b), nil }
func (deaf) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// stepPlan is a plan whose calls are counted.
type stepPlan struct {
	name, model string
	rank, batch int // rank that is watched, and sequences of the whole batch
	partition.Plan
	pp    int
	whole bool // all tensor-parallel ranks have the weights of attention, and exchange heads for tokens
}

func stepPlans() []stepPlan {
	type p = partition.Plan
	xl, llama, gpt3 := "gpt2-xl", "llama-2-7b", "gpt3-13b"
	return []stepPlan{
		{name: "dp 8", model: xl, batch: 64, Plan: p{DP: 8, MicroBatch: 4}},
		{name: "dp 8, ZeRO 1", model: xl, batch: 64, Plan: p{DP: 8, ZeRO: 1, MicroBatch: 4}},
		{name: "dp 8, ZeRO 1, overlap", model: xl, batch: 64, Plan: p{DP: 8, ZeRO: 1, MicroBatch: 4, Overlap: true}},
		{name: "dp 8, ZeRO 2, overlap", model: xl, batch: 64, Plan: p{DP: 8, ZeRO: 2, MicroBatch: 4, Overlap: true}},
		{name: "dp 8, ZeRO 3", model: xl, batch: 64, Plan: p{DP: 8, ZeRO: 3, MicroBatch: 4}},
		{name: "dp 8, ZeRO 3, overlap", model: xl, batch: 64, Plan: p{DP: 8, ZeRO: 3, MicroBatch: 4, Overlap: true}},
		{name: "dp 8, ZeRO 3, overlap", model: llama, batch: 16, Plan: p{DP: 8, ZeRO: 3, MicroBatch: 1, Overlap: true}},
		{name: "dp 64, ZeRO 1, overlap", model: llama, batch: 256, Plan: p{DP: 64, ZeRO: 1, MicroBatch: 4, Overlap: true}},
		{name: "tp 8, sp", model: gpt3, batch: 2, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 1}},
		{name: "tp 8, sp", model: gpt3, batch: 8, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 4}},
		{name: "tp 8, sp, overlap, 2 pieces", model: gpt3, batch: 8, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 4, OverlapTP: true, TPPieces: 2}},
		{name: "tp 8, sp, overlap, 4 pieces", model: gpt3, batch: 8, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 4, OverlapTP: true, TPPieces: 4}},
		{name: "tp 8, sp, overlap, 4 pieces of each sequence", model: gpt3, batch: 2, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 1, OverlapTP: true, TPPieces: 4, SequenceParts: 4}},
		{name: "tp 8, sp, overlap, 4 pieces of each sequence", model: gpt3, batch: 8, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 4, OverlapTP: true, TPPieces: 4, SequenceParts: 4}},
		{name: "tp 8, sp", model: gpt3, batch: 32, Plan: p{TP: 8, SequenceParallel: true, MicroBatch: 16}},
		{name: "tp 5, sp, uneven", model: xl, batch: 8, Plan: p{TP: 5, SequenceParallel: true, MicroBatch: 4}},
		{name: "tp 4, bp, overlap", model: gpt3, batch: 8, Plan: p{TP: 4, BatchParallel: true, MicroBatch: 4, OverlapTP: true}},
		{name: "tp 2, dp 4, sp, ZeRO 1, overlap", model: llama, batch: 32, Plan: p{DP: 4, TP: 2, ZeRO: 1, SequenceParallel: true, MicroBatch: 4, Overlap: true}},
		{name: "tp 2, dp 4, sp, ZeRO 3, overlap", model: llama, batch: 32, Plan: p{DP: 4, TP: 2, ZeRO: 3, SequenceParallel: true, MicroBatch: 4, Overlap: true}},
		{name: "tp 4, sp, whole attention", model: llama, batch: 2, Plan: p{TP: 4, SequenceParallel: true, MicroBatch: 1}, whole: true},
		{name: "tp 4, sp, whole attention", model: llama, batch: 8, Plan: p{TP: 4, SequenceParallel: true, MicroBatch: 4}, whole: true},
		{name: "tp 4, dp 2, sp, whole attention, ZeRO 3, overlap", model: gpt3, batch: 16, whole: true,
			Plan: p{DP: 2, TP: 4, ZeRO: 3, SequenceParallel: true, MicroBatch: 4, Overlap: true, OverlapTP: true}},
		{name: "cp 4", model: llama, batch: 8, Plan: p{CP: 4, MicroBatch: 4}},
		{name: "cp 4, ZeRO 1, overlap", model: llama, batch: 8, Plan: p{CP: 4, ZeRO: 1, MicroBatch: 4, Overlap: true}},
		{name: "pp 4", model: llama, rank: 1, batch: 8, pp: 4, Plan: p{MicroBatch: 1}},
		{name: "pp 4, overlap", model: llama, rank: 1, batch: 8, pp: 4, Plan: p{MicroBatch: 1, OverlapP2P: true}},
		{name: "pp 4 interleaved, overlap", model: llama, rank: 1, batch: 8, pp: 4, Plan: p{MicroBatch: 1, Schedule: partition.Interleaved, Interleave: 2, OverlapP2P: true}},
		{name: "pp 4 zero-bubble, overlap", model: llama, rank: 1, batch: 8, pp: 4, Plan: p{MicroBatch: 1, Schedule: partition.ZeroBubble, OverlapP2P: true}},
		{name: "pp 4, dp 2, ZeRO 1, overlap", model: llama, rank: 3, batch: 16, pp: 4, Plan: p{DP: 2, ZeRO: 1, MicroBatch: 1, Overlap: true, OverlapP2P: true}},
		{name: "pp 4, tp 2, sp, overlap", model: llama, rank: 3, batch: 8, pp: 4, Plan: p{TP: 2, SequenceParallel: true, MicroBatch: 1, OverlapTP: true, OverlapP2P: true}},
		{name: "dp 8, ZeRO 1, states on the host", model: "gpt2", batch: 64, Plan: p{DP: 8, ZeRO: 1, MicroBatch: 4, Offload: partition.OffloadOptimizer}},
	}
}

// complete fills in the stages and placements of a plan.
func (p *stepPlan) complete(m gpt.Config) {
	p.DP, p.TP, p.pp = max(1, p.DP), max(1, p.TP), max(1, p.pp)
	p.PlanNGPUs = p.DP * p.TP * max(1, p.CP) * p.pp
	p.RuntimeNGPUs = p.PlanNGPUs
	if p.Schedule == "" {
		p.Schedule = partition.OneFOneB
	}
	stages := p.pp * max(1, p.Interleave)
	for s := range stages {
		p.Stages = append(p.Stages, partition.Stage{First: s * m.NLayer / stages, Last: (s + 1) * m.NLayer / stages})
	}
	if p.TP == 1 {
		return
	}
	fc, heads := "[tp,_]", "tp"
	if m.Activation == gpt.SwiGLU {
		fc = "[_,tp,_]"
	}
	if p.whole {
		heads = "_"
	}
	for _, x := range [][2]string{
		{`h\.[0-9]+\.attn\.c_attn\.weight`, "[_," + heads + ",_,_]"}, {`h\.[0-9]+\.attn\.c_attn\.bias`, "[_," + heads + ",_]"},
		{`h\.[0-9]+\.attn\.c_proj\.weight`, "[_," + heads + ",_]"},
		{`h\.[0-9]+\.mlp\.c_fc\.weight`, fc}, {`h\.[0-9]+\.mlp\.c_fc\.bias`, fc[:len(fc)-3] + "]"}, {`h\.[0-9]+\.mlp\.c_proj\.weight`, "[_,tp]"},
		{`wte\.weight`, "[tp,_]"}, {`lm_head\.weight`, "[tp,_]"},
	} {
		if strings.HasSuffix(x[0], "bias") && !m.Bias || strings.HasPrefix(x[0], "lm_head") && m.TieEmbeddings {
			continue
		}
		p.Placements = append(p.Placements, partition.Placement{Match: x[0], Spec: x[1]})
	}
}

// stepBlocks is how many of a model's blocks are counted. All are alike.
const stepBlocks = 8

// counted is what a rank does in a step, and what its program says.
type counted struct {
	calls
	buckets, collectives, messages int // of the program
	micro                          int // micro-batches
}

// countStep returns what a rank does in the second step of a plan.
func countStep(t *testing.T, p stepPlan) (c counted) {
	model, err := gpt.Preset(p.model)
	require.NoError(t, err)
	model.Float, model.NLayer = ir.BF16, stepBlocks
	p.complete(model)
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}, p.batch, model.BlockSize)
	require.NoError(t, err)
	prog, err := codegen.Compile(g, &p.Plan, p.batch, nil)
	require.NoError(t, err, p.name)
	s := &silent{next: 1 << 40}
	system := &System{
		Driver:      s,
		Engine:      func(int) (Engine, error) { return silentEngine{newKernels(s, stubCompiler{}, 90, 227<<10), s}, nil },
		BLAS:        func(int) (driver.BLAS, error) { return silentBLAS{nil, s, map[driver.GEMM]bool{}}, nil },
		Collectives: func(int) (driver.Collectives, error) { return s, nil },
	}
	e, err := runtime.New(prog, watched{New(system, Options{Eager: true}), p.rank}, runtime.Options{Timeout: time.Minute})
	require.NoError(t, err, p.name)
	tokens := make([]int32, p.batch*model.BlockSize)
	all := runtime.Feeds{"ids": runtime.Ints(tokens...), "targets": runtime.Ints(tokens...), "positions": runtime.Ints(tokens[:model.BlockSize]...),
		"seed": runtime.Ints(1), "step": runtime.Ints(0), "lr": runtime.Floats(0.1), "loss_weight": runtime.Floats(1)}
	feeds := runtime.Feeds{}
	for _, n := range prog.Graph.Nodes {
		if name := partition.BaseName(n.Name); n.Op == ir.OpInput {
			feeds[name] = all[name]
		}
	}
	for range 2 {
		s.calls = calls{}
		_, err = e.Step(t.Context(), prog, feeds)
		require.NoError(t, err, p.name)
		require.Zero(t, s.memory, "%s: memory is allocated in a step, where other GPUs of the process may wait for this one", p.name)
		require.Zero(t, s.code, "%s: code is loaded in a step", p.name)
	}
	c.calls, c.micro = s.calls, p.batch/p.DP/p.MicroBatch
	schedule := &prog.Schedules[p.rank]
	for _, task := range schedule.Tasks {
		instrs := prog.Stages[schedule.Stage].Run(task)
		for i := range instrs {
			switch in := &instrs[i]; {
			case !schedule.Runs(in, task) || in.Idle():
			case codegen.Collective(in.Node.Op):
				c.collectives++
				if !in.Fused {
					c.buckets++
				}
			case in.Node.Op == ir.OpSend || in.Node.Op == ir.OpRecv:
				c.messages++
			}
		}
	}
	return c
}

// TestCalls counts what one rank of many asks of CUDA and of NCCL in a step, for plans of real sizes. No number may grow with
// rows or tokens, and a step that was made before must make nothing anew.
func TestCalls(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, `# What one rank does in a training step

Counted on a driver that does nothing, for plans of several GPUs, of which none have been run. Models are of published
shapes, with %d of their blocks, bfloat16. sp is sequence parallelism, bp is batch parallelism. No step is a CUDA graph here.

- In the program: collectives, how many buckets they are in, and messages between stages.
- By NCCL: groups, which are launches; calls in them, and how many of those have less than 64 KiB; GB in them. A call has what the rank sends,
  receives or sums, or its part of what is gathered or scattered.
- Kernels that are not products, and those among them that pack what NCCL moves; products.
- Copies on the device, and from and to the host; events recorded, and waits of streams for them.

Printed by `+"`go test ./cuda -run TestCalls -update`"+`.

| plan | model | sequences x micro-batches | collectives | buckets | messages | groups | calls | small | GB | kernels | packing | products | copies | from host | to host | records | waits |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`, stepBlocks)
	for _, p := range stepPlans() {
		c := countStep(t, p)
		pieces := c.groups - c.buckets - c.messages // groups beside those of buckets, which packing memory makes necessary
		require.LessOrEqual(t, int64(pieces), 4*c.bytes*int64(max(1, p.DP)*max(1, p.TP))/packingBytes, p.name)
		require.LessOrEqual(t, c.packing, 8*(c.collectives+pieces), p.name)
		require.LessOrEqual(t, c.members, 2*max(1, p.TP)*p.MicroBatch*(c.collectives+c.messages+pieces), p.name)
		require.LessOrEqual(t, c.copies, 8*c.collectives, p.name)
		require.LessOrEqual(t, c.records+c.waits, 4*(c.buckets+c.messages)+64, p.name)
		require.LessOrEqual(t, c.polls, 1, "%s: the host waits for the end of the step alone", p.name)
		require.Zero(t, c.made, "%s: a step makes nothing that the one before has made", p.name)
		fmt.Fprintf(&b, "| %s | %s | %d x %d | %d | %d | %d | %d | %d | %d | %.2f | %d | %d | %d | %d | %d | %d | %d | %d |\n", p.name, p.model, p.MicroBatch, c.micro,
			c.collectives, c.buckets, c.messages, c.groups, c.members, c.small, float64(c.bytes)/1e9,
			c.kernels, c.packing, c.products, c.copies, c.fromHost, c.toHost, c.records, c.waits)
	}
	const file = "../bench/gpu/calls.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "-update rewrites it")
}

// TestPrepared: what a collective needs of the driver is there before the first step, for sums in fixed point too.
func TestPrepared(t *testing.T) {
	const ranks = 4
	whole := ir.Whole([]int{64, 64})
	for _, d := range []ir.DType{ir.F32, ir.Q64} {
		s := &silent{next: 1 << 40}
		system := &System{
			Driver:      s,
			Engine:      func(int) (Engine, error) { return newKernels(s, stubCompiler{}, 90, 227<<10), nil },
			BLAS:        func(int) (driver.BLAS, error) { return silentBLAS{nil, s, map[driver.GEMM]bool{}}, nil },
			Collectives: func(int) (driver.Collectives, error) { return s, nil },
		}
		ds, err := watched{New(system, Options{}), 0}.Open(runtime.World{Ranks: ranks, Timeout: time.Minute})
		require.NoError(t, err)
		c := &runtime.Collective{Node: &ir.Node{Op: ir.OpReduceScatter, Name: "x"}, Attr: ir.CommAttr{Dim: 1, Reduce: ir.Sum}, Stream: runtime.Communication}
		for r := range ranks {
			part := ir.Slab{Global: whole.Global, Offset: []int{0, 16 * r}, Local: []int{64, 16}}
			c.Members = append(c.Members, runtime.Member{Rank: r, In: runtime.Tensor{DType: d, Slab: whole}, Out: runtime.Tensor{DType: d, Slab: part, Offset: 1 << 16}})
		}
		device := ds[0].(*Device)
		before := s.memory
		require.NoError(t, device.Prepare([]*runtime.Collective{c, c}, nil), "of two micro-batches")
		require.NoError(t, device.Alloc(runtime.OnDevice, 1<<20))
		more, err := device.Join()
		require.NoError(t, err)
		require.False(t, more)
		require.Equal(t, before+2, s.memory, "the arena, and packing memory of one stream")
		s.calls = calls{}
		require.NoError(t, device.Collective(c))
		require.Equal(t, map[ir.DType]int{ir.F32: 1, ir.Q64: 3}[d], s.kernels)
		require.Zero(t, s.memory, "%s: memory is allocated in a step", d)
		require.Zero(t, s.code, "%s: code is loaded in a step", d)
	}
}
