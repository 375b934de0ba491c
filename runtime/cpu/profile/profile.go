// Package profile measures this machine as the CPU backend uses it, and makes a [cost.Cluster] of
// the results (autopar profile).
//
// It runs training steps of small models and times every instruction. Then it fits the constants of
// the cost model to the times, with the operations and bytes that the model itself counts for each
// instruction, so that the times of a step add up. Times are the means of the quietest tenth of the
// steps, or for a kernel by itself the least of many, because interference can only add.
//
// profile.go runs the measurements and makes the cluster; kernels.go times kernels by themselves,
// programs.go training steps; fit.go fits constants, yaml.go writes the file. peaks.go is for
// commands that need only the peak rates.
package profile

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/cost/curve"
)

// Result is what was measured.
type Result struct {
	Cluster  *cost.Cluster
	Figures  []Figure
	Products []Product
	Streams  []Stream

	When    time.Time
	Took    time.Duration
	Machine string  // processor and cores
	Load    float64 // load average of the last minute at the start; negative if unknown
}

// Figure is one constant of the cluster, with how well it is known.
type Figure struct {
	Key string // key in the cluster file
	// Spread, as a share of the value: for a rate measured by itself, how far the median is above
	// the least time; for a constant fitted to instructions, the mean deviation of these; for the
	// overhead, how far the median step is above the quiet ones.
	Spread  float64
	Samples int
}

// Turns is the number of turns in which training steps are timed.
const Turns = 4

// Measurement is a measurement in progress. A caller that compares something with it can time that
// between the turns, so that both see the machine in the same state.
type Measurement struct {
	result Result // without what is fitted
	cores  int
	steps  []*running
	budget time.Duration // how long all may take
	turn   time.Duration // how long a turn may take
	round  time.Duration // how long the last round took: one step of each workload
}

// Begin measures the rates of single kernels, and prepares the training steps for [Turns] turns,
// all in about the given time. The caller closes the measurement.
func Begin(ctx context.Context, budget time.Duration) (*Measurement, error) {
	cores := goruntime.GOMAXPROCS(0)
	m := &Measurement{cores: cores, budget: budget, turn: budget * 9 / 10 / Turns}
	m.result = Result{When: time.Now().UTC().Truncate(time.Second), Machine: machine(cores), Load: load()}
	begin := time.Now()
	r := &m.result
	r.Products = products(ctx, 1, budget/40)
	if cores > 1 {
		r.Products = append(r.Products, products(ctx, cores, budget/40)...)
	}
	r.Streams = streams(ctx, cores, budget/20)
	for _, w := range workloads(cores) {
		s, err := w.start()
		if err != nil {
			m.Close()
			return nil, err
		}
		m.steps = append(m.steps, s)
	}
	if err := m.each(ctx, 1); err != nil {
		m.Close()
		return nil, err
	}
	r.Took = time.Since(begin)
	return m, nil
}

// Turn times steps of each workload, as many as fit in its time.
func (m *Measurement) Turn(ctx context.Context) error {
	return m.each(ctx, max(1, int(m.turn/m.round)-1))
}

// Spent reports whether the measurement has taken the time that it was given. On a slow machine a turn alone may.
func (m *Measurement) Spent() bool { return m.result.Took >= m.budget }

// each times steps steps of each workload, after one that warms the caches.
func (m *Measurement) each(ctx context.Context, steps int) error {
	begin := time.Now()
	for _, s := range m.steps {
		if err := s.run(ctx, steps); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	m.round = took / time.Duration(1+steps)
	m.result.Took += took
	return nil
}

// Result fits the constants to what has been measured so far.
func (m *Measurement) Result() (*Result, error) {
	r := m.result
	var steps []*timedStep
	for _, s := range m.steps {
		steps = append(steps, s.average())
	}
	r.fit(steps, m.cores)
	return &r, r.Cluster.Validate()
}

// Close closes the workloads.
func (m *Measurement) Close() {
	for _, s := range m.steps {
		s.exec.Close()
	}
}

// fit makes the cluster.
func (r *Result) fit(steps []*timedStep, cores int) {
	best := fastest(r.Products)
	core := best.GFLOPS * 1e9 / float64(best.Threads) // FLOP/s, the most that one core reached
	peak := core * float64(cores)
	sizes, rates := make([]float64, len(r.Streams)), make([]float64, len(r.Streams))
	for i, s := range r.Streams {
		sizes[i], rates[i] = float64(s.Bytes), s.GBs*1e9
	}
	memory, cached := rates[len(rates)-1], knee(sizes, rates)
	cache := max(slices.Max(rates), memory)
	few, many := steps[len(steps)-1], steps[len(steps)-1]
	if cores > 1 {
		steps, few = steps[:len(steps)-1], steps[len(steps)-2]
	}
	gap := math.Inf(1) // time between instructions, for one rank
	for _, s := range steps {
		if s.ranks == 1 {
			gap = min(gap, s.gap())
		}
	}
	start := overhead(steps) // time of an instruction that does next to nothing
	around, off := near{cached, cache, memory}, map[string]float64{}
	of := func(class string, op ir.Op) []sample { return samples(steps, cores, class, op, start, around) }
	p, offProducts := fitProducts(of(productClass, ir.OpInvalid), peak, float64(cores))
	off[productClass] = offProducts
	d := cost.Device{
		Name: r.Machine, Shared: true, Cores: cores, Memory: installed(), FLOPS: map[string]float64{"f32": curve.Round(core)},
		MemoryBandwidth: curve.Round(memory), LaunchOverhead: curve.Round(gap + start), Fork: curve.Round(p.fork), Pack: curve.Round(p.pack),
		Efficiency: cost.Efficiency{Matmul: curve.Share(p.efficiency), MatmulHalf: curve.Round(p.half), Memory: 1, Threads: curve.Share(fitThreads(pairs(steps, float64(cores))))},
		Cache:      &cost.Cache{Memory: int64(cached), Bandwidth: curve.Round(cache), Remote: curve.Round(p.remote)},
		Kernels:    map[string]float64{},
	}
	e := &d.Efficiency
	share, half, _ := fitAttention(of(attentionClass, ir.OpAttention), peak)
	e.Attention, e.AttentionHalf = curve.Share(share), curve.Round(half)
	share, half, off[attentionClass] = fitAttention(of(attentionClass, ir.OpAttentionGrad), peak)
	e.AttentionGradHalf = curve.Round(half)
	for _, op := range []ir.Op{ir.OpAttentionGrad, ir.OpAttentionKVGrad} { // they run the same kernel
		d.Kernels[op.String()] = curve.Share(share)
	}
	share, off[vectorClass] = fitVector(of(vectorClass, ir.OpInvalid), peak, around)
	e.Vector = curve.Share(share)
	for _, op := range ir.Ops() {
		if all := of(vectorClass, op); len(all) > 0 && all[0].flops > 0 {
			share, _ := fitVector(all, peak, around)
			d.Kernels[op.String()] = curve.Share(share)
		} else if len(all) > 0 && slices.Contains(cost.KernelOps(), op.String()) {
			d.Kernels[op.String()] = curve.Share(fitMoves(all, around))
		}
	}
	link := cost.Link{Bandwidth: memory, Efficiency: 1}
	if all := exchanges(steps, cores, start); len(all) > 0 {
		var bandwidth float64
		_, bandwidth, off[collectiveClass] = curve.Link(all)
		link.Bandwidth = min(bandwidth, 1e15) * float64(cores) // of the machine, which the ranks share
	}
	link.Bandwidth = curve.Round(link.Bandwidth)
	r.Cluster = &cost.Cluster{
		Name: "cpu-profiled", Device: d, Collectives: cost.OnePass, IntraNode: link,
		Host: &cost.Link{Bandwidth: curve.Round(memory / 2), Efficiency: 1, Latency: curve.Round(start)},
	}
	if cores > 1 {
		r.Cluster.IntraNode.Latency = curve.Round(few.waited / float64(count([]*timedStep{few}, collectiveClass)))
		r.Cluster.Device.Turn = curve.Round(turn(few, many, r.Cluster))
	}
	r.Cluster.Source = fmt.Sprintf("autopar profile, %s, %s%s", r.When.Format("2006-01-02 15:04 MST"), r.Machine, r.loadText())

	figure := func(key string, spread float64, n int) { r.Figures = append(r.Figures, Figure{key, spread, n}) }
	last := r.Streams[len(r.Streams)-1]
	figure("device.flops.f32", best.Spread, len(r.Products))
	figure("device.memory_bandwidth", last.Spread, len(r.Streams))
	figure("device.cache", r.Streams[0].Spread, len(r.Streams))
	for key, class := range map[string]string{
		"device.efficiency.matmul": productClass, "device.efficiency.attention": attentionClass,
		"device.efficiency.vector": vectorClass, "intra_node": collectiveClass,
	} {
		figure(key, off[class], count(steps, class))
	}
	figure("device.launch_overhead", steps[0].spread, len(steps))
	slices.SortFunc(r.Figures, func(a, b Figure) int { return strings.Compare(a.Key, b.Key) })
}

// fastest returns the product with the highest rate per core.
func fastest(products []Product) Product {
	return slices.MaxFunc(products, func(a, b Product) int {
		return cmp.Compare(a.GFLOPS/float64(a.Threads), b.GFLOPS/float64(b.Threads))
	})
}

// turn returns the seconds that ranks lose at each meeting if there are twice as many ranks as
// cores, so that half of them have no core when the others begin to wait. It is what a step of many
// ranks takes beyond its price. The price is first corrected by how far it is off for the same
// workload with few ranks.
func turn(few, many *timedStep, c *cost.Cluster) float64 {
	least, _ := few.price(c)
	most, meetings := many.price(c)
	return max(0, many.seconds-most*few.seconds/least) / float64(meetings)
}

// overhead returns the median time of instructions that have next to nothing to do.
func overhead(steps []*timedStep) float64 {
	var all []float64
	for _, s := range steps {
		for _, in := range s.instrs {
			if in.work.Class == vectorClass && in.work.FLOPs < 100 && in.work.Bytes < 1000 {
				all = append(all, in.seconds)
			}
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func (r *Result) loadText() string {
	if r.Load < 0 {
		return ""
	}
	return fmt.Sprintf(", load %.2f before", r.Load)
}

// machine returns the name of the processor and the number of cores.
func machine(cores int) string {
	name := goruntime.GOARCH
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.Join(strings.Fields(value), " ")
				break
			}
		}
	}
	return fmt.Sprintf("%d x %s", cores, name)
}

// load returns the load average of the last minute.
func load() float64 {
	var one float64
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	if _, err := fmt.Sscan(string(data), &one); err != nil {
		return -1
	}
	return one
}

// installed returns the memory of this machine, from the built-in cluster cpu.
func installed() int64 {
	c, err := cost.Load("cpu")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return c.Device.Memory
}
