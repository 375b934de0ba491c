package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Schema is the version of the JSON form: see the package documentation.
const Schema = 1

// Report is everything that is known about one plan. [Of] makes it; [Report.Predict], [Report.Divide],
// [Report.Compare] and a [Study] add to it.
type Report struct {
	Schema       int      `json:"schema"`
	Model        string   `json:"model"`
	Parameters   int64    `json:"parameters"`
	Batch        int      `json:"batch"` // sequences per step, all ranks together
	Tokens       int      `json:"tokens"`
	Mesh         string   `json:"mesh"`
	PlanNGPUs    int      `json:"plan_ngpus"`
	RuntimeNGPUs int      `json:"runtime_ngpus"`
	Units        int      `json:"units"`
	DP           int      `json:"dp"` // of the whole run
	CP           int      `json:"cp,omitempty"`
	TP           int      `json:"tp"`
	PP           int      `json:"pp"`
	MicroBatch   int      `json:"micro_batch"`   // sequences
	MicroBatches int      `json:"micro_batches"` // per step and data-parallel rank; the largest number, where ranks differ
	Schedule     string   `json:"schedule"`
	Stages       []*Stage `json:"stages"`
	// Traffic has one entry per world rank.
	Traffic []Traffic `json:"traffic"`
	// Prediction is missing when nothing was predicted.
	Prediction *Prediction `json:"prediction,omitempty"`
	// Divisions price the plan with tensor-parallel products made in other numbers of parts: see [Report.Divide].
	Divisions []Division `json:"divisions,omitempty"`
	// Rejected are the plans that lost, best first.
	Rejected []Rejected `json:"rejected,omitempty"`
	// Versus, Sensitivities and Fronts are missing unless they were asked for: see [Study].
	Versus        []*Versus      `json:"versus,omitempty"`
	Sensitivities *Sensitivities `json:"sensitivities,omitempty"`
	Fronts        *Fronts        `json:"fronts,omitempty"`
	HourPrice     float64        `json:"price_per_gpu_hour,omitempty"`

	cfg  *config.Config
	prog *codegen.Program
	eval *codegen.Program // nil if the plan is held to the memory of a training step alone
	why  *reasons
	// price gives the time of single instructions on the prediction's cluster; nil without a prediction.
	price *cost.Program
}

// Stage is one position of the pipeline. All of its ranks run the same program.
type Stage struct {
	Index  int      `json:"index"`
	Ranks  []int    `json:"ranks"`
	Blocks []string `json:"blocks"`
	// Chunks are the blocks of each chunk, if there are several: see the package documentation.
	Chunks    [][]string `json:"chunks,omitempty"`
	Recompute int        `json:"recompute"` // how many blocks are recomputed whole in the backward pass, in each chunk the first ones
	// Selective is the number of blocks after those that recompute attention only, Pointwise the number after
	// these that recompute norms and activation functions only.
	Selective int `json:"selective,omitempty"`
	Pointwise int `json:"pointwise,omitempty"`
	// Tensors are all buffers except the temporary ones.
	Tensors []Tensor `json:"tensors"`
	// Communication lists what rank Busiest communicates in a step.
	Communication []Comm `json:"communication"`
	Busiest       int    `json:"busiest_rank"` // the rank that moves the most bytes
	Memory        Memory `json:"memory"`
}

// Comm is a collective, transfer or host copy, or several that differ in their block alone.
type Comm struct {
	Name   string `json:"name"` // structural, repeated blocks as *
	Op     string `json:"op"`
	Axis   string `json:"axis,omitempty"` // of a collective
	Host   bool   `json:"host,omitempty"` // between the device and host memory
	Phase  string `json:"phase"`
	Ranks  int    `json:"ranks"` // how many take part
	Peer   *int   `json:"peer_stage,omitempty"`
	Runs   int    `json:"runs"`            // per step
	Single int64  `json:"bytes_each"`      // of the largest run
	Bytes  int64  `json:"bytes"`           // per step
	Of     string `json:"value,omitempty"` // type of the value moved, with its global shape
	From   string `json:"from,omitempty"`  // its spec before
	To     string `json:"to,omitempty"`    // and after
}

// Traffic is what one rank communicates in a step, as the runtime counts it.
type Traffic struct {
	Rank            int   `json:"rank"`
	Collectives     int   `json:"collectives"`
	CollectiveBytes int64 `json:"collective_bytes"` // received
	Transfers       int   `json:"transfers"`        // both ends count
	TransferBytes   int64 `json:"transfer_bytes"`   // sent and received
	HostCopies      int   `json:"host_copies,omitempty"`
	HostBytes       int64 `json:"host_bytes,omitempty"` // fetched and stashed
}

// Of returns the report of a program that was compiled from a configuration, without a prediction. eval is the evaluation,
// which runs in the arenas of prog, or nil.
func Of(prog, eval *codegen.Program, cfg *config.Config) (*Report, error) {
	why, err := newReasons(prog, cfg)
	if err != nil {
		return nil, err
	}
	p := prog.Plan
	r := &Report{
		Schema: Schema, Model: modelName(cfg), Batch: prog.Batch, Mesh: prog.Mesh.String(),
		PlanNGPUs: p.PlanNGPUs, RuntimeNGPUs: p.RuntimeNGPUs, Units: p.Units(), DP: p.DataParallel(), CP: p.CP, TP: p.TP, PP: p.PP(),
		MicroBatch: p.MicroBatch, MicroBatches: prog.Mesh.Size(partition.AxisMB), Schedule: string(p.Schedule),
		cfg: cfg, prog: prog, eval: eval, why: why,
	}
	for _, n := range prog.Graph.Nodes {
		if attr, ok := n.Attr.(ir.ParamAttr); ok && !attr.State && n.Name == partition.BaseName(n.Name) {
			r.Parameters += n.Results[0].Type.Elems()
		}
		if shape := n.Results[0].Type.Shape; n.Op == ir.OpInput && len(shape) == 2 {
			r.Tokens = shape[0] * shape[1]
		}
	}
	blocks := partition.Blocks(prog.Graph)
	for i := range p.PP() {
		st := &Stage{Index: i}
		for s := i; s < len(p.Stages); s += p.PP() {
			ps := p.Stages[s]
			st.Blocks = append(st.Blocks, blocks[ps.First:ps.Last]...)
			st.Recompute += ps.Recompute
			st.Selective += ps.Selective
			st.Pointwise += ps.Pointwise
			if p.Chunks() > 1 {
				st.Chunks = append(st.Chunks, blocks[ps.First:ps.Last])
			}
		}
		st.Tensors = r.tensors(st)
		st.Memory = memory(prog.Stages[i], p.PP(), st.Tensors)
		r.Stages = append(r.Stages, st)
	}
	r.countTraffic()
	for i, total := range r.Traffic {
		st := r.Stages[prog.Schedules[i].Stage]
		if len(st.Ranks) == 0 || total.bytes() > r.Traffic[st.Busiest].bytes() {
			st.Busiest = i
		}
		st.Ranks = append(st.Ranks, i)
	}
	for _, st := range r.Stages {
		st.Communication = r.communication(st, &prog.Schedules[st.Busiest])
	}
	return r, nil
}

func modelName(cfg *config.Config) string {
	m := cfg.Model
	if m.Preset != "" {
		return m.Preset
	}
	return fmt.Sprintf("GPT with %s, %s, C %d, T %d, V %d", Count(m.NLayer, "layer"), m.HeadsText(), m.NEmbd, m.BlockSize, m.VocabSize)
}

// JSON writes the report as indented JSON. See the package documentation.
func (r *Report) JSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Rank writes the program of one world rank.
func (r *Report) Rank(w io.Writer, rank int) error {
	if rank < 0 || rank >= len(r.prog.Schedules) {
		return fmt.Errorf("explain: rank %d does not exist; the plan has ranks 0 to %d", rank, len(r.prog.Schedules)-1)
	}
	return r.prog.Fprint(w, rank)
}

// class returns a structural name with the number of its repeated block as *.
func class(name string) string {
	block := ir.BlockOf(name)
	if block == "" {
		return name
	}
	return block[:indexAt(block)] + "*" + name[len(block):]
}

// indexAt returns where the number at the end of a block's name starts.
func indexAt(block string) int {
	at := len(block)
	for at > 0 && block[at-1] >= '0' && block[at-1] <= '9' {
		at--
	}
	return at
}

// merged names a row that stands for one or several blocks: the class if it stands for all blocks of
// the stage, else the class with the numbers of the blocks, as in h.{0-2,5}.attn/dropout.
func (st *Stage) merged(names []string) string {
	first := names[0]
	block := ir.BlockOf(first)
	if len(names) == 1 {
		return first
	}
	if len(names) == len(st.Blocks) {
		return class(first)
	}
	blocks := make([]int, len(names))
	for i, name := range names {
		blocks[i] = blockNumber(name)
	}
	slices.Sort(blocks) // a backward pass has them the other way round
	return block[:indexAt(block)] + "{" + numbers(blocks) + "}" + first[len(block):]
}

func blockNumber(name string) int {
	block := ir.BlockOf(name)
	n, _ := strconv.Atoi(block[indexAt(block):]) // digits by construction; a number out of range only gives a wrong name
	return n
}
