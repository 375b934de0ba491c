package planner

import (
	"fmt"
	"sync"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Brute force, searches and checks of one graph compile the same short programs again and again. These depend on nothing but a graph
// and a plan, and nothing writes to them, so tests that say so with [keepDrafts] compile each of them once.

func init() { shrink, draft = keptGraphs, keptDraft }

var (
	drafts   = map[*ir.Graph]*draftsOf{} // by graph, long or short
	drafting sync.Mutex
)

// draftsOf has the short graphs of a long one and their programs.
type draftsOf struct {
	*shrunken
	programs map[draftKey]drafted
}

type draftKey struct {
	graph *ir.Graph
	plan  string
	batch int
	lone  bool
}

type drafted struct {
	prog *codegen.Program
	err  error
}

// keepDrafts keeps what searches of a graph draft, one search after another, until it is told to forget.
func keepDrafts(g *ir.Graph) (forget func()) {
	of := &draftsOf{newShrunken(g), map[draftKey]drafted{}}
	all := []*ir.Graph{g}
	for n := range of.blocks {
		all = append(all, of.keep(n+1))
	}
	drafting.Lock()
	defer drafting.Unlock()
	for _, g := range all {
		drafts[g] = of
	}
	return func() {
		drafting.Lock()
		defer drafting.Unlock()
		for _, g := range all {
			delete(drafts, g)
		}
	}
}

func draftsFor(g *ir.Graph) *draftsOf {
	drafting.Lock()
	defer drafting.Unlock()
	return drafts[g]
}

func keptGraphs(g *ir.Graph) *shrunken {
	if of := draftsFor(g); of != nil {
		return of.shrunken
	}
	return newShrunken(g)
}

func keptDraft(g *ir.Graph, p *partition.Plan, batch int, lone bool) (*codegen.Program, error) {
	of := draftsFor(g)
	if of == nil {
		return codegen.Draft(g, p, batch, lone)
	}
	key := draftKey{g, fmt.Sprintf("%+v", *p), batch, lone}
	x, known := of.programs[key]
	if !known {
		x.prog, x.err = codegen.Draft(g, p, batch, lone)
		of.programs[key] = x
	}
	return x.prog, x.err
}
