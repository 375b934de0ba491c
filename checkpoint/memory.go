package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"slices"

	"github.com/autopar/autopar/ir"
)

// Memory has room for one snapshot of what the ranks of this process hold. A run copies its state
// there and goes on while the copy is written to disk.
//
// The room may be a file in memory that the launcher keeps ([launch.Place.Memory]). Then it
// outlives the process, and holds all that the process's ranks hold, so that the process that is
// started in its place can continue from it. Otherwise it is memory of this process, and holds only
// what this process writes to disk: of parts that several ranks hold, one.
//
// The room begins with a seal, which is open while a snapshot is copied in. If the process is
// killed then, the memory is of no use, but the previous snapshot is on disk: a [Background] writes
// one before it takes the next.
type Memory struct {
	file  *os.File
	bytes []byte // mapped
	err   error  // the error of mapping the file
}

// NewMemory returns room in a file that only this process writes to, or if file is nil in memory of
// this process. What an earlier process left in the file is kept.
func NewMemory(file *os.File) *Memory {
	m := &Memory{file: file}
	if file == nil {
		return m
	}
	info, err := file.Stat()
	if err == nil && info.Size() > 0 {
		err = m.room(info.Size())
	}
	m.err = err
	return m
}

// Close unmaps the memory. A file keeps its contents.
func (m *Memory) Close() error {
	if m.bytes == nil {
		return nil
	}
	memory := m.bytes
	m.bytes = nil
	return unmapMemory(memory)
}

// room makes the memory at least n bytes long. It does not keep the contents.
func (m *Memory) room(n int64) error {
	if int64(len(m.bytes)) >= n {
		return nil
	}
	if err := m.Close(); err != nil {
		return err
	}
	memory, err := mapMemory(m.file, n)
	if err != nil {
		return fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	m.bytes = memory
	return nil
}

// The seal is four words: whether it is closed, offset and length of the head (which describes the
// snapshot), and the head's checksum.
const (
	sealWord  = 0x315241504f545541 // "AUTOPAR1"
	openWord  = 0x305241504f545541 // "AUTOPAR0": a snapshot is being copied in
	sealBytes = 4 * 8
)

// head describes a snapshot in memory.
type head struct {
	Step     int
	BestVal  *float32
	BestStep int
	Config   string
	Plan     json.RawMessage
	Data     map[string]string
	Parts    []heldPart
}

// heldPart is a shard in the memory.
type heldPart struct {
	Rank   int
	Name   string
	DType  string
	Slab   ir.Slab
	At     int64  // bytes from the start of the memory
	CRC32C uint32 // of its bytes
}

func (p heldPart) size() int64 {
	dtype, err := ir.ParseDType(p.DType)
	if err != nil {
		return -1
	}
	return p.Slab.Elems() * dtype.Size()
}

// parts returns the shards of a snapshot that this process keeps.
func (m *Memory) parts(s Snapshot) (parts []Shard, err error) {
	here := func(rank int) bool { return s.Peers == nil || rank == s.Peers.Rank() }
	if m.file == nil {
		saved, err := (&Manifest{}).assign(s.Shards)
		if err != nil {
			return nil, err
		}
		for _, file := range slices.Sorted(maps.Keys(saved)) {
			if here(saved[file][0].Rank) {
				parts = append(parts, saved[file]...)
			}
		}
	} else {
		for _, x := range s.Shards {
			if here(x.Rank) {
				parts = append(parts, x)
			}
		}
	}
	return parts, nil
}

// layout says where the parts of a snapshot go, and how many bytes all takes, without the slack.
func (m *Memory) layout(s Snapshot) (h head, parts []Shard, total int64, err error) {
	parts, err = m.parts(s)
	if err != nil {
		return head{}, nil, 0, err
	}
	h = head{Step: s.Step, BestVal: s.BestVal, BestStep: s.BestStep, Config: s.Config, Plan: s.Plan, Data: s.Data}
	at := int64(sealBytes)
	for _, x := range parts {
		h.Parts = append(h.Parts, heldPart{Rank: x.Rank, Name: x.Name, DType: x.Type.DType.String(), Slab: x.Slab, At: at})
		at += x.Slab.Elems() * x.Type.DType.Size()
	}
	text, err := json.Marshal(h)
	return h, parts, at + int64(len(text)) + 10*int64(len(parts)), err
}

// slack leaves room for the digits of a step and a loss, which the head does not have yet when
// memory is reserved. layout adds ten bytes per part for its checksum.
const slack = 256

// Reserve allocates the memory for snapshots like this one in advance, so that the first one does
// not wait for it, and returns its bytes.
func (m *Memory) Reserve(s Snapshot) (int64, error) {
	_, _, total, err := m.layout(s)
	if err != nil {
		return 0, err
	}
	total += slack
	return total, m.room(total)
}

// Missing returns how many more bytes of memory [Memory.Reserve] would take.
func (m *Memory) Missing(s Snapshot) (int64, error) {
	_, _, total, err := m.layout(s)
	return max(0, total+slack-int64(len(m.bytes))), err
}

// hold copies a snapshot and returns it with the copy in place of what the ranks hold. The previous
// contents are lost, even after an error.
func (m *Memory) hold(s Snapshot) (Snapshot, error) {
	h, parts, total, err := m.layout(s)
	if err != nil {
		return Snapshot{}, err
	}
	if err := m.room(total); err != nil {
		return Snapshot{}, err
	}
	binary.NativeEndian.PutUint64(m.bytes, openWord)
	at := int64(sealBytes)
	for i, x := range parts {
		p := &h.Parts[i]
		at += p.size()
		part := m.bytes[p.At : p.At+p.size()]
		if err := x.Read(part); err != nil {
			return Snapshot{}, fmt.Errorf("reading %s on rank %d: %w", x.Name, x.Rank, err)
		}
		if m.file != nil {
			p.CRC32C = checksum(part)
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return Snapshot{}, err
	}
	copy(m.bytes[at:], text)
	words := []uint64{sealWord, uint64(at), uint64(len(text)), uint64(checksum(text))}
	for i := len(words) - 1; i >= 0; i-- { // the word that closes the seal comes last
		binary.NativeEndian.PutUint64(m.bytes[8*i:], words[i])
	}
	return m.replace(s, &h), nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// replace returns a snapshot whose shards are read from the memory as far as it has them.
func (m *Memory) replace(s Snapshot, h *head) Snapshot {
	type key struct {
		rank int
		name string
	}
	held := map[key]heldPart{}
	for _, p := range h.Parts {
		held[key{p.Rank, p.Name}] = p
	}
	s.Shards = slices.Clone(s.Shards)
	for i := range s.Shards {
		x := &s.Shards[i]
		if p, ok := held[key{x.Rank, x.Name}]; ok {
			x.Read = func(dst []byte) error { copy(dst, m.bytes[p.At:p.At+p.size()]); return nil }
		}
	}
	return s
}

func (h *head) find(rank int, name string) *heldPart {
	i := slices.IndexFunc(h.Parts, func(p heldPart) bool { return p.Rank == rank && p.Name == name })
	if i < 0 {
		return nil
	}
	return &h.Parts[i]
}

// Held is a complete snapshot that an earlier process left in the memory.
type Held struct {
	head
	memory *Memory
}

// Held returns the snapshot that was left, or nil if there is none. An error says what is wrong
// with it: its process was killed while it was copied, or it is damaged.
func (m *Memory) Held() (*Held, error) {
	switch {
	case m.err != nil:
		return nil, m.err
	case len(m.bytes) == 0:
		return nil, nil
	case len(m.bytes) < sealBytes:
		return nil, fmt.Errorf("%d bytes are no snapshot", len(m.bytes))
	}
	var words [sealBytes / 8]uint64
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(m.bytes[8*i:])
	}
	size, at, n := uint64(len(m.bytes)), words[1], words[2]
	switch {
	case words[0] == 0: // reserved and never used
		return nil, nil
	case words[0] == openWord:
		return nil, errors.New("its process ended while it was copied")
	case words[0] != sealWord:
		return nil, fmt.Errorf("it begins with %#016x, which is no snapshot", words[0])
	case at > size || n > size-at:
		return nil, fmt.Errorf("its description, %d bytes at %d, is not in its %d bytes", n, at, size)
	}
	text := m.bytes[at : at+n]
	if sum := uint64(checksum(text)); sum != words[3] {
		return nil, fmt.Errorf("its description has checksum %08x, want %08x", sum, words[3])
	}
	held := &Held{memory: m}
	if err := json.Unmarshal(text, &held.head); err != nil {
		return nil, fmt.Errorf("its description: %w", err)
	}
	for _, p := range held.Parts {
		n := p.size()
		if n < 0 || p.At < 0 || p.At > int64(at)-n {
			return nil, fmt.Errorf("%s of rank %d, %d bytes at %d, is not in its %d bytes", p.Name, p.Rank, n, p.At, at)
		}
		if sum := checksum(m.bytes[p.At : p.At+n]); sum != p.CRC32C {
			return nil, fmt.Errorf("%s of rank %d has checksum %08x, want %08x", p.Name, p.Rank, sum, p.CRC32C)
		}
	}
	return held, nil
}

// Fits reports whether the held snapshot has the parts of s that this process keeps, and the same
// configuration, plan and data.
func (h *Held) Fits(s Snapshot) bool {
	parts, err := h.memory.parts(s)
	return err == nil && h.Config == s.Config && maps.Equal(h.Data, s.Data) && bytes.Equal(h.Plan, s.Plan) && len(parts) == len(h.Parts) &&
		!slices.ContainsFunc(parts, func(x Shard) bool {
			p := h.find(x.Rank, x.Name)
			return p == nil || p.DType != x.Type.DType.String() || !sameSlab(p.Slab, x.Slab)
		})
}

func sameSlab(a, b ir.Slab) bool {
	return slices.Equal(a.Global, b.Global) && slices.Equal(a.Offset, b.Offset) && slices.Equal(a.Local, b.Local)
}

// snapshot returns s with the contents of the held snapshot, which must fit.
func (h *Held) snapshot(s Snapshot) Snapshot {
	s.Step, s.BestVal, s.BestStep = h.Step, h.BestVal, h.BestStep
	return h.memory.replace(s, &h.head)
}

// Read implements [Reader] for exactly the parts of this process's ranks.
func (h *Held) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	for i := range h.Parts {
		p := &h.Parts[i]
		if p.Name == name && p.DType == dtype.String() && sameSlab(p.Slab, slab) && p.size() == int64(len(dst)) {
			copy(dst, h.memory.bytes[p.At:])
			return nil
		}
	}
	return errorf("memory", name, "has no part of type %s at %v of shape %v", dtype, slab.Offset, slab.Local)
}
