package ir

import (
	"encoding/binary"
	"sync"
)

// resolver resolves the signatures of the nodes of a graph and of its clones, and caches them. The blocks of a model
// are alike, so nearly every node has the op, the attributes and the operand types of an earlier one. The zero
// resolver is ready for use.
type resolver struct {
	mu    sync.Mutex // clones of one graph may be rewritten at the same time
	known map[resolverKey]*resolution
	types []byte
}

// resolverKey is all that a signature depends on.
type resolverKey struct {
	op    Op
	attr  Attr // nil for attributes that dimensions and types do not depend on
	types string
}

// resolution is a signature and the result types that it infers. Both are shared: read only.
type resolution struct {
	sig     *Signature
	results []Type
}

// resolve is [Resolve] for the given operands.
func (r *resolver) resolve(op Op, attr Attr, args []*Value) (*resolution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.types = r.types[:0]
	for _, a := range args {
		r.types = append(r.types, byte(a.Type.DType))
		r.types = binary.AppendUvarint(r.types, uint64(len(a.Type.Shape)))
		for _, s := range a.Type.Shape {
			r.types = binary.AppendVarint(r.types, int64(s))
		}
	}
	shape := shapeAttr(attr)
	if known, ok := r.known[resolverKey{op, shape, string(r.types)}]; ok {
		return known, nil
	}
	types := make([]Type, len(args))
	for i, a := range args {
		types[i] = a.Type
	}
	sig, err := Resolve(op, attr, types)
	if err != nil {
		return nil, err
	}
	found := &resolution{sig: sig, results: types}
	if op.Class() != Comm {
		found.results = sig.resultTypes()
	}
	if r.known == nil {
		r.known = map[resolverKey]*resolution{}
	}
	r.known[resolverKey{op, shape, string(r.types)}] = found
	return found, nil
}

// shapeAttr returns attr if [Resolve] depends on it, else nil.
func shapeAttr(attr Attr) Attr {
	switch a := attr.(type) {
	case MatMulAttr, SumToAttr, EmbeddingGradAttr, LayerNormAttr, RMSNormAttr, CastAttr, RoPEAttr:
		return attr
	case RowsAttr:
		return RowsAttr{Parts: a.Parts}
	case DropoutAttr:
		if a.Parts > 0 {
			return DropoutAttr{Parts: a.Parts}
		}
	}
	return nil
}
