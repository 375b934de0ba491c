// Package pickle reads Python's pickles as data. It does not look up what a file names, and does
// not call what it calls, but keeps an [Object] that describes the call. So no file can make it run
// anything.
//
// Memory is proportional to the input, and there is no recursion. Values refer to each other as the
// file says, possibly in cycles. So do not walk them to any depth, or print them with %v;
// [Describe] is for errors.
package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// The types of values. None is nil; bool, int64, float64 and string are themselves.
type (
	// Dict is a dict or OrderedDict. Only pairs with an int or a str as key are kept.
	Dict map[any]any
	// List is a list or a set.
	List struct{ Items []any }
	// Tuple is a tuple or a frozenset.
	Tuple []any
	// Global is the name of a class or function, with its module.
	Global string
	// Object is what Func would return for Args. Later changes to it are dropped. Bytes, and
	// integers of more than 64 bits, are objects too, without their contents.
	Object struct {
		Func Global // "" if the callee is not a name
		Args Tuple
	}
	// Persistent is an object that the writer stores elsewhere, under the given id.
	Persistent struct{ ID any }
)

// maxName bounds the names of classes, and the keys of dicts. A long text may be in a file once and
// be used many times; building a name or looking up a key must not take time proportional to its
// length each time.
const maxName = 1000

// mark is the stack's MARK object.
type mark struct{}

func isMark(v any) bool {
	_, is := v.(mark)
	return is
}

// The opcodes of pickletools.py that picklers of protocols 2 to 5 write, except those of
// extensions, of out-of-band buffers, and of tuples that contain themselves.
const (
	opMark            = '('
	opStop            = '.'
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinInt          = 'J' // int32
	opBinInt1         = 'K' // uint8
	opBinInt2         = 'M' // uint16
	opLong1           = 0x8a
	opLong4           = 0x8b
	opBinFloat        = 'G' // big-endian
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
	opBinUnicode8     = 0x8d
	opShortBinBytes   = 'C'
	opBinBytes        = 'B'
	opBinBytes8       = 0x8e
	opByteArray8      = 0x96
	opEmptyTuple      = ')'
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opTuple           = 't'
	opEmptyList       = ']'
	opAppend          = 'a'
	opAppends         = 'e'
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opEmptyDict       = '}'
	opSetItem         = 's'
	opSetItems        = 'u'
	opGlobal          = 'c' // two lines
	opStackGlobal     = 0x93
	opReduce          = 'R'
	opNewObj          = 0x81
	opNewObjEx        = 0x92
	opBuild           = 'b'
	opBinPersID       = 'Q'
	opBinGet          = 'h' // uint8 index
	opLongBinGet      = 'j' // uint32 index
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opMemoize         = 0x94
	opProto           = 0x80 // uint8 version
	opFrame           = 0x95 // uint64 length
)

// Read reads the value at the beginning of b.
func Read(b []byte) (any, error) {
	r := reader{text: b, memo: map[uint64]any{}}
	for {
		at := r.pos
		op := r.uint(1)
		if r.err != nil {
			return nil, r.err
		}
		if op == opStop {
			break
		}
		if r.step(op); r.err != nil {
			return nil, fmt.Errorf("pickle opcode 0x%02x at byte %d: %w", op, at, r.err)
		}
	}
	if len(r.stack) != 1 {
		return nil, fmt.Errorf("pickle ends with %d values, want 1", len(r.stack))
	}
	v := r.pop()
	return v, r.err
}

// Describe describes a value in a few words.
func Describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return strconv.Quote(short(v))
	case Dict:
		return "a dict"
	case *List:
		return "a list"
	case Tuple:
		return "a tuple"
	case Global:
		return short(string(v))
	case *Object:
		if v.Func == "" {
			return "an object"
		}
		return "what " + short(string(v.Func)) + " makes"
	case Persistent:
		return "a storage"
	}
	return fmt.Sprint(v)
}

// short cuts a text to a length that fits in an error.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// A reader is a stack machine. After an error it continues with zero values until the end of the
// step.
type reader struct {
	text  []byte
	pos   int
	stack []any
	memo  map[uint64]any
	err   error
}

func (r *reader) step(op uint64) {
	switch op {
	case opProto:
		if v := r.uint(1); v < 2 || v > 5 {
			r.fail(fmt.Errorf("protocol %d is not 2 to 5", v))
		}
	case opFrame:
		r.take(8)
	case opMark:
		r.push(mark{})
	case opNone:
		r.push(nil)
	case opNewTrue, opNewFalse:
		r.push(op == opNewTrue)
	case opBinInt1:
		r.push(int64(r.uint(1)))
	case opBinInt2:
		r.push(int64(r.uint(2)))
	case opBinInt:
		r.push(int64(int32(r.uint(4))))
	case opLong1:
		r.long(r.uint(1))
	case opLong4:
		r.long(r.uint(4))
	case opBinFloat:
		r.push(r.float())
	case opShortBinUnicode:
		r.string(r.uint(1))
	case opBinUnicode:
		r.string(r.uint(4))
	case opBinUnicode8:
		r.string(r.uint(8))
	case opShortBinBytes:
		r.bytes(r.uint(1))
	case opBinBytes:
		r.bytes(r.uint(4))
	case opBinBytes8, opByteArray8:
		r.bytes(r.uint(8))
	case opBinGet:
		r.get(r.uint(1))
	case opLongBinGet:
		r.get(r.uint(4))
	case opBinPut:
		r.put(r.uint(1))
	case opLongBinPut:
		r.put(r.uint(4))
	case opMemoize:
		r.put(uint64(len(r.memo)))
	default:
		r.build(op)
	}
}

// build runs the opcodes that make a value from those on the stack.
func (r *reader) build(op uint64) {
	switch op {
	case opEmptyTuple:
		r.push(Tuple{})
	case opTuple1, opTuple2, opTuple3:
		r.push(Tuple(r.popN(int(op - opTuple1 + 1))))
	case opTuple, opFrozenSet:
		r.push(Tuple(r.popMark()))
	case opEmptyList, opEmptySet:
		r.push(&List{})
	case opEmptyDict:
		r.push(Dict{})
	case opAppend:
		r.extend(r.popN(1))
	case opAppends, opAddItems:
		r.extend(r.popMark())
	case opSetItem:
		r.setItems(r.popN(2))
	case opSetItems:
		r.setItems(r.popMark())
	case opGlobal:
		module, name := r.line(), r.line()
		r.global(module, name)
	case opStackGlobal:
		parts := r.popN(2)
		module, ok1 := parts[0].(string)
		name, ok2 := parts[1].(string)
		if !ok1 || !ok2 {
			r.fail(errors.New("a name is no str"))
		}
		r.global(module, name)
	case opReduce, opNewObj:
		r.call(r.popN(2))
	case opNewObjEx:
		r.call(r.popN(3))
	case opBuild:
		r.pop()
		r.top()
	case opBinPersID:
		r.push(Persistent{r.pop()})
	default:
		r.fail(errors.New("refused: data needs no such thing"))
	}
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) push(v any) { r.stack = append(r.stack, v) }

func (r *reader) pop() any { return r.popN(1)[0] }

// popN pops n values, which are nil if there are fewer above the last mark.
func (r *reader) popN(n int) []any {
	out := make([]any, n)
	first := len(r.stack) - n
	if first < 0 || slices.ContainsFunc(r.stack[first:], isMark) {
		r.fail(fmt.Errorf("not %d values on the stack", n))
		return out
	}
	copy(out, r.stack[first:])
	r.stack = r.stack[:first]
	return out
}

// popMark pops the last mark and returns what was above it.
func (r *reader) popMark() []any {
	for i := len(r.stack) - 1; i >= 0; i-- {
		if isMark(r.stack[i]) {
			out := append([]any{}, r.stack[i+1:]...)
			r.stack = r.stack[:i]
			return out
		}
	}
	r.fail(errors.New("no mark on the stack"))
	return nil
}

// top returns the last value without popping it.
func (r *reader) top() any {
	v := r.pop()
	r.push(v)
	return v
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.text)-r.pos) {
		r.fail(fmt.Errorf("pickle of %d bytes is cut short", len(r.text)))
		return nil
	}
	s := r.text[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return s
}

// uint reads a little-endian number of n <= 8 bytes.
func (r *reader) uint(n uint64) uint64 {
	var word [8]byte
	copy(word[:], r.take(n))
	return binary.LittleEndian.Uint64(word[:])
}

// long pushes an integer in two's complement of n bytes.
func (r *reader) long(n uint64) {
	if n > 8 {
		r.take(n)
		r.push(&Object{Func: "int"})
		return
	}
	shift := 64 - 8*n // a shift by 64 gives zero
	r.push(int64(r.uint(n)<<shift) >> shift)
}

func (r *reader) float() float64 {
	var word [8]byte
	copy(word[:], r.take(8))
	return math.Float64frombits(binary.BigEndian.Uint64(word[:]))
}

func (r *reader) string(n uint64) {
	s := r.take(n)
	if !utf8.Valid(s) {
		r.fail(fmt.Errorf("string %q is not valid UTF-8", short(string(s))))
	}
	r.push(string(s))
}

func (r *reader) bytes(n uint64) {
	r.take(n)
	r.push(&Object{Func: "bytes"})
}

// line reads up to the next line break.
func (r *reader) line() string {
	n := bytes.IndexByte(r.text[r.pos:], '\n')
	if n < 0 {
		n = len(r.text) // more than there is, which is an error
	}
	s := string(r.take(uint64(n)))
	r.take(1)
	return s
}

func (r *reader) get(i uint64) {
	v, ok := r.memo[i]
	if !ok {
		r.fail(fmt.Errorf("nothing is stored at index %d", i))
	}
	r.push(v)
}

func (r *reader) put(i uint64) { r.memo[i] = r.top() }

// global pushes a name.
func (r *reader) global(module, name string) {
	if len(module)+len(name) > maxName {
		r.fail(fmt.Errorf("a name of %d bytes", len(module)+len(name)))
		return
	}
	r.push(Global(module + "." + name))
}

// call pushes what a function, parts[0], would return for a tuple of arguments, parts[1].
func (r *reader) call(parts []any) {
	f, _ := parts[0].(Global)
	args, ok := parts[1].(Tuple)
	if !ok {
		r.fail(errors.New("arguments are no tuple"))
	}
	if f == "collections.OrderedDict" && len(args) == 0 {
		r.push(Dict{})
		return
	}
	r.push(&Object{Func: f, Args: args})
}

// extend appends items to the list on top of the stack.
func (r *reader) extend(items []any) {
	switch to := r.top().(type) {
	case *List:
		to.Items = append(to.Items, items...)
	case *Object:
	default:
		r.fail(errors.New("the target is not a list"))
	}
}

// setItems adds alternating keys and values to the dict on top of the stack.
func (r *reader) setItems(pairs []any) {
	if len(pairs)%2 != 0 {
		r.fail(fmt.Errorf("%d keys and values are no pairs", len(pairs)))
		return
	}
	switch to := r.top().(type) {
	case Dict:
		for i := 0; i < len(pairs); i += 2 {
			switch key := pairs[i].(type) {
			case int64:
				to[key] = pairs[i+1]
			case string:
				if len(key) > maxName {
					r.fail(fmt.Errorf("a key of %d bytes", len(key)))
					return
				}
				to[key] = pairs[i+1]
			}
		}
	case *Object:
	default:
		r.fail(errors.New("the target is not a dict"))
	}
}
