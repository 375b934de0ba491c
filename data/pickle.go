package data

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// The opcodes of Python's pickle format (pickletools.py) that a dictionary of
// strings and small integers needs, in protocols 2 to 5.
const (
	opMark            = '('
	opStop            = '.'
	opBinInt          = 'J' // int32
	opBinInt1         = 'K' // uint8
	opBinInt2         = 'M' // uint16
	opBinUnicode      = 'X' // uint32 length
	opEmptyDict       = '}'
	opBinGet          = 'h' // uint8 index
	opLongBinGet      = 'j' // uint32 index
	opBinPut          = 'q' // uint8 index
	opLongBinPut      = 'r' // uint32 index
	opSetItem         = 's'
	opSetItems        = 'u'
	opProto           = 0x80 // uint8 version
	opShortBinUnicode = 0x8c // uint8 length
	opMemoize         = 0x94
	opFrame           = 0x95 // uint64 length
)

// pickleDict is a Python dictionary. Keys are int64 or string; values too, or
// pickleDict.
type pickleDict map[any]any

// pickleMark is the stack's MARK object.
type pickleMark struct{}

// readPickle reads a pickled dictionary. It knows no opcode that names or calls
// anything, so no file can make it run code, and its memory is proportional to
// the input.
func readPickle(b []byte) (pickleDict, error) {
	r := pickleReader{b: b, memo: map[uint32]any{}}
	for {
		at := r.pos
		op, err := r.take(1)
		if err != nil {
			return nil, err
		}
		if op[0] == opStop {
			break
		}
		if err := r.step(op[0]); err != nil {
			return nil, fmt.Errorf("pickle opcode 0x%02x at byte %d: %w", op[0], at, err)
		}
	}
	if len(r.stack) != 1 {
		return nil, fmt.Errorf("pickle ends with %d values, want 1", len(r.stack))
	}
	d, ok := r.stack[0].(pickleDict)
	if !ok {
		return nil, fmt.Errorf("pickle is not a dict")
	}
	return d, nil
}

type pickleReader struct {
	b     []byte
	pos   int
	stack []any
	memo  map[uint32]any
}

func (r *pickleReader) step(op byte) error {
	switch op {
	case opProto:
		v, err := r.uint(1)
		if err == nil && (v < 2 || v > 5) {
			err = fmt.Errorf("protocol %d is not 2 to 5", v)
		}
		return err
	case opFrame:
		_, err := r.take(8)
		return err
	case opMark:
		r.push(pickleMark{})
	case opEmptyDict:
		r.push(pickleDict{})
	case opBinInt1:
		return r.pushInt(1)
	case opBinInt2:
		return r.pushInt(2)
	case opBinInt:
		v, err := r.uint(4)
		r.push(int64(int32(v)))
		return err
	case opShortBinUnicode:
		return r.pushString(1)
	case opBinUnicode:
		return r.pushString(4)
	case opBinGet:
		return r.get(1)
	case opLongBinGet:
		return r.get(4)
	case opBinPut:
		return r.put(1)
	case opLongBinPut:
		return r.put(4)
	case opMemoize:
		return r.putAt(uint32(len(r.memo)))
	case opSetItem:
		return r.setItems(len(r.stack) - 2)
	case opSetItems:
		for i := len(r.stack) - 1; i >= 0; i-- {
			if _, ok := r.stack[i].(pickleMark); ok {
				r.stack = append(r.stack[:i], r.stack[i+1:]...)
				return r.setItems(i)
			}
		}
		return fmt.Errorf("no mark on the stack")
	default:
		return fmt.Errorf("refused: a table of characters does not need it")
	}
	return nil
}

func (r *pickleReader) push(v any) { r.stack = append(r.stack, v) }

func (r *pickleReader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)-r.pos) {
		return nil, fmt.Errorf("pickle of %d bytes is cut short", len(r.b))
	}
	s := r.b[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return s, nil
}

// uint reads a little-endian number of n <= 4 bytes.
func (r *pickleReader) uint(n uint64) (uint32, error) {
	s, err := r.take(n)
	var word [4]byte
	copy(word[:], s)
	return binary.LittleEndian.Uint32(word[:]), err
}

func (r *pickleReader) pushInt(n uint64) error {
	v, err := r.uint(n)
	r.push(int64(v))
	return err
}

func (r *pickleReader) pushString(lengthBytes uint64) error {
	n, err := r.uint(lengthBytes)
	if err != nil {
		return err
	}
	s, err := r.take(uint64(n))
	if err == nil && !utf8.Valid(s) {
		err = fmt.Errorf("string %q is not valid UTF-8", s)
	}
	r.push(string(s))
	return err
}

func (r *pickleReader) get(n uint64) error {
	i, err := r.uint(n)
	if err != nil {
		return err
	}
	v, ok := r.memo[i]
	if !ok {
		return fmt.Errorf("nothing is stored at index %d", i)
	}
	r.push(v)
	return nil
}

func (r *pickleReader) put(n uint64) error {
	i, err := r.uint(n)
	if err != nil {
		return err
	}
	return r.putAt(i)
}

func (r *pickleReader) putAt(i uint32) error {
	if len(r.stack) == 0 {
		return fmt.Errorf("the stack is empty")
	}
	r.memo[i] = r.stack[len(r.stack)-1]
	return nil
}

// setItems moves the keys and values from stack[first:] into the dict below.
func (r *pickleReader) setItems(first int) error {
	if first < 1 || (len(r.stack)-first)%2 != 0 {
		return fmt.Errorf("%d values on the stack do not end in a dict and pairs", len(r.stack))
	}
	d, ok := r.stack[first-1].(pickleDict)
	if !ok {
		return fmt.Errorf("the target is not a dict")
	}
	for i := first; i < len(r.stack); i += 2 {
		switch r.stack[i].(type) {
		case int64, string:
			d[r.stack[i]] = r.stack[i+1]
		default:
			return fmt.Errorf("a key is neither an int nor a str")
		}
	}
	r.stack = r.stack[:first]
	return nil
}

// appendMeta appends the pickle, in protocol 2, of the dictionary that nanoGPT
// stores: {'vocab_size': n, 'itos': {0: 'a', ...}, 'stoi': {'a': 0, ...}}.
func appendMeta(b []byte, symbols []rune) []byte {
	if len(symbols) > math.MaxInt32 {
		panic(fmt.Sprintf("BUG: data: %d symbols", len(symbols)))
	}
	str := func(s string) {
		b = append(b, opBinUnicode)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	num := func(i int) {
		b = append(b, opBinInt)
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
	}
	b = append(b, opProto, 2, opEmptyDict, opMark)
	str("vocab_size")
	num(len(symbols))
	str("itos")
	b = append(b, opEmptyDict, opMark)
	for id, c := range symbols {
		num(id)
		str(string(c))
	}
	b = append(b, opSetItems)
	str("stoi")
	b = append(b, opEmptyDict, opMark)
	for id, c := range symbols {
		str(string(c))
		num(id)
	}
	return append(b, opSetItems, opSetItems, opStop)
}
