package ir

import (
	"fmt"
	"strings"
)

// Parse reads the form that [Graph.Fprint] prints. Parse(name, g.String()) equals g exactly, including IDs,
// attributes and positions. name stands for the text in errors, which have the form name:line:column: what is
// wrong.
//
// In text written by hand the name, attributes, types and phase of a node may be left out. They default to the
// op's name (numbered if taken), zero attributes, inferred types, and fwd. A line may end in a // comment; one
// of the form file:line is the node's position. Parse checks what inference checks; [Graph.Verify] checks the
// rest.
func Parse(name, text string) (*Graph, error) {
	var p parser
	for i, line := range strings.Split(text, "\n") {
		s := &scanner{text: strings.TrimRight(line, " \t\r")}
		s.space()
		if s.done() {
			continue
		}
		start := s.at
		if err := p.line(s); err != nil {
			return nil, fmt.Errorf("%s:%d:%d: %w", name, i+1, max(start, s.at)+1, err)
		}
	}
	if p.asm.g == nil {
		return nil, fmt.Errorf("%s:1:1: no graph: want a line that starts with graph", name)
	}
	return p.asm.g, nil
}

// parser reads the lines of a graph.
type parser struct{ asm assembler }

func (p *parser) line(s *scanner) error {
	switch {
	case p.asm.g == nil:
		return p.header(s)
	case s.next() == '%':
		return p.node(s)
	}
	start := s.at
	switch s.bare() {
	case "output":
		name, err := s.quoted()
		if err != nil {
			return err
		}
		v, err := p.value(s)
		if err != nil {
			return err
		}
		p.asm.g.Outputs = append(p.asm.g.Outputs, Output{name, v})
	case "update":
		param, err := p.value(s)
		if err != nil {
			return err
		}
		if !s.eat("<-") {
			return fmt.Errorf("want <- between the parameter and its new value")
		}
		v, err := p.value(s)
		if err != nil {
			return err
		}
		p.asm.g.Updates = append(p.asm.g.Updates, StateUpdate{param, v})
	default:
		s.at = start
		return fmt.Errorf("want %%id, output or update")
	}
	return s.end()
}

// header reads: graph name mesh(dp=2, mb=2/3t).
func (p *parser) header(s *scanner) error {
	if s.bare() != "graph" {
		return fmt.Errorf("want graph and its name")
	}
	name, err := s.word()
	if err != nil {
		return fmt.Errorf("name of the graph: %w", err)
	}
	var mesh Mesh
	at := s.at
	if s.eat("mesh") {
		if mesh, err = s.mesh(); err != nil {
			return err
		}
	}
	if err := s.end(); err != nil {
		return err
	}
	if p.asm, err = newAssembler(name, mesh); err != nil {
		s.at = at + 1 // the mesh
	}
	return err
}

func (p *parser) value(s *scanner) (*Value, error) {
	id, err := s.valueID()
	if err != nil {
		return nil, err
	}
	return p.asm.value(id)
}

// node reads: %9, %10 = op %1 %2 "name" {attr} types specs phase stage=1 // pos.
func (p *parser) node(s *scanner) error {
	var d nodeDecl
	ids, err := list(s, s.valueID)
	if err != nil {
		return err
	}
	d.results = make([]resultDecl, len(ids))
	for i, id := range ids {
		d.results[i].id = id
	}
	if !s.eat("=") {
		return fmt.Errorf("want = after the results")
	}
	s.space()
	at := s.at
	if d.op, err = ParseOp(s.bare()); err != nil {
		s.at = at
		return err
	}
	for s.next() == '%' {
		id, err := s.valueID()
		if err != nil {
			return err
		}
		d.args = append(d.args, id)
	}
	if s.next() == '"' {
		d.named = true
		if d.name, err = s.quoted(); err != nil {
			return err
		}
	}
	if d.attr, err = s.attr(d.op); err != nil {
		return err
	}
	if err := p.typesAndSpecs(s, &d); err != nil {
		return err
	}
	if c := s.next(); c >= 'a' && c <= 'z' && !s.sees("stage=") {
		start := s.at
		if d.phase, err = parsePhase(s.bare()); err != nil {
			s.at = start
			return err
		}
	}
	if s.eat("stage=") {
		if d.stage, err = s.integer(); err != nil {
			return err
		}
	}
	if d.pos, err = s.comment(); err != nil {
		return err
	}
	if err = p.asm.node(d); err != nil {
		s.at = at // the op
	}
	return err
}

func (p *parser) typesAndSpecs(s *scanner, d *nodeDecl) error {
	if s.seesType() {
		types, err := list(s, s.typ)
		if err != nil {
			return err
		}
		if len(types) != len(d.results) {
			return fmt.Errorf("%d types for %d results", len(types), len(d.results))
		}
		for i := range types {
			d.results[i].typ = &types[i]
		}
	}
	if s.next() == '[' {
		specs, err := list(s, s.spec)
		if err != nil {
			return err
		}
		if len(specs) != len(d.results) {
			return fmt.Errorf("%d specs for %d results", len(specs), len(d.results))
		}
		for i := range specs {
			d.results[i].spec = specs[i]
		}
	}
	return nil
}

// list reads one or more items between commas.
func list[T any](s *scanner, item func() (T, error)) ([]T, error) {
	var out []T
	for {
		x, err := item()
		if err != nil {
			return nil, err
		}
		out = append(out, x)
		if !s.eat(",") {
			return out, nil
		}
	}
}

// parseType is the inverse of [Type.String].
func parseType(text string) (Type, error) {
	s := &scanner{text: text}
	t, err := s.typ()
	if err == nil && !s.done() {
		err = fmt.Errorf("%q after the type", s.rest())
	}
	if err != nil {
		return Type{}, fmt.Errorf("ir: type %q: %w", text, err)
	}
	return t, nil
}
