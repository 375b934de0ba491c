package planner

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"unicode"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The options of a search: which parts of a plan are given. [Options.on] checks them against each
// other, the cluster and the batch before anything is searched; what depends on the graph is
// checked by checkPins, checkSlices and [searcher.checkReplicate], and options that leave no plan
// by [searcher.emptySpace].

// Options fix parts of the search. What is zero is searched.
type Options struct {
	// RankOrder is the order of the axes over the ranks of a unit, innermost first, as in
	// [partition.Plan.RankOrder]. Empty searches it, on a cluster with one kind of device.
	RankOrder string
	// PlanNGPUs is the size of a unit. 0 is the product of the degrees if dp, tp and pp are fixed
	// (with cp 1 unless that is fixed), and otherwise searches the divisors of RuntimeNGPUs.
	PlanNGPUs int
	// RuntimeNGPUs is the number of ranks. 0 is one unit, or, if the unit is searched on a cluster
	// of pools, all devices of the cluster.
	RuntimeNGPUs int
	// MemoryLimit is in bytes per rank. 0 is what the cluster's devices have; a larger limit does
	// not give a device more than it has.
	MemoryLimit int64

	// Degrees inside the unit. CP is searched where it may pay: for sequences of more than 8,192
	// tokens; where the batch has no sequence for every rank of dp x cp x pp; if no plan fits
	// otherwise; and if the fastest plan may share tokens with profit (see [searcher.widens]). Only
	// degrees that cut a sequence into equal parts are searched.
	DP, CP, TP, PP int
	MicroBatch     int // sequences that a data-parallel rank works on at a time
	Schedule       partition.Schedule
	Recompute      Recompute
	Policy         Policy
	// ZeRO is the stage of [partition.Plan.ZeRO]; nil searches it.
	ZeRO *int
	// ZeROGroup is over how many data-parallel ranks ZeRO shards; 0 searches it.
	ZeROGroup int
	// SequenceParallel is "on" or "off"; empty searches it.
	SequenceParallel string
	// BatchParallel is "on" or "off"; empty searches it where it may pay: see [searcher.batched].
	BatchParallel string
	// Overlap is "on" or "off": data-parallel communication beside computation. Empty searches it,
	// or is off if ranks share a device. It is searched only without offload, and only if all
	// data-parallel ranks run equally many micro-batches.
	Overlap string
	// OverlapTP is "on" or "off": tensor-parallel collectives beside kernels, in every plan that has
	// such collectives, except under zero-bubble schedules, which put those kernels off. Empty is on,
	// or off if ranks share a device or the cluster's software overlaps by itself. It costs no memory
	// to speak of, so there is nothing to search. On is refused where no plan has tensor parallelism.
	OverlapTP string
	// OverlapP2P is "on" or "off": stages go on while what their passes send is on its way, in every
	// plan with several stages. Empty is off if ranks share a device. Else it is on, and off is
	// searched where memory is short, as stages that wait need no buffers to send from.
	OverlapP2P string
	// TPPieces is [partition.Plan.TPPieces] of every plan with tensor parallelism; 1 is none. Plans
	// cut sequences in as many parts where they can. 0 searches 1, 2 and 4: of whole sequences for
	// micro-batches with some for more than half of them. It is 1 instead if OverlapTP is off, ranks
	// share a device, or Policy is not AutoDist.
	TPPieces int
	// Replicate is the modules whose weights all tensor-parallel ranks hold, such as mlp or
	// attn+wte in any order, or "none"; empty searches it where it may pay: see [searcher.replications]. Plans
	// with replicated modules recompute nothing unless Recompute says so.
	Replicate string
	// TPRows is how many rows the grid of tensor-parallel ranks has, on which some modules are cut
	// in both dimensions, as in [partition.Plan.TPRows]. 1 is no grid; 0 searches it where it may
	// pay: see [searcher.splits].
	TPRows int
	// Pins are placements that come before those of the search, so they hold.
	Pins []partition.Placement
	// TopK is how many alternatives to return: the best plans with other degrees.
	TopK int

	// Eval, if not nil, is a graph that runs between steps by the same plan in the same memory, and
	// must fit too.
	Eval *ir.Graph

	// Offload is "none", "optimizer" or "params"; empty searches it.
	Offload string
	// Interleave is the number of chunks per rank; 0 searches it. More than 1 is the interleaved
	// schedule.
	Interleave int
	// LossSlices is [partition.Plan.LossSlices]. 0 searches 1 to 16 slices where memory is short,
	// without context parallelism.
	LossSlices int
}

// Recompute says which blocks compute activations again in the backward pass instead of keeping
// them.
type Recompute string

// The choices of recomputation.
const (
	RecomputeSearched  Recompute = ""          // for each stage the least work with which it fits: see [Certificate]
	RecomputeNone      Recompute = "none"      // none
	RecomputePointwise Recompute = "pointwise" // norms and activation functions of all blocks
	RecomputeSelective Recompute = "selective" // the attention of all blocks
	RecomputeFull      Recompute = "full"      // all blocks
)

// Policy names a set of plans.
type Policy string

// The policies.
const (
	AutoDist Policy = ""         // everything; "autodist" is the same
	DP       Policy = "dp"       // data parallelism alone: one stage, nothing split, and nothing offloaded unless asked for
	Megatron Policy = "megatron" // equal stages under 1f1b, tensor parallelism inside a node
	FSDP     Policy = "fsdp"     // data parallelism alone, with ZeRO stage 3
)

// OptionError is an option that contradicts others or the model. Option is the name of a flag
// without its dashes.
type OptionError struct{ Option, Msg string }

func (e *OptionError) Error() string { return "planner: " + e.Option + ": " + e.Msg }

func optionErrorf(option, format string, args ...any) error {
	return &OptionError{option, fmt.Sprintf(format, args...)}
}

// on returns the options for a batch on a cluster: checked, and with what follows from them filled
// in.
func (o Options) on(c *cost.Cluster, batch int) (Options, error) {
	if n := c.Devices(); n > 0 && o.PlanNGPUs == 0 && o.RuntimeNGPUs == 0 {
		o.RuntimeNGPUs = n
	}
	o, err := o.validate(batch)
	if err != nil {
		return o, err
	}
	for _, overlap := range []*string{&o.Overlap, &o.OverlapTP, &o.OverlapP2P} {
		if *overlap == "" && c.Device.Shared {
			*overlap = "off" // else communication would take the time of kernels
		}
	}
	switch by := c.Software; {
	case by.AsyncTP && o.OverlapTP == "on":
		return o, optionErrorf("overlap-tp", "is on, but %s, the software of cluster %s, overlaps tensor parallelism by itself, which its prices have", by.Name, c.Name)
	case by.AsyncTP:
		o.OverlapTP = "off"
	case o.OverlapTP == "":
		o.OverlapTP = "on"
	}
	if n := c.Devices(); n > 0 && o.RuntimeNGPUs > n {
		return o, optionErrorf("runtime-ngpus", "is %d, but cluster %s has %d devices", o.RuntimeNGPUs, c.Name, n)
	}
	if o.RankOrder != "" && len(c.Pools) > 0 {
		return o, optionErrorf("rank-order", "is %s, but cluster %s has %d kinds of devices: the search has %s alone on them in this version; a plan that says so runs",
			o.RankOrder, c.Name, len(c.Pools), partition.UsualOrder)
	}
	if (o.Offload == "optimizer" || o.Offload == "params") && c.Host == nil {
		return o, optionErrorf("offload", "is %s, but cluster %s says nothing of the link to host memory (its key host)", o.Offload, c.Name)
	}
	return o, nil
}

// validate checks the options by themselves, and fills in what follows from them.
func (o Options) validate(batch int) (Options, error) {
	if err := o.validateWords(); err != nil {
		return o, err
	}
	if err := o.validateRankOrder(); err != nil {
		return o, err
	}
	if o.Policy == "autodist" {
		o.Policy = AutoDist
	}
	if err := o.validateNumbers(); err != nil {
		return o, err
	}
	if err := o.fixDegrees(); err != nil {
		return o, err
	}
	if err := o.fixSchedule(); err != nil {
		return o, err
	}
	if err := o.validateSharding(); err != nil {
		return o, err
	}
	if o.Policy != AutoDist && o.Offload == "" {
		o.Offload = "none"
	}
	if o.Policy == FSDP || o.Policy == DP {
		zero := 0
		if o.Policy == FSDP {
			zero = 3
		}
		o.ZeRO = &zero
	}
	if err := o.fixUnit(); err != nil {
		return o, err
	}
	if err := o.validateOverlap(); err != nil {
		return o, err
	}
	if o.MicroBatch > batch {
		return o, optionErrorf("micro-batch", "%d is more than the global batch %d", o.MicroBatch, batch)
	}
	return o, nil
}

func (o Options) validateRankOrder() error {
	if o.RankOrder == "" {
		return nil
	}
	if err := partition.CheckRankOrder(o.RankOrder); err != nil {
		return optionErrorf("rank-order", "%v", err)
	}
	if strings.Count(o.RankOrder, "-") != strings.Count(partition.UsualOrder, "-") {
		return optionErrorf("rank-order", "is %q, must name tp, cp, dp and pp, such as %s: an axis that is left out could have several ranks", o.RankOrder, partition.UsualOrder)
	}
	return nil
}

// mostDevices bounds the options that are numbers.
const mostDevices = 1 << 20

// validateNumbers checks the range of options that are numbers.
func (o Options) validateNumbers() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"plan-ngpus", o.PlanNGPUs}, {"runtime-ngpus", o.RuntimeNGPUs}, {"dp", o.DP}, {"cp", o.CP}, {"tp", o.TP}, {"tp-rows", o.TPRows}, {"pp", o.PP}, {"micro-batch", o.MicroBatch}, {"top", o.TopK}, {"loss-slices", o.LossSlices}} {
		if f.value < 0 || f.value > mostDevices {
			return optionErrorf(f.name, "is %d, must be between 0 and %d", f.value, mostDevices)
		}
	}
	if o.MemoryLimit < 0 {
		return optionErrorf("memory-limit", "is %d bytes", o.MemoryLimit)
	}
	return nil
}

// fixDegrees fills in the degrees that slices of the loss, or the policy, leave no choice of.
func (o *Options) fixDegrees() error {
	if o.LossSlices > 1 {
		if o.CP > 1 {
			return optionErrorf("loss-slices", "is %d, but cp is %d: context-parallel ranks share the positions that slices are made of", o.LossSlices, o.CP)
		}
		o.CP = 1
	}
	if o.Policy != DP && o.Policy != FSDP {
		return nil
	}
	for _, d := range []struct {
		name  string
		value *int
	}{{"cp", &o.CP}, {"tp", &o.TP}, {"pp", &o.PP}} {
		if *d.value > 1 {
			return optionErrorf(d.name, "is %d, but policy %s has %s 1", *d.value, o.Policy, d.name)
		}
		*d.value = 1
	}
	return nil
}

// fixSchedule fills in the schedule of policy Megatron, and checks that schedule, chunks and pipeline go
// together.
func (o *Options) fixSchedule() error {
	if o.Policy == Megatron {
		switch o.Schedule {
		case "":
			o.Schedule = partition.OneFOneB
			if o.Interleave > 1 {
				o.Schedule = partition.Interleaved
			}
		case partition.OneFOneB, partition.Interleaved:
		default:
			return optionErrorf("schedule", "is %s, but policy megatron has 1f1b or interleaved", o.Schedule)
		}
	}
	switch {
	case o.Interleave > 1 && o.Schedule != "" && o.Schedule != partition.Interleaved:
		return optionErrorf("interleave", "is %d, but schedule %s runs one stage per rank; interleaved runs several", o.Interleave, o.Schedule)
	case o.Interleave == 1 && o.Schedule == partition.Interleaved:
		return optionErrorf("interleave", "is 1, but schedule interleaved needs at least 2 stages per rank")
	case (o.Interleave > 1 || o.Schedule == partition.Interleaved) && o.PP == 1:
		return optionErrorf("pp", "is 1, but schedule interleaved needs at least 2")
	}
	return nil
}

// fixUnit fills in the size of the unit and the number of ranks as far as they follow from the degrees
// and each other, and checks that all of these agree.
func (o *Options) fixUnit() error {
	all, product := o.DP > 0 && o.TP > 0 && o.PP > 0, o.product()
	if o.PlanNGPUs == 0 && all {
		o.CP = max(o.CP, 1)
		if o.PlanNGPUs = product; product > mostDevices {
			return optionErrorf("plan-ngpus", "is at most %d, less than dp %d x cp %d x tp %d x pp %d", mostDevices, o.DP, o.CP, o.TP, o.PP)
		}
	}
	if o.PlanNGPUs == 0 && o.RuntimeNGPUs == 0 {
		return optionErrorf("plan-ngpus", "auto needs runtime-ngpus, the devices there are in all (--runtime-ngpus or parallel.runtime_ngpus), or dp, tp and pp")
	}
	if o.RuntimeNGPUs == 0 {
		o.RuntimeNGPUs = o.PlanNGPUs
	}
	if o.PlanNGPUs == 0 {
		return nil
	}
	if o.RuntimeNGPUs%o.PlanNGPUs != 0 {
		return optionErrorf("runtime-ngpus", "%d is not a multiple of plan-ngpus %d", o.RuntimeNGPUs, o.PlanNGPUs)
	}
	if o.PlanNGPUs%product != 0 || all && o.CP > 0 && product != o.PlanNGPUs {
		return optionErrorf("plan-ngpus", "%d is not dp %s x cp %s x tp %s x pp %s", o.PlanNGPUs, degree(o.DP), degree(o.CP), degree(o.TP), degree(o.PP))
	}
	return nil
}

// Fixed lists the parts of the search that are given, as flags of autopar plan, without what the
// configuration says of devices, memory and placements.
func (o Options) Fixed() (flags []string) {
	if o.Policy == "autodist" { // which searches everything
		o.Policy = ""
	}
	for _, x := range []struct {
		flag  string
		value any
	}{
		{"policy", o.Policy}, {"dp", o.DP}, {"tp", o.TP}, {"tp-rows", o.TPRows}, {"cp", o.CP}, {"pp", o.PP}, {"micro-batch", o.MicroBatch},
		{"schedule", o.Schedule}, {"interleave", o.Interleave}, {"rank-order", o.RankOrder}, {"zero", o.ZeRO}, {"zero-group", o.ZeROGroup},
		{"recompute", o.Recompute}, {"sequence-parallel", o.SequenceParallel}, {"batch-parallel", o.BatchParallel}, {"replicate", o.Replicate},
		{"overlap", o.Overlap}, {"overlap-tp", o.OverlapTP}, {"overlap-p2p", o.OverlapP2P}, {"tp-pieces", o.TPPieces}, {"loss-slices", o.LossSlices}, {"offload", o.Offload},
	} {
		if value := reflect.ValueOf(x.value); !value.IsZero() {
			flags = append(flags, fmt.Sprintf("--%s %v", x.flag, reflect.Indirect(value)))
		}
	}
	return flags
}

// checkPins refuses pins that are no regular expressions, match nothing in the graph, name an axis
// other than those of tensor parallelism, have another number of dimensions than what they match, or
// place nothing because earlier pins, which come first, place all of it otherwise.
func (o Options) checkPins(g *ir.Graph) error {
	type pinned struct {
		by   int
		spec ir.ShardSpec
	}
	first := map[*ir.Node]pinned{}
	for i, p := range o.Pins {
		nodes, err := p.Find(g)
		if err != nil {
			return optionErrorf(fmt.Sprintf("pin[%d].match", i), "%v", err)
		}
		placement := fmt.Sprintf("pin[%d].placement", i)
		spec, rank, err := ir.ParseSpec(ir.Mesh{Axes: []ir.Axis{{Name: partition.AxisTP, Size: 2}, {Name: partition.AxisTPR, Size: 2}}}, p.Spec)
		if twice := repeatedAxis(p.Spec); err != nil && twice != "" {
			return optionErrorf(placement, "is %s, which names %s twice: an axis splits one dimension; want _ for the others, which are whole", p.Spec, twice)
		}
		if err != nil {
			return optionErrorf(placement, "is %s, want _ for a dimension that is whole and tp for one that is split; the batch alone follows the other axes", p.Spec)
		}
		for _, n := range nodes {
			if is := len(n.Results[0].Type.Shape); is != rank {
				return optionErrorf(placement, "%s is %d-dimensional, its spec %s is %d-dimensional", n.Name, is, p.Spec, rank)
			}
		}
		places := false
		for _, n := range nodes {
			if _, taken := first[n]; !taken {
				first[n] = pinned{i, spec}
			}
			places = places || first[n].spec == spec
		}
		if !places {
			by := first[nodes[0]].by
			return optionErrorf(placement, "is %s, but earlier pins, which come first, place all that it matches otherwise: %s is %s by pin[%d]",
				p.Spec, nodes[0].Name, o.Pins[by].Spec, by)
		}
	}
	return nil
}

// repeatedAxis returns the first axis that a spec names again, or "".
func repeatedAxis(spec string) string {
	seen := map[string]bool{}
	for _, axis := range strings.FieldsFunc(spec, func(r rune) bool { return !unicode.IsLetter(r) }) {
		if seen[axis] {
			return axis
		}
		seen[axis] = true
	}
	return ""
}

// validateSharding checks that there is something to shard over.
func (o Options) validateSharding() error {
	if o.ZeRO != nil {
		switch zero := *o.ZeRO; {
		case zero < 0 || zero > 3:
			return optionErrorf("zero", "is %d, must be between 0 and 3", zero)
		case o.Policy == FSDP && zero != 3:
			return optionErrorf("zero", "is %d, but policy fsdp has zero 3", zero)
		case o.Policy == DP && zero != 0:
			return optionErrorf("zero", "is %d, but policy dp has zero 0", zero)
		}
	}
	if o.Overlap == "on" {
		if o.Offload == "optimizer" || o.Offload == "params" {
			return optionErrorf("overlap", "is on, but offload is %s: the search has no overlap with offload in this version; a plan that says so runs", o.Offload)
		}
	}
	switch g := o.ZeROGroup; {
	case g < 0 || g == 1:
		return optionErrorf("zero-group", "is %d, must be at least 2 data-parallel ranks", g)
	case g > 0 && (o.Policy == DP || o.ZeRO != nil && *o.ZeRO == 0):
		return optionErrorf("zero-group", "is %d, but zero is 0: there is nothing to shard in groups; want zero 1 to 3", g)
	}
	if o.Replicate != "" && o.Replicate != "none" && o.TP == 1 {
		return optionErrorf("replicate", "is %s, but tp is 1: it needs at least 2", o.Replicate)
	}
	if rows := o.TPRows; rows > 1 {
		switch {
		case o.TP > 0 && (o.TP%rows != 0 || o.TP == rows):
			return optionErrorf("tp-rows", "is %d, which does not cut tp %d into rows of at least 2", rows, o.TP)
		case o.Replicate != "" && o.Replicate != "none":
			return optionErrorf("tp-rows", "is %d, but replicate is %s: the search has one of them", rows, o.Replicate)
		case o.RankOrder != "" && o.RankOrder != partition.UsualOrder:
			return optionErrorf("tp-rows", "is %d, but rank-order is %s: the search has grids in the order %s alone; a plan that says so runs", rows, o.RankOrder, partition.UsualOrder)
		case o.Policy != AutoDist:
			return optionErrorf("tp-rows", "is %d, but policy %s cuts weights in one dimension", rows, o.Policy)
		}
	}
	switch on := o.BatchParallel == "on"; {
	case on && o.TP == 1:
		return optionErrorf("batch-parallel", "is on, but tp is 1: it needs at least 2")
	case on && o.SequenceParallel == "on":
		return optionErrorf("batch-parallel", "and sequence-parallel are on: tensor-parallel ranks share the batch or the sequence")
	case on && o.TPRows > 1:
		return optionErrorf("batch-parallel", "is on, but tp-rows is %d: the search has one of them; a plan that says so runs", o.TPRows)
	}
	if o.SequenceParallel == "on" && o.TP == 1 {
		return optionErrorf("sequence-parallel", "is on, but tp is 1: it needs at least 2")
	}
	return nil
}

// validateOverlap checks that there is something to overlap.
func (o Options) validateOverlap() error {
	if cmp.Or(o.PlanNGPUs, o.RuntimeNGPUs) == o.product() { // which leaves 1 for the degrees that are searched
		o.TP, o.PP = max(o.TP, 1), max(o.PP, 1)
	}
	switch {
	case o.TPPieces < 0 || o.TPPieces > partition.MaxTPPieces:
		return optionErrorf("tp-pieces", "is %d, want 1 to %d", o.TPPieces, partition.MaxTPPieces)
	case o.TPPieces > 1 && o.TP == 1:
		return optionErrorf("tp-pieces", "is %d, but tp is 1: it needs at least 2", o.TPPieces)
	}
	if o.OverlapTP == "on" {
		switch {
		case o.TP == 1:
			return optionErrorf("overlap-tp", "is on, but tp is 1: it needs at least 2")
		case o.Schedule.SplitsBackward():
			return optionErrorf("overlap-tp", "is on, but schedule %s puts off the products beside which it would be; leave one of them out", o.Schedule)
		}
	}
	if o.OverlapP2P == "on" && o.PP == 1 {
		return optionErrorf("overlap-p2p", "is on, but pp is 1: it needs at least 2")
	}
	return nil
}

// product is that of the degrees that are fixed. Beyond any number of devices it is not exact.
func (o Options) product() int {
	product := 1
	for _, n := range []int{o.DP, o.CP, o.TP, o.PP} {
		product = min(product, mostDevices+1) * max(n, 1)
	}
	return product
}

// degrees names the degrees, with those that are given, and the devices that they are of.
func (o Options) degrees() string {
	var all []string
	for _, d := range []struct {
		name string
		n    int
	}{{"dp", o.DP}, {"cp", o.CP}, {"tp", o.TP}, {"pp", o.PP}} {
		switch {
		case d.name == "cp" && d.n < 2:
		case d.n == 0:
			all = append(all, d.name)
		default:
			all = append(all, fmt.Sprintf("%s %d", d.name, d.n))
		}
	}
	return fmt.Sprintf("%s of %s devices in %d", strings.Join(all, " x "), degree(o.PlanNGPUs), o.RuntimeNGPUs)
}

func degree(n int) string {
	if n == 0 {
		return "auto"
	}
	return fmt.Sprint(n)
}

// validateWords checks the options that are words.
func (o Options) validateWords() error {
	for _, x := range []struct{ option, value, want string }{
		{"sequence-parallel", o.SequenceParallel, " on off "},
		{"batch-parallel", o.BatchParallel, " on off "},
		{"overlap", o.Overlap, " on off "},
		{"overlap-tp", o.OverlapTP, " on off "},
		{"overlap-p2p", o.OverlapP2P, " on off "},
		{"offload", o.Offload, " none optimizer params "},
		{"schedule", string(o.Schedule), " gpipe 1f1b interleaved zero-bubble eager-1f1b eager-zero-bubble "},
		{"recompute", string(o.Recompute), " none pointwise selective full "},
		{"policy", string(o.Policy), " dp fsdp megatron autodist "},
	} {
		if x.value != "" && !regexp.MustCompile(`\s`+regexp.QuoteMeta(x.value)+`\s`).MatchString(x.want) {
			return optionErrorf(x.option, "is %q, must be one of%s", x.value, x.want[:len(x.want)-1])
		}
	}
	if o.Interleave < 0 {
		return optionErrorf("interleave", "is %d, must not be negative", o.Interleave)
	}
	return nil
}
