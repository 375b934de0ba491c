package codegen

import "github.com/autopar/autopar/ir"

// CheckEquivalentOf is CheckEquivalent for programs in which some ranks run code of their own instead of their
// stage's.
func CheckEquivalentOf(p *Program, traced *ir.Graph, own map[int]*Stage) error {
	return checkEquivalent(p, traced, func(s *Schedule, _ Task) *Stage {
		if st := own[s.Rank]; st != nil {
			return st
		}
		return p.Stages[s.Stage]
	})
}

// Views finds the views of a stage.
func (s *Stage) Views() { s.views() }

// CheckStreams checks a stage for races between concurrent instructions.
func (s *Stage) CheckStreams() error { return checkStreams(ir.Mesh{}, s) }
