package runtime

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/half"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/partition"
)

// Shard is the part of a parameter (a weight or optimizer state) that one rank
// holds. Ranks may hold the same part.
type Shard struct {
	Rank int
	Name string // base name
	Type ir.Type
	Attr ir.ParamAttr
	Slab ir.Slab

	space  Space
	offset int64
}

// Bytes returns the size of the part.
func (s Shard) Bytes() int64 { return s.Slab.Elems() * s.Type.DType.Size() }

// Shards lists what a rank holds of a loaded program's parameters, in graph
// order.
func (e *Executor) Shards(prog *codegen.Program, rank int) []Shard {
	s := &prog.Schedules[rank]
	stage := prog.Stages[s.Stage]
	var shards []Shard
	for _, v := range prog.Graph.Params() {
		if v.Def.Stage != s.Stage {
			continue
		}
		name := partition.BaseName(v.Def.Name)
		attr, _ := v.Def.Attr.(ir.ParamAttr)
		shards = append(shards, Shard{
			Rank: rank, Name: name, Type: v.Type, Attr: attr, Slab: prog.Slab(v, s.Coord),
			space: spaceOf(stage, stage.Params[name]), offset: stage.Offset(stage.Params[name], 0),
		})
	}
	return shards
}

// ReadShard copies a shard to dst, in the byte order of the machine.
func (e *Executor) ReadShard(s Shard, dst []byte) error {
	return e.access(s, len(dst), func(d Device) error { return d.Download(dst, s.space, s.offset) })
}

// WriteShard replaces a shard by src.
func (e *Executor) WriteShard(s Shard, src []byte) error {
	return e.access(s, len(src), func(d Device) error { return d.Upload(s.space, s.offset, src) })
}

func (e *Executor) access(s Shard, bytes int, copy func(Device) error) error {
	if int64(bytes) != s.Bytes() {
		return fmt.Errorf("runtime: %s on rank %d has %d bytes, not %d", s.Name, s.Rank, s.Bytes(), bytes)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.failure(); err != nil {
		return err
	}
	if err := copy(e.ranks[s.Rank].device); err != nil {
		return fmt.Errorf("runtime: %s on rank %d: %w", s.Name, s.Rank, err)
	}
	return nil
}

// InitParams gives every parameter of a program its initial value. Each rank
// draws the part it holds, by position: the whole is the same however it is cut.
func (e *Executor) InitParams(prog *codegen.Program, seed uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.ready(prog); err != nil {
		return err
	}
	return e.runAll(job{do: func(r *rank) error {
		var buf []float32
		for _, s := range e.Shards(prog, r.id) {
			var bytes []byte
			buf, bytes = s.initial(buf, seed)
			if err := r.device.Upload(s.space, s.offset, bytes); err != nil {
				return fmt.Errorf("initial value of %s: %w", s.Name, err)
			}
			r.place.Add(1) // progress
		}
		return nil
	}})
}

// encode returns the bytes of x as elements of a floating-point type, in place.
func encode(d ir.DType, x []float32) []byte {
	b := floatBytes(x)
	if !d.Half() {
		return b
	}
	round := half.BF16
	if d == ir.F16 {
		round = half.F16
	}
	for i, v := range x { // element i is read before its bytes, and those before, are written
		binary.NativeEndian.PutUint16(b[2*i:], round(v))
	}
	return b[:2*len(x)]
}

// Initial returns the initial value of the part, in the byte order of the machine.
func (s Shard) Initial(seed uint64) []byte {
	_, bytes := s.initial(nil, seed)
	return bytes
}

// initial makes the initial value in a buffer, which it returns for the next.
func (s Shard) initial(buf []float32, seed uint64) ([]float32, []byte) {
	n := int(s.Slab.Elems())
	buf = slices.Grow(buf[:0], n)
	s.fill(buf[:n], seed)
	return buf, encode(s.Type.DType, buf[:n])
}

// fill writes the initial value of a shard to dst.
func (s Shard) fill(dst []float32, seed uint64) {
	switch s.Attr.Init {
	case ir.InitZeros:
		clear(dst)
	case ir.InitOnes:
		for i := range dst {
			dst[i] = 1
		}
	case ir.InitConstant:
		for i := range dst {
			dst[i] = float32(s.Attr.Value)
		}
	case ir.InitNormal:
		name := s.Name
		if s.Attr.Master != "" {
			name = s.Attr.Master
		}
		key := philox.Key{Seed: seed, Op: philox.OpKey(name)}
		run := 1 // elements that lie together in the whole, too
		if d := len(s.Slab.Local); d > 0 {
			run = s.Slab.Local[d-1]
		}
		for i := 0; i < len(dst); i += run {
			key.FillNormal(dst[i:i+run], globalIndex(s.Slab, i), 0, s.Attr.Std)
		}
	default:
		panic(fmt.Sprintf("BUG: runtime: %s: unknown initial distribution %d", s.Name, s.Attr.Init))
	}
}

// globalIndex returns the row-major index in the whole of local element i.
func globalIndex(s ir.Slab, i int) uint64 {
	at, stride := uint64(0), uint64(1)
	for d := len(s.Local) - 1; d >= 0; d-- {
		at += uint64(s.Offset[d]+i%s.Local[d]) * stride
		stride *= uint64(s.Global[d])
		i /= s.Local[d]
	}
	return at
}
