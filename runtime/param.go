// This file reads, writes and initializes parameters in the arenas. Package train uses it to load
// weights and to save checkpoints.

package runtime

import (
	"encoding/binary"
	"fmt"
	goruntime "runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/half"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/partition"
)

// Shard is the part of a parameter (a weight or optimizer state) that one rank holds. Several ranks
// may hold the same part.
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

// Shards lists the parts of a program's parameters that a rank holds, in graph order.
func Shards(prog *codegen.Program, rank int) []Shard {
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
	r := e.local(s.Rank)
	if r == nil {
		return fmt.Errorf("runtime: %s is asked of rank %d, which is in another process", s.Name, s.Rank)
	}
	if err := copy(r.device); err != nil {
		return fmt.Errorf("runtime: %s on rank %d: %w", s.Name, s.Rank, err)
	}
	return nil
}

// InitParams gives every parameter of a program its initial value. Random values are functions of
// the position in the whole parameter (package philox), so they do not depend on how it is cut.
func (e *Executor) InitParams(prog *codegen.Program, seed uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.ready(prog); err != nil {
		return err
	}
	return e.runAll(job{do: func(r *rank) error {
		blocks := make([][]float32, goruntime.GOMAXPROCS(0)) // one for each processor
		for _, s := range Shards(prog, r.id) {
			elems := int(s.Slab.Elems())
			for first := 0; first < elems; first += len(blocks) * initBlock {
				ends := min(elems, first+len(blocks)*initBlock)
				var filling errgroup.Group
				for i, at := 0, first; at < ends; i, at = i+1, at+initBlock {
					filling.Go(func() (err error) {
						defer func() {
							if x := recover(); x != nil {
								err = Panicked(x)
							}
						}()
						blocks[i] = slices.Grow(blocks[i][:0], initBlock)[:min(initBlock, ends-at)]
						s.fill(blocks[i], at, seed)
						return nil
					})
				}
				if err := filling.Wait(); err != nil {
					return err
				}
				for i, at := 0, first; at < ends; i, at = i+1, at+initBlock {
					if err := r.device.Upload(s.space, s.offset+int64(at)*s.Type.DType.Size(), encode(s.Type.DType, blocks[i])); err != nil {
						return fmt.Errorf("initial value of %s: %w", s.Name, err)
					}
					r.place.Add(1) // counts as progress for the watch in runAll
				}
			}
		}
		return nil
	}})
}

// initBlock is how many elements get their initial values at a time.
const initBlock = 1 << 16

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
	for i, v := range x { // element i is read before its bytes and earlier ones are overwritten
		binary.NativeEndian.PutUint16(b[2*i:], round(v))
	}
	return b[:2*len(x)]
}

// Initial returns the initial value of the part, in the byte order of the machine.
func (s Shard) Initial(seed uint64) []byte {
	x := make([]float32, s.Slab.Elems())
	s.fill(x, 0, seed)
	return encode(s.Type.DType, x)
}

// fill writes the initial values of elements [at, at+len(dst)) of the shard to dst.
func (s Shard) fill(dst []float32, at int, seed uint64) {
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
		run := 1 // length of runs of elements that are also contiguous in the whole parameter
		if d := len(s.Slab.Local); d > 0 {
			run = s.Slab.Local[d-1]
		}
		for i := 0; i < len(dst); {
			n := min(run-(at+i)%run, len(dst)-i)
			key.FillNormal(dst[i:i+n], uint64(s.Slab.GlobalIndex(at+i)), 0, s.Attr.Std)
			i += n
		}
	default:
		panic(fmt.Sprintf("BUG: runtime: %s: unknown initial distribution %d", s.Name, s.Attr.Init))
	}
}
