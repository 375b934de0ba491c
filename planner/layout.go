package planner

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Which dimension of each parameter tensor parallelism splits: its layout. It is derived from the
// graph. A split is priced by partitioning the graph of one block with it and looking at what the
// step takes.
//
// Weights interact with those of the same module (attention's two projections, the MLP's two, a
// table with itself), and with no others, as the residual stream between modules is replicated. So
// every group has an optimum of its own, and their union is the joint optimum
// (TestGroupsAreIndependent). Within a group only the splits of the most bytes compete, because a
// plan pays for tensor parallelism with its devices: what can be split is split, unless its module
// is replicated (replicate.go). Vectors (biases) follow the results they are added to.
//
// [searcher.template] asks for the layout of every outline; the search for it is done once per
// degree.

// layouts finds and keeps the layouts for all degrees of tensor parallelism.
type layouts struct {
	graph   *ir.Graph // with one block
	batch   int
	ranks   int
	cluster *cost.Cluster
	pins    []partition.Placement
	known   map[int][][]partition.Placement // by degree, and then by group
	whole   []partition.Placement           // see wholes
	classes []class                         // of all parameters; nil until asked for

	// Prices do not depend on placements: these are for the degrees dp and tp in priced.
	price  *cost.Program
	priced [2]int
}

// group is weights that interact.
type group struct {
	name    string
	weights []*ir.Value
}

// find returns the layout for a degree of tensor parallelism.
func (l *layouts) find(tp int) []partition.Placement {
	if tp == 1 {
		return nil
	}
	return slices.Concat(l.byGroup(tp)...)
}

// byGroup returns the layout of every group. The layout for two ranks is found first. It also
// serves larger degrees if the sizes allow, and so does that for half as many ranks: whether rows
// or columns are cheaper does not depend on how many ranks there are.
func (l *layouts) byGroup(tp int) [][]partition.Placement {
	if found, ok := l.known[tp]; ok {
		return found
	}
	groups := l.groups()
	all := make([][]partition.Placement, len(groups))
	for smaller := 2; smaller < tp; smaller = tp / 2 {
		base := l.byGroup(smaller)
		for i := range all {
			if all[i] == nil && l.fits(base[i], tp) {
				all[i] = base[i]
			}
		}
		if tp%2 > 0 || smaller == tp/2 {
			break
		}
	}
	// One stage, with as much data parallelism as there may be.
	dp := max(1, min(l.ranks/tp, l.batch))
	for i, g := range groups {
		if all[i] == nil {
			all[i] = l.solve(g, dp, tp)
		}
	}
	l.price = nil // it holds on to every program that it has priced
	l.known[tp] = all
	return all
}

// fits reports whether every parameter that a group places has at least tp slices.
func (l *layouts) fits(placements []partition.Placement, tp int) bool {
	if l.classes == nil {
		for _, v := range l.graph.Params() {
			l.classes = append(l.classes, class{classOf(v.Def.Name), v})
		}
	}
	for _, p := range placements {
		dim := splitDim(p.Spec)
		for _, c := range l.classes {
			if p.Match == c.name && c.of.Type.Shape[dim] < tp {
				return false
			}
		}
	}
	return true
}

// class is a parameter with the expression for its name: see [classOf].
type class struct {
	name string
	of   *ir.Value
}

// splitDim is the dimension that a spec such as [_,tp] splits, -1 for none.
func splitDim(spec string) int {
	return slices.Index(strings.Split(strings.Trim(spec, "[]"), ","), partition.AxisTP)
}

// groups lists the weights of products by module: the path element after the block, or the first
// one outside of blocks. A table that is only looked up stays whole, as there is no work to divide.
func (l *layouts) groups() []group {
	var groups []group
	seen := map[*ir.Value]bool{}
	for _, n := range l.graph.Nodes {
		if n.Phase != ir.Forward || n.Op != ir.OpMatMul {
			continue
		}
		for _, a := range n.Args {
			if a.Def.Op != ir.OpParam || seen[a] {
				continue
			}
			seen[a] = true
			name := moduleOf(a.Def.Name)
			i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
			if i < 0 {
				i = len(groups)
				groups = append(groups, group{name: name})
			}
			groups[i].weights = append(groups[i].weights, a)
		}
	}
	return groups
}

func moduleOf(name string) string {
	block := ir.BlockOf(name)
	rest := strings.TrimPrefix(strings.TrimPrefix(name, block), ".")
	first, _, _ := strings.Cut(rest, ".")
	return strings.Trim(block+"."+first, ".")
}

// solve returns the cheapest split of a group among those of the most bytes.
func (l *layouts) solve(g group, dp, tp int) []partition.Placement {
	type candidate struct {
		placements []partition.Placement
		bytes      int64
	}
	var candidates []candidate
	users := l.users()
	dims := make([]int, len(g.weights))
	var enumerate func(i int)
	enumerate = func(i int) {
		if i == len(g.weights) {
			var c candidate
			for k, w := range g.weights {
				if dims[k] >= 0 {
					c.placements = append(c.placements, placementOf(w, dims[k]))
					c.bytes += w.Type.Bytes()
				}
			}
			c.placements = follow(users, c.placements, g.weights, dims)
			candidates = append(candidates, c)
			return
		}
		for d := -1; d < len(g.weights[i].Type.Shape); d++ {
			if d >= 0 && g.weights[i].Type.Shape[d] < tp {
				continue
			}
			dims[i] = d
			enumerate(i + 1)
		}
	}
	enumerate(0)
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(b.bytes, a.bytes) })
	var best []partition.Placement
	var bestTime cost.Picoseconds
	var bestBytes int64
	for _, c := range candidates {
		if len(c.placements) == 0 || c.bytes < bestBytes {
			break
		}
		time, err := l.time(c.placements, dp, tp)
		if err != nil {
			continue // not a legal split
		}
		if best == nil || time < bestTime {
			best, bestTime, bestBytes = c.placements, time, c.bytes
		}
	}
	return best
}

// placementOf places a parameter and its repeats in other blocks: split in a dimension, or whole if
// that is -1.
func placementOf(v *ir.Value, dim int) partition.Placement {
	words := make([]string, len(v.Type.Shape))
	for i := range words {
		words[i] = "_"
	}
	if dim >= 0 {
		words[dim] = partition.AxisTP
	}
	return partition.Placement{Match: classOf(v.Def.Name), Spec: "[" + strings.Join(words, ",") + "]"}
}

// classOf is a regular expression that matches a parameter's name in every block.
func classOf(name string) string {
	block := ir.BlockOf(name)
	if block == "" {
		return regexp.QuoteMeta(name)
	}
	stem := strings.TrimRight(block, "0123456789")
	return regexp.QuoteMeta(stem) + "[0-9]+" + regexp.QuoteMeta(strings.TrimPrefix(name, block))
}

// users lists what reads each value in the forward pass.
func (l *layouts) users() map[*ir.Value][]*ir.Node {
	users := map[*ir.Value][]*ir.Node{}
	for _, n := range l.graph.Nodes {
		if n.Phase == ir.Forward {
			for _, a := range n.Args {
				users[a] = append(users[a], n)
			}
		}
	}
	return users
}

// follow adds placements for the vectors that meet a split result, such as the bias of a linear
// layer whose outputs are split. It follows splits through the signatures of ops.
func follow(users map[*ir.Value][]*ir.Node, placements []partition.Placement, weights []*ir.Value, dims []int) []partition.Placement {
	type split struct {
		value *ir.Value
		dim   int
	}
	var queue []split
	seen := map[*ir.Value]bool{}
	for i, w := range weights {
		seen[w] = true
		if dims[i] >= 0 {
			queue = append(queue, split{w, dims[i]})
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		for _, n := range users[s.value] {
			sig := ir.SignatureOf(n)
			dim := sig.Args[slices.Index(n.Args, s.value)][s.dim]
			if sig.Dims[dim].Frozen {
				continue
			}
			for i, a := range n.Args {
				if at := slices.Index(sig.Args[i], dim); at >= 0 && a.Def.Op == ir.OpParam && !seen[a] {
					seen[a] = true
					placements = append(placements, placementOf(a, at))
				}
			}
			for i, r := range n.Results {
				if at := slices.Index(sig.Results[i], dim); at >= 0 && !seen[r] {
					seen[r] = true
					queue = append(queue, split{r, at})
				}
			}
		}
	}
	return placements
}

// plan is a plan of one stage, with one sequence at a time.
func (l *layouts) plan(placements []partition.Placement, dp, tp int) *partition.Plan {
	return &partition.Plan{
		PlanNGPUs: dp * tp, RuntimeNGPUs: dp * tp, DP: dp, TP: tp, MicroBatch: 1, Schedule: partition.OneFOneB,
		Stages:     []partition.Stage{{Last: len(partition.Blocks(l.graph))}},
		Placements: slices.Concat(l.pins, placements),
	}
}

// time is the time of a step with one block.
func (l *layouts) time(placements []partition.Placement, dp, tp int) (cost.Picoseconds, error) {
	times, err := l.phases(placements, dp, tp)
	var sum cost.Picoseconds
	for _, t := range times {
		sum += t
	}
	return sum, err
}

// phases is the time of each phase of a step with one block.
func (l *layouts) phases(placements []partition.Placement, dp, tp int) (total [ir.NumPhases]cost.Picoseconds, err error) {
	plan := l.plan(placements, dp, tp)
	prog, err := draft(l.graph, plan, l.batch, plan.Lone(l.batch))
	if err != nil {
		return total, err
	}
	if l.price == nil || l.priced != [2]int{dp, tp} {
		l.price, l.priced = cost.NewProgram(l.cluster, plan, prog.Mesh), [2]int{dp, tp}
	}
	for phase, body := range prog.Stages[0].Bodies {
		var t cost.Picoseconds
		for i := range body.Instrs {
			time, _ := l.price.Instr(&body.Instrs[i], prog.Mesh, ir.Coord{})
			t += time
		}
		if ir.Phase(phase) != ir.Update {
			t *= cost.Picoseconds(prog.Mesh.Size(partition.AxisMB))
		}
		total[phase] = t
	}
	return total, nil
}
