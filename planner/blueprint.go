package planner

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Small programs that stand for large ones. What a program does depends on which axes a plan has,
// how ZeRO shards, and where parameters lie, but not on how many ranks an axis has or how many
// positions a pipeline has. [blueprints.find] maps any plan to its structure and compiles that
// once; skeleton.go, measure.go and floor.go read time, memory and bounds off it, at the sizes of
// the plan's own mesh.

// blueprint is the program of a small plan, with one block per stage, that stands for the programs
// of all larger plans of the same structure. All positions of a pipeline between its ends do the
// same, and so do all chunks of a rank but the first and the last. So three positions and two
// chunks stand for any number of them, and two ranks of an axis for any number over which the
// values can still be cut; a size follows from a value's spec and the mesh of the real plan.
// TestCostIsSimulation checks this against whole programs.
type blueprint struct {
	graphs *shrunken
	plan   partition.Plan // the small plan that is compiled
	batch  int
	lone   bool                      // it stands for steps of one micro-batch: see [partition.ApplyFor]
	progs  [extents]*codegen.Program // by the extent to which every block is recomputed; nil until asked for

	// Classes of nodes: ofBlock are there once for each block; ofWeight run apart under a
	// zero-bubble schedule; ofWhole are products that make gradients of weights which tensor-parallel
	// ranks hold whole.
	ofBlock, ofWeight, ofWhole map[*ir.Node]bool
	// given are nodes outside of blocks that make a value for blocks from nothing that blocks make.
	given      map[*ir.Node]bool
	wires      map[*ir.Node]int // of a send: its index among the transfers between the same two stages in its phase
	chunkOf    map[string]int   // by block
	cuts       []valueCut
	held       [extents][fewPositions][]held // by position: the buffers that take memory; nil until measured
	batches    []int                         // sizes of the dimensions that micro-batches cut
	kinds      map[heldKind]int
	kindValues []kindValues // by kind
	apart      *blueprint   // see zeroBubble
}

// valueCut is a dimension of some value that is cut over axes: the smallest of those that lie on
// the same axes.
type valueCut struct {
	size int
	axes [ir.MaxAxes]bool
}

// As many positions of a pipeline, and chunks of a rank, show all kinds that there are.
const (
	fewPositions = 3
	fewChunks    = 2
)

// newBlueprint returns the blueprint for a plan; of its stages only the number matters. It is
// compiled when asked for.
func newBlueprint(graphs *shrunken, p partition.Plan, batch int, lone bool) *blueprint {
	b := &blueprint{
		graphs: graphs, plan: p, batch: batch, lone: lone, chunkOf: map[string]int{}, wires: map[*ir.Node]int{}, kinds: map[heldKind]int{},
		ofWeight: map[*ir.Node]bool{}, ofWhole: map[*ir.Node]bool{}, given: map[*ir.Node]bool{},
	}
	b.plan.MicroBatch, b.plan.Schedule = batch, partition.OneFOneB // a single one: the shortest schedule
	if p.Interleave > 1 {
		b.plan.Schedule = partition.Interleaved
	}
	for i, block := range partition.Blocks(b.graph()) {
		_, b.chunkOf[block] = b.plan.Position(i / graphs.scale)
	}
	return b
}

// zeroBubble returns the same blueprint with the backward pass in two, as a zero-bubble schedule has it,
// compiled.
func (b *blueprint) zeroBubble() *blueprint {
	if b.apart == nil {
		b.apart = newBlueprint(b.graphs, b.plan, b.batch, b.lone)
		b.apart.plan.Schedule, b.apart.plan.OverlapTP = partition.ZeroBubble, false
		b.apart.prog(kept)
	}
	return b.apart
}

func (b *blueprint) graph() *ir.Graph { return b.graphs.keep(len(b.plan.Stages)) }

// prog returns the program with every block recomputed to an extent.
func (b *blueprint) prog(e extent) *codegen.Program {
	if b.progs[e] == nil {
		if err := b.compile(e); err != nil {
			panic(fmt.Sprintf("BUG: a plan that compiles does not with recomputation: %v", err))
		}
	}
	return b.progs[e]
}

func (b *blueprint) compile(e extent) error {
	plan := b.plan
	plan.Stages = nil
	for i := range b.plan.Stages {
		plan.Stages = append(plan.Stages, b.graphs.scaled(uniform(e, 1).stage(i, 1)))
	}
	prog, err := draft(b.graph(), &plan, b.batch, b.lone)
	if err != nil {
		return err
	}
	b.progs[e] = prog
	b.attribute(prog)
	if e == kept {
		b.noteCuts()
	}
	return nil
}

// attribute finds the nodes that belong to blocks and are there once for each. Their names begin
// with the block's. Only gathers, exchanges and slices of gradients belong to whoever reads them:
// the gradient that a stage receives is gathered by its last block, as other blocks gather theirs,
// while the gradient that the first block hands to the embedding is gathered once, and so is what
// only the first block gathers.
func (b *blueprint) attribute(prog *codegen.Program) {
	maps.Copy(b.ofWeight, partition.WeightGrads(prog.Graph))
	if len(b.plan.Replicated()) > 0 {
		b.noteWhole(prog)
	}
	if b.ofBlock == nil {
		b.ofBlock = make(map[*ir.Node]bool, len(prog.Graph.Nodes))
	}
	read := make([]bool, prog.Graph.IDs())  // by ID: a block reads the value
	given := make([]bool, prog.Graph.IDs()) // by ID: the value goes into a block, directly or through given nodes
	for i := len(prog.Graph.Nodes) - 1; i >= 0; i-- {
		n := prog.Graph.Nodes[i]
		of := n.Block() != "" && n.Op != ir.OpRecv
		if rearranges(n) && n.Phase != ir.Update {
			of = read[n.Results[0].ID] && !enters(n)
		}
		switch {
		case of:
			b.ofBlock[n] = true
		case blockOperands(n) == 0 && slices.ContainsFunc(n.Results, func(r *ir.Value) bool { return given[r.ID] }):
			b.given[n] = true
		}
		for _, a := range n.Args {
			read[a.ID] = read[a.ID] || of
			given[a.ID] = given[a.ID] || of || b.given[n]
		}
	}
	type between struct {
		phase    ir.Phase
		from, to int
	}
	count := map[between]int{}
	for _, n := range prog.Graph.Nodes {
		if n.Op == ir.OpSend {
			key := between{n.Phase, n.Stage, n.Attr.(ir.P2PAttr).Stage}
			b.wires[n] = count[key]
			count[key]++
		}
	}
}

// enters reports whether what a node gathers or exchanges comes from before the blocks, like the
// rows of a table that is cut by columns. Only the first block is given that.
func enters(n *ir.Node) bool {
	for rearranges(n) {
		n = n.Args[0].Def
	}
	return partition.OutsideBlocks(n)
}

// rearranges reports whether a node gathers or exchanges a value, or slices a gradient.
func rearranges(n *ir.Node) bool {
	of := n
	for of.Op.Class() == ir.Comm && of.Op != ir.OpRecv {
		of = of.Args[0].Def
	}
	return n.Op == ir.OpAllGather || n.Op == ir.OpAllToAll || n.Op == ir.OpSlice && of.Phase == ir.Backward
}

// noteCuts notes the dimensions that are cut. A blueprint stands for a mesh only if the smallest of
// them has an element for every rank.
func (b *blueprint) noteCuts() {
	least := map[[ir.MaxAxes]bool]int{}
	mesh := b.progs[kept].Mesh
	note := func(size int, s ir.ShardSpec, dim int) {
		var axes [ir.MaxAxes]bool
		some := false
		for a, p := range s {
			if p == ir.ShardOn(dim) && !mesh.Axes[a].Time {
				axes[a], some = true, true
			}
		}
		if known, ok := least[axes]; some && (!ok || size < known) {
			least[axes] = size
		}
	}
	mb := mesh.Axis(partition.AxisMB)
	for _, n := range b.progs[kept].Graph.Nodes {
		for _, r := range n.Results {
			for d, size := range r.Type.Shape {
				note(size, r.Spec, d)
				if r.Spec[mb] == ir.ShardOn(d) && !slices.Contains(b.batches, size) {
					b.batches = append(b.batches, size)
				}
			}
		}
		if n.Op.Class() != ir.Compute {
			continue
		}
		sig := ir.SignatureOf(n)
		for i, a := range n.Args {
			for d := range a.Type.Shape { // an op may cut in larger units, such as heads
				note(sig.Dims[sig.Args[i][d]].Size, a.Spec, d)
			}
		}
		if tp := mesh.Axis(partition.AxisTP); mesh.Axes[tp].Size > 1 && isAttention(n.Op) {
			var only ir.ShardSpec
			only[tp] = ir.ShardOn(0)
			for _, d := range sig.Dims { // with fewer heads than ranks it is cut another way, here or there
				if !d.Frozen && d.Size >= mesh.Axes[tp].Size {
					note(d.Size, only, 0)
				}
			}
		}
	}
	for axes, size := range least {
		b.cuts = append(b.cuts, valueCut{size, axes})
	}
}

// fewestHeads is the smallest dimension in which attention can be cut. Over more ranks than that it
// is cut in another way.
func fewestHeads(g *ir.Graph) int {
	least := math.MaxInt
	for _, n := range g.Nodes {
		if isAttention(n.Op) {
			for _, d := range ir.SignatureOf(n).Dims {
				size := d.Size
				if d.Name == "b" { // whole sequences
					size /= max(1, ir.SequenceParts(n.Attr))
				}
				if !d.Frozen {
					least = min(least, size)
				}
			}
		}
	}
	return least
}

func isAttention(op ir.Op) bool {
	switch op {
	case ir.OpAttention, ir.OpAttentionGrad, ir.OpAttentionKV, ir.OpAttentionKVGrad:
		return true
	}
	return false
}

// even reports whether the last micro-batch of the first rank is as large as the others.
func (b *blueprint) even(mesh ir.Mesh) bool {
	mb := mesh.Axes[mesh.Axis(partition.AxisMB)]
	for _, size := range b.batches {
		for _, a := range mesh.Axes {
			if partition.FollowsBatch(a) && !a.Time {
				size = a.Cut(size, 0).Len
			}
		}
		if mb.Cut(size, 0).Len != mb.Cut(size, mb.Size-1).Len {
			return false
		}
	}
	return true
}

// standsFor reports whether every value can be cut over the axes of a mesh as it is in the
// blueprint.
func (b *blueprint) standsFor(mesh ir.Mesh) bool {
	for _, c := range b.cuts {
		parts := 1
		for a, cut := range c.axes {
			if cut {
				parts *= mesh.Axes[a].Size
			}
		}
		if parts > c.size {
			return false
		}
	}
	return true
}

// like returns the stage of the blueprint that stands for a stage of a plan.
func (b *blueprint) like(p *partition.Plan, stage int) int {
	position, chunk := p.Position(stage)
	last := position == p.PP()-1
	switch {
	case position > 0 && !last:
		return 1
	case last:
		position = b.plan.PP() - 1
	}
	return position + b.chunk(p, last, chunk)*b.plan.PP()
}

// chunk returns the chunk of the blueprint that stands for a chunk of a plan. last says whether it
// is at the last position.
func (b *blueprint) chunk(p *partition.Plan, last bool, chunk int) int {
	switch {
	case last && chunk == p.Chunks()-1 || !last && chunk > 0:
		return b.plan.Chunks() - 1
	}
	return 0
}

// hop returns how many stages further the other end of a transfer lies in a plan; in the update
// phase, how many positions.
func (b *blueprint) hop(p *partition.Plan, n *ir.Node) int {
	hop := n.Attr.(ir.P2PAttr).Stage - n.Stage
	switch hop {
	case 1, -1:
		return hop
	case 2, -2:
		if n.Phase == ir.Update && b.plan.PP() == fewPositions {
			return hop / 2 * (p.PP() - 1) // from end to end
		}
	}
	panic(fmt.Sprintf("BUG: %s goes from stage %d to %d of %d", n.Name, n.Stage, n.Attr.(ir.P2PAttr).Stage, len(b.plan.Stages)))
}

// blueprints keeps the blueprints of a graph.
type blueprints struct {
	graphs *shrunken
	batch  int
	tokens int  // of a sequence
	heads  int  // see fewestHeads
	widens bool // see [partition.WidensGradients]
	known  map[structure]*blueprint
	failed map[structure]error
	rooms  map[roomKey][]codegen.Chunk
	// sharing has, by the dimensions in which ZeRO cuts parameters, ranks over which it does so.
	sharing map[shardsKey]rankCounts
	many    map[structure][]*blueprint // with one stage and other than two ranks per axis, by structure without tp
	// trunkPieces is in how many parts the programs of trunks are made (see [searcher.trunkOf]).
	trunkPieces int
}

// shardsKey says in which dimensions ZeRO cuts parameters.
type shardsKey struct {
	split, replicated, shared, even, grouped bool
	placements, shards                       string
}

// rankCounts are numbers of data-parallel and context-parallel ranks, and the size of ZeRO groups.
type rankCounts struct{ dp, cp, group int }

// roomKey is what the room of a position depends on.
type roomKey struct {
	schedule                           partition.Schedule
	position, pp, chunks, microBatches int
}

// room is a memo of [codegen.Room] of a step, which for an interleaved schedule goes through all
// tasks of the position.
func (b *blueprints) room(p *partition.Plan, position, m int) []codegen.Chunk {
	key := roomKey{p.Schedule, position, p.PP(), p.Chunks(), m}
	room, known := b.rooms[key]
	if !known {
		room = codegen.Room(p, position, m, true)
		b.rooms[key] = room
	}
	return room
}

// structure is what all programs with the same blueprint have in common.
type structure struct {
	dp, cp, tp, stages, chunks int // of the small plan
	sharding                       // of its split only rows, of the small plan, and batch; placements say the rest
	parts                      int // of sequences: see [partition.Plan.SequenceParts]
	overlapTP, waits           bool
	lone                       bool // a step has one micro-batch, and its programs differ from others: see [blueprints.lone]
	placements                 string
	shards                     string // the dimension of each parameter in which ZeRO cuts it
}

func newBlueprints(graphs *shrunken, batch int) *blueprints {
	return &blueprints{graphs: graphs, batch: batch, tokens: sequenceTokens(graphs.graph), heads: fewestHeads(graphs.graph), widens: partition.WidensGradients(graphs.graph), known: map[structure]*blueprint{}, failed: map[structure]error{}, rooms: map[roomKey][]codegen.Chunk{}, sharing: map[shardsKey]rankCounts{}, many: map[structure][]*blueprint{}}
}

// lone reports whether steps of m micro-batches have programs of their own: those of one, in a model with
// casts of gradients that only serve to add them up.
func (b *blueprints) lone(m int) bool { return m == 1 && b.widens }

// find returns the blueprint for a plan with one micro-batch (see lone), or with several. Its cut, micro-batch size
// and schedule may still be open, but not the number of its stages.
func (b *blueprints) find(p *partition.Plan, lone bool) (*blueprint, error) {
	key := structure{
		lone: lone,
		dp:   min(p.DataParallel(), 2), cp: b.fewOfContext(p), tp: min(p.TP, 2), chunks: min(p.Chunks(), fewChunks),
		sharding:   sharding{zero: p.ZeRO, sequence: p.SequenceParallel, overlap: p.Overlap, offload: p.Offload, slices: slicesOf(p), pieces: piecesOf(p), split: split{batch: p.BatchParallel}},
		parts:      p.SequenceParts,
		overlapTP:  p.OverlapTP,
		waits:      waits(p),
		placements: placementText(p.Placements),
	}
	if p.Rows() > 1 {
		key.tp, key.rows = 4, 2
	}
	key.stages = min(p.PP(), fewPositions) * key.chunks
	if p.Copies() > 1 {
		key.dp, key.group = 4, 2
	}
	if p.ZeRO > 0 {
		if err := b.shardAlike(&key, p); err != nil {
			return nil, err
		}
	}
	enough := p.ContextParallel() == 1 || b.tokens >= 2*p.ContextParallel() // each rank has an early and a late part of a sequence
	enough = enough && p.TP <= b.heads
	var one *blueprint
	var err error
	if enough {
		one, err = b.compile(key.single(), p.Placements)
	}
	if !enough || err != nil || !one.standsFor(p.Mesh(b.batch)) {
		// Something is cut in another way than over two ranks; perhaps as over another number of
		// tensor-parallel ranks that was compiled before.
		key.dp, key.cp, key.tp, key.group, key.rows = p.DataParallel(), p.ContextParallel(), 0, p.ZeROGroup, min(p.TPRows, 2)
		many := key.single()
		all := b.many[many]
		at := slices.IndexFunc(all, func(x *blueprint) bool {
			// Not one of more ranks than the plan has: it may have left dimensions whole that have
			// fewer elements than that.
			return x.plan.Rows() <= p.Rows() && x.plan.TP*p.Rows() <= p.TP*x.plan.Rows() && x.standsFor(p.Mesh(b.batch))
		})
		if key.tp, key.rows = p.TP, p.TPRows; at >= 0 {
			key.tp, key.rows = all[at].plan.TP, all[at].plan.TPRows
		}
		if one, err = b.compile(key.single(), p.Placements); err == nil && at < 0 {
			b.many[many] = append(all, one)
		}
	}
	switch {
	case err != nil || key.stages == 1:
		return one, err
	case key.chunks > 1: // stages that read from further than their neighbours cannot share ranks: compiling tells
		return b.compile(key, p.Placements)
	}
	return b.lazy(key, p.Placements), nil // if one stage compiles, several do
}

// fewOfContext is how many context-parallel ranks the small plan has: two, unless of those and the ranks of the plan only one would
// share sequences evenly, because that decides what can be made in parts.
func (b *blueprints) fewOfContext(p *partition.Plan) int {
	if cp := p.ContextParallel(); cp > 2 && b.even(p, 2) != b.even(p, cp) {
		return cp
	}
	return min(p.ContextParallel(), 2)
}

// even reports whether cp ranks would share the sequences of a plan evenly: see [codegen.EvenContext].
func (b *blueprints) even(p *partition.Plan, cp int) bool {
	return codegen.EvenContext(b.tokens/max(1, p.SequenceParts), cp)
}

// shardAlike notes in a structure in which dimensions ZeRO cuts the parameters of a plan. If over two
// ranks of an axis these would be others, the structure gets numbers of ranks over which they are not.
func (b *blueprints) shardAlike(key *structure, p *partition.Plan) error {
	shards, err := b.shards(p, p.ShardGroup()*p.ContextParallel())
	if err != nil {
		return err
	}
	overTwo, err := b.shards(p, min(p.DataParallel(), 2)*key.cp)
	if err != nil {
		return err
	}
	if key.shards = shards; shards == overTwo {
		return nil
	}
	over := rankCounts{dp: p.DataParallel(), cp: p.ContextParallel()}
	if p.Copies() > 1 {
		over.dp, over.group = 2*p.ShardGroup(), p.ShardGroup()
	}
	// The first numbers of ranks that shard in these dimensions stand for all.
	alike := shardsKey{p.TP > 1, over.dp > 1, over.cp > 1, b.even(p, p.ContextParallel()), p.Copies() > 1, key.placements, shards}
	if first, known := b.sharing[alike]; known {
		over = first
	} else {
		b.sharing[alike] = over
	}
	key.dp, key.cp, key.group = over.dp, over.cp, over.group
	return nil
}

// single returns the same structure with one stage.
func (s structure) single() structure {
	s.stages, s.chunks, s.waits = 1, 1, false
	return s
}

// compile returns the compiled blueprint of a structure.
func (b *blueprints) compile(key structure, placements []partition.Placement) (*blueprint, error) {
	if err := b.failed[key]; err != nil {
		return nil, err
	}
	found := b.lazy(key, placements)
	if found.progs[kept] == nil {
		if err := found.compile(kept); err != nil {
			b.failed[key] = err
			return nil, err
		}
	}
	return found, nil
}

// lazy returns the blueprint of a structure, compiled or not.
func (b *blueprints) lazy(key structure, placements []partition.Placement) *blueprint {
	if found := b.known[key]; found != nil {
		return found
	}
	ranks := key.dp * key.cp * key.tp * key.stages / key.chunks
	p := partition.Plan{
		PlanNGPUs: ranks, RuntimeNGPUs: ranks, DP: key.dp, TP: key.tp, TPRows: key.rows, ZeRO: key.zero, ZeROGroup: key.group, Offload: key.offload, LossSlices: key.slices,
		SequenceParallel: key.sequence, BatchParallel: key.batch, Overlap: key.overlap, OverlapTP: key.overlapTP, OverlapP2P: key.stages > key.chunks && !key.waits, TPPieces: key.pieces, SequenceParts: key.parts, Stages: make([]partition.Stage, key.stages), Placements: placements,
	}
	if key.cp > 1 {
		p.CP = key.cp
	}
	if key.chunks > 1 {
		p.Interleave = key.chunks
	}
	b.known[key] = newBlueprint(b.graphs, p, b.batch, key.lone)
	return b.known[key]
}

// shards returns, as one character for each parameter and optimizer state, the dimension in which
// ZeRO cuts it over n ranks.
func (b *blueprints) shards(p *partition.Plan, n int) (string, error) {
	whole := structure{dp: 1, cp: 1, tp: min(p.TP, 2), stages: 1, chunks: 1, overlapTP: p.OverlapTP, placements: placementText(p.Placements)}
	if p.TP > 1 {
		whole.pieces = b.trunkPieces
	}
	if p.Rows() > 1 {
		whole.tp, whole.rows = 4, 2
	}
	base, err := b.compile(whole, p.Placements)
	if err != nil {
		return "", err
	}
	var dims []byte
	for _, node := range base.progs[kept].Graph.Nodes {
		if node.Op == ir.OpParam {
			v := node.Results[0]
			dims = append(dims, byte('0'+partition.ReplicaDim(n, v.Spec, v.Type.Shape)))
		}
	}
	return string(dims), nil
}

func placementText(all []partition.Placement) string {
	var text strings.Builder
	for _, p := range all {
		text.WriteString(p.Match + " " + p.Spec + "\n")
	}
	return text.String()
}
