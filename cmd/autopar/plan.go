package main

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// mostSamples bounds the perturbed clusters or random plans that may be asked for. So many take minutes.
const mostSamples = 4096

// planCmd searches a plan.
type planCmd struct {
	yamlArgs
	PlanNGPUs    string `name:"plan-ngpus" placeholder:"N|auto" help:"Devices of one unit, which the model is cut over; auto searches it. The default is the YAML's, or the product of the degrees where --dp, --tp and --pp are given, or some and the YAML has 1."`
	RuntimeNGPUs string `name:"runtime-ngpus" placeholder:"M" help:"Devices in all, a multiple of the unit. The default is the YAML's, or one unit."`
	Cluster      string `default:"cpu" placeholder:"NAME|FILE" help:"A built-in cluster (see autopar cluster), a YAML file, or several with their numbers of devices, such as a100-40g:32+h100:16; cpu is this machine."`
	MemoryLimit  string `placeholder:"SIZE" help:"Memory of one device that may be used, such as 16GiB. The default is the YAML's, or all it has, which is also the most."`
	Out          string `short:"o" default:"plan.json" placeholder:"FILE" help:"File to write; - writes none."`
	Top          int    `default:"3" placeholder:"K" help:"Alternatives to show: the best plans of so many other degrees."`
	Robust       bool   `help:"Return the plan of least worst-case regret, of those shown and the best of every policy, when the cluster's figures are uncertain."`
	Samples      int    `with:"robust" default:"64" placeholder:"N" help:"Perturbed clusters to draw with --robust."`
	Seed         int64  `with:"robust" default:"1" placeholder:"N" help:"Seed of those clusters."`
	Certificate  string `placeholder:"FILE" help:"Also write a proof that no other plan is faster, which autopar verify --certificate checks."`
	LP           string `name:"lp" placeholder:"FILE" help:"Also write the choice of cuts and recomputation, all else as in the plan, as a mixed integer program in CPLEX's LP format; its comments say how CBC or GLPK solve it."`
	DumpDir      string `placeholder:"DIR" help:"Also write what each stage of the compiler makes: graph.txt and graph.json, partitioned.txt, program-rankN.txt."`
	fixed
	format
}

// fixed has the flags that fix choices of a plan. What is not given is searched. Degrees are those inside the unit.
type fixed struct {
	Policy           string `group:"fix" enum:"dp,fsdp,megatron,autodist" default:"autodist" help:"Search only a well-known family: dp, fsdp, megatron, or autodist for everything."`
	DP               *int   `group:"fix" name:"dp" placeholder:"N" help:"Data-parallel degree."`
	TP               *int   `group:"fix" name:"tp" placeholder:"N" help:"Tensor-parallel degree."`
	TPRows           *int   `group:"fix" name:"tp-rows" placeholder:"N" help:"Rows of the grid that tensor-parallel ranks form, over which weights of attention, MLP or both are cut in two dimensions; 1 is no grid."`
	CP               *int   `group:"fix" name:"cp" placeholder:"N" help:"Context-parallel degree: ranks that share every sequence."`
	PP               *int   `group:"fix" name:"pp" placeholder:"N" help:"Pipeline stages."`
	MicroBatch       *int   `group:"fix" placeholder:"N" help:"Sequences per micro-batch of one data-parallel rank."`
	Schedule         string `group:"fix" enum:",gpipe,1f1b,interleaved,zero-bubble,eager-1f1b,eager-zero-bubble" default:"" placeholder:"gpipe|1f1b|interleaved|zero-bubble|eager-1f1b|eager-zero-bubble" help:"Order of the micro-batches in a pipeline. Eager ones let messages between stages travel longer, and keep more micro-batches in memory."`
	Interleave       *int   `group:"fix" placeholder:"N" help:"Chunks of the model per rank of a pipeline; more than 1 is the interleaved schedule."`
	RankOrder        string `group:"fix" placeholder:"tp-cp-dp-pp" help:"Order of the axes over the ranks of a unit, innermost first."`
	Zero             *int   `group:"fix" placeholder:"N" help:"ZeRO stage, 0 to 3: shard optimizer state (1), gradients (2) and parameters (3) over data-parallel ranks."`
	ZeroGroup        *int   `group:"fix" placeholder:"N" help:"Data-parallel ranks that ZeRO shards over: a divisor of all of them. Groups hold copies of each other."`
	Recompute        string `group:"fix" enum:",none,pointwise,selective,full" default:"" placeholder:"none|pointwise|selective|full" help:"Drop activations and compute them again: none, those of norms and activation functions, those of attention, or all."`
	SequenceParallel string `group:"fix" enum:",on,off" default:"" placeholder:"on|off" help:"Shard the sequence between tensor-parallel regions."`
	BatchParallel    string `group:"fix" enum:",on,off" default:"" placeholder:"on|off" help:"Share the sequences of a micro-batch between tensor-parallel regions: modules that are replicated are data parallel over tensor-parallel ranks."`
	Replicate        string `group:"fix" placeholder:"none|MODULES" help:"Modules whose weights all tensor-parallel ranks hold instead of splitting them: none, or of attn, mlp and wte (the vocabulary; lm_head where that is untied) some in any order, such as mlp+wte."`
	Overlap          string `group:"fix" enum:",on,off" default:"" placeholder:"on|off" help:"Communicate gradients and sharded parameters beside the computation; off where ranks share processors."`
	OverlapTP        string `group:"fix" name:"overlap-tp" enum:",on,off" default:"" placeholder:"on|off" help:"Have tensor-parallel ranks communicate beside products of the backward pass; off where ranks share processors, or the cluster's software overlaps by itself."`
	OverlapP2P       string `group:"fix" name:"overlap-p2p" enum:",on,off" default:"" placeholder:"on|off" help:"Have the stages of a pipeline go on while what they send to each other is on its way; off where ranks share processors."`
	TPPieces         *int   `group:"fix" name:"tp-pieces" placeholder:"N" help:"Parts in which products and the collectives of tensor-parallel ranks next to them are made, each part of one beside a part of the other, where none runs beside a whole product: of whole sequences, or of each sequence where plans can cut them; 1 is none. Without, 1, 2 and 4 are searched where tensor parallelism is overlapped."`
	LossSlices       *int   `group:"fix" placeholder:"N" help:"Slices of the positions of sequences in which the head and the loss run, forward and backward of each together, so that logits take as much less memory; a divisor of the tokens of a sequence. Without, 1 to 16 are searched where memory is short."`
	Offload          string `group:"fix" enum:",none,optimizer,params" default:"" placeholder:"none|optimizer|params" help:"Keep optimizer state, or parameters at rest too, in host memory."`
}

// options returns the options of the search, from flags and YAML. It checks the least value of each flag; the planner refuses
// what it does not support.
func (c *planCmd) options(cfg *config.Config) (planner.Options, error) {
	for _, n := range []struct {
		flag  string
		value *int
		least int
	}{
		{"--dp", c.DP, 1}, {"--tp", c.TP, 1}, {"--tp-rows", c.TPRows, 1}, {"--cp", c.CP, 1}, {"--pp", c.PP, 1},
		{"--micro-batch", c.MicroBatch, 1}, {"--interleave", c.Interleave, 1}, {"--zero", c.Zero, 0}, {"--zero-group", c.ZeroGroup, 2}, {"--loss-slices", c.LossSlices, 1}, {"--tp-pieces", c.TPPieces, 1}, {"--top", &c.Top, 0},
	} {
		if n.value != nil && *n.value < n.least {
			return planner.Options{}, usagef("plan: %s is %d, must be at least %d", n.flag, *n.value, n.least)
		}
	}
	o := configured(cfg)
	o.DP, o.TP, o.CP, o.PP, o.RankOrder = deref(c.DP), deref(c.TP), deref(c.CP), deref(c.PP), c.RankOrder
	o.Schedule, o.Interleave, o.ZeRO, o.ZeROGroup = partition.Schedule(c.Schedule), deref(c.Interleave), c.Zero, deref(c.ZeroGroup)
	o.Recompute, o.SequenceParallel, o.BatchParallel = planner.Recompute(c.Recompute), c.SequenceParallel, c.BatchParallel
	o.Overlap, o.OverlapTP, o.OverlapP2P, o.Offload = c.Overlap, c.OverlapTP, c.OverlapP2P, c.Offload
	o.TPRows, o.LossSlices, o.TPPieces, o.Replicate = deref(c.TPRows), deref(c.LossSlices), deref(c.TPPieces), c.Replicate
	o.Policy, o.TopK = planner.Policy(c.Policy), c.Top
	if c.MicroBatch != nil {
		o.MicroBatch = *c.MicroBatch
	}
	return o, nil
}

// configured returns the options of a search that a configuration has.
func configured(cfg *config.Config) planner.Options {
	p := cfg.Parallel
	o := planner.Options{PlanNGPUs: int(p.PlanNGPUs), RuntimeNGPUs: int(p.RuntimeNGPUs), MemoryLimit: int64(p.MemoryLimit), MicroBatch: int(cfg.Batch.Micro)}
	for _, pin := range p.Pins {
		o.Pins = append(o.Pins, partition.Placement{Match: pin.Match, Spec: pin.Spec()})
	}
	return o
}

// located says where an option that a search refuses was written, if it is the configuration's. Where no plan fits, it lists what
// restricts the search.
func located(cfg *config.Config, o planner.Options, err error) error {
	if is[*planner.InfeasibleError](err) {
		return restricted(cfg, o, err)
	}
	bad, ok := errors.AsType[*planner.OptionError](err)
	if !ok {
		return err
	}
	key := map[string]string{"plan-ngpus": "parallel.plan_ngpus", "runtime-ngpus": "parallel.runtime_ngpus", "memory-limit": "parallel.memory_limit", "batch.global": "batch.global"}[bad.Option]
	switch {
	case strings.HasPrefix(bad.Option, "pin["):
		key = "parallel." + bad.Option
	case bad.Option == "micro-batch" && o.MicroBatch == int(cfg.Batch.Micro):
		key = "batch.micro"
	}
	if at, written := cfg.Written(key); written {
		return at.Refuse(key, "%s", bad.Msg)
	}
	return err
}

// restricted adds to the error of a search in which no plan fits what was given of them, without which others may fit.
func restricted(cfg *config.Config, o planner.Options, err error) error {
	var given []string
	if micro := int(cfg.Batch.Micro); micro > 0 && o.MicroBatch == micro {
		o.MicroBatch, given = 0, []string{fmt.Sprintf("batch.micro %d", micro)}
	}
	if len(o.Pins) > 0 {
		given = append(given, "parallel.pin")
	}
	if given = append(o.Fixed(), given...); len(given) == 0 {
		return err
	}
	return fmt.Errorf("%w; only plans with %s were searched", err, strings.Join(given, ", "))
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// Example is shown by --help.
func (planCmd) Example() string {
	return `
autopar plan examples/quick.yaml
autopar plan examples/gpt2-xl.yaml --cluster a100-40g --plan-ngpus 64 --runtime-ngpus 64 -o xl.json
autopar plan gpt.yaml --tp 2 --pp 2 --dp 1 --schedule 1f1b
autopar plan gpt.yaml --cluster a100-80g --robust
autopar plan gpt.yaml --cluster a100-40g:8+h100:8 --plan-ngpus auto`
}

// unit overrides the size of a unit by --plan-ngpus. Without that flag it is the product of the degrees, if all of them are
// given. The product is also used if the YAML has a unit of one device (its default), as one device cannot be divided by any
// degree.
func (c *planCmd) unit(cfg *config.Config) flagOverride {
	o := flagOverride{"--plan-ngpus", "parallel.plan_ngpus", c.PlanNGPUs}
	all := deref(c.DP) > 0 && deref(c.TP) > 0 && deref(c.PP) > 0
	if c.PlanNGPUs != "" || !all && cfg.Parallel.PlanNGPUs != 1 {
		return o
	}
	product, given := 1, []string{}
	for _, d := range []struct {
		flag string
		n    int
	}{{"--dp", deref(c.DP)}, {"--cp", deref(c.CP)}, {"--tp", deref(c.TP)}, {"--pp", deref(c.PP)}} {
		if d.n > 0 {
			product = min(product, 1<<30) * min(d.n, 1<<30) // more than the configuration allows, without an overflow
			given = append(given, d.flag)
		}
	}
	if len(given) > 0 {
		o.flag, o.value = strings.Join(given, " "), fmt.Sprint(product)
	}
	return o
}

// apart refuses outputs that are the same file, or one that is read: the configuration, or a file of the cluster.
func (c *planCmd) apart(cluster []string) error {
	read := append([]string{c.Config}, cluster...)
	return errors.Join(
		toFile("plan: --certificate", c.Certificate),
		toFile("plan: --lp", c.LP),
		mayBeDirectory("plan: --dump-dir", c.DumpDir),
		apart("plan: -o", c.Out, read...),
		apart("plan: --certificate", c.Certificate, append(read, c.Out)...),
		apart("plan: --lp", c.LP, append(read, c.Out, c.Certificate)...),
		notDumped("plan: --dump-dir", c.DumpDir, append(read, c.Out, c.Certificate, c.LP)...),
	)
}

// Run searches, prints and writes the plan.
func (c *planCmd) Run(con *console) error {
	// A search keeps most of what it allocates, some tens of megabytes, until its end. Collecting garbage while the heap is
	// small would take a fifth of a short search. A ballast that is allocated but never touched makes the collector start
	// later, and takes no physical memory.
	ballast := make([]byte, 64<<20)
	defer goruntime.KeepAlive(ballast)
	cfg, err := config.Load(c.Config, c.Set)
	if err != nil {
		return err
	}
	for _, o := range []flagOverride{
		c.unit(cfg),
		{"--runtime-ngpus", "parallel.runtime_ngpus", c.RuntimeNGPUs},
		{"--memory-limit", "parallel.memory_limit", c.MemoryLimit},
	} {
		if err := o.apply(cfg); err != nil {
			return err
		}
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	for _, idle := range cfg.Idle() {
		con.note("%v", idle)
	}
	options, err := c.options(cfg)
	if err != nil {
		return err
	}
	cluster, files, err := cost.LoadFrom(c.Cluster)
	if err != nil {
		return err
	}
	if err := c.apart(files); err != nil {
		return err
	}
	var certificate *planner.Certificate
	var unproven *planner.UnprovenError // then there is a plan nevertheless
	find := search
	if c.Certificate != "" {
		if c.Robust {
			return usagef("plan: --certificate proves that no plan is faster, but --robust may return another than the fastest; want one of them")
		}
		find = func(cfg *config.Config, cluster *cost.Cluster, o planner.Options) (doc *planner.Document, err error) {
			if doc, certificate, err = searchCertified(cfg, cluster, o); errors.As(err, &unproven) {
				return doc, nil
			}
			return doc, err
		}
	}
	if c.LP != "" && (c.Robust || c.Policy == string(planner.Megatron)) {
		return usagef("plan: --lp leaves any cut to a solver, which finds the fastest plan; want it without --robust and --policy megatron")
	}
	if c.Robust {
		if c.Samples < 1 || c.Samples > mostSamples {
			return usagef("plan: --samples is %d, must be between 1 and %d", c.Samples, mostSamples)
		}
		find = func(cfg *config.Config, cluster *cost.Cluster, o planner.Options) (*planner.Document, error) {
			return robust(cfg, cluster, o, c.Samples, c.Seed)
		}
	}
	doc, err := find(cfg, cluster, options)
	if err != nil {
		return located(cfg, options, err)
	}
	if p := doc.Predicted; min(p.StepSeconds, p.Breakdown.Compute, p.Breakdown.Communication, p.Breakdown.Optimizer, p.Breakdown.Bubble) < 0 {
		return &planner.OptionError{Option: "batch.global", Msg: fmt.Sprintf("is %d sequences: a step takes more than the 106 days that can be counted on cluster %s", cfg.Batch.Global, cluster.Name)}
	}
	if len(options.Pins) > 0 && !c.Robust {
		if doc.Search.Unpinned, err = unpinned(cfg, cluster, options); err != nil {
			return err
		}
	}
	proof := "no other plan of these choices is faster under the cost model"
	switch r := doc.Search.Robust; {
	case r != nil && r.Least != 0:
		proof = "the plan is the one of least worst-case regret, not the fastest"
	case !doc.Search.Optimal:
		proof = fmt.Sprintf("no other plan of these choices is more than %.2g %% faster", 100*doc.Search.Gap)
	}
	took := explain.Seconds(doc.Search.Seconds)
	if len(doc.Search.Alternatives) > 0 {
		took += fmt.Sprintf(", and %s more for alternatives", explain.Seconds(doc.Search.Beyond))
	}
	con.note("considered %s plans in %s; %s", explain.Grouped(int64(doc.Search.PlansConsidered)), took, proof)
	text, err := doc.Marshal()
	if err != nil {
		return err
	}
	if c.Out != "-" {
		if err := writeFile(c.Out, text); err != nil {
			return err
		}
		con.note("wrote %s", c.Out)
	}
	if certificate != nil {
		if err := writeFile(c.Certificate, certificate.Marshal()); err != nil {
			return err
		}
		con.note("wrote %s: %s", c.Certificate, explain.Count(len(certificate.Regions), "region"))
	}
	if c.DumpDir != "" {
		programs, err := compile(cfg, doc.Plan)
		if err != nil {
			return err
		}
		if err := programs.dump(c.DumpDir); err != nil {
			return err
		}
	}
	if c.LP != "" {
		err = c.writeLP(con, cfg, cluster, options, doc)
	}
	if c.json() {
		con.printf("%s", text)
	} else {
		printPlan(con, doc)
	}
	if unproven != nil {
		err = errors.Join(err, unproven)
	}
	return err
}

// unpinned is the time of a step under the best plan without the user's pins, 0 if no plan fits without them.
func unpinned(cfg *config.Config, cluster *cost.Cluster, o planner.Options) (seconds float64, err error) {
	o.Pins, o.TopK = nil, 0
	free, err := search(cfg, cluster, o)
	switch {
	case is[*planner.InfeasibleError](err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return free.Predicted.StepSeconds, nil
}

// searchCertified is search, with a proof that the plan is the fastest. Where that cannot be closed it returns the plan with an
// UnprovenError.
func searchCertified(cfg *config.Config, cluster *cost.Cluster, o planner.Options) (*planner.Document, *planner.Certificate, error) {
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return nil, nil, err
	}
	o.Eval = evaluation
	found, certificate, err := planner.SearchCertified(training, cfg.Batch.Global, cluster, o)
	if found == nil {
		return nil, nil, err
	}
	doc := planner.NewDocument(cfg, training, cluster, found)
	if certificate != nil {
		certificate.ConfigHash = doc.ConfigHash
	}
	return doc, certificate, err
}

// search finds the fastest plan of a configuration on a cluster.
func search(cfg *config.Config, cluster *cost.Cluster, o planner.Options) (*planner.Document, error) {
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return nil, err
	}
	o.Eval = evaluation
	found, err := planner.Search(training, cfg.Batch.Global, cluster, o)
	if err != nil {
		return nil, err
	}
	return planner.NewDocument(cfg, training, cluster, found), nil
}
