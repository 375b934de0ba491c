package config

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// AutoInt is a positive count, or Auto.
type AutoInt int

// Auto leaves a count to the planner. It is written "auto".
const Auto AutoInt = 0

func (n AutoInt) String() string {
	if n == Auto {
		return "auto"
	}
	return strconv.Itoa(int(n))
}

// parseAutoInt reads "auto" or a positive integer.
func parseAutoInt(s string) (AutoInt, error) {
	if s == "auto" {
		return Auto, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("wants a positive integer or auto, got %q", s)
	}
	return AutoInt(n), nil
}

// Bytes is an amount of memory.
type Bytes int64

// byteUnits are the suffixes of a size, largest first; String uses the binary ones.
func byteUnits() []struct {
	name  string
	bytes int64
} {
	return []struct {
		name  string
		bytes int64
	}{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
	}
}

// String prints the size exactly, in the largest binary unit that allows it.
func (b Bytes) String() string {
	for _, unit := range byteUnits()[:4] {
		if n := int64(b); n != 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// ParseBytes reads a size: bytes, or a decimal number with a unit (KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of
// 1000). Part of a byte is dropped, but no number of bytes has one, and no size is less than a byte.
func ParseBytes(s string) (Bytes, error) {
	number, scale := s, int64(1)
	for _, unit := range byteUnits() {
		if rest, found := strings.CutSuffix(s, unit.name); found {
			number, scale = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	if number == "" || len(number) > 32 || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("wants a size such as 16GiB, 512MiB or bytes, got %q", s)
	}
	amount, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("wants a size such as 16GiB, 512MiB or bytes, got %q", s)
	}
	amount.Mul(amount, new(big.Rat).SetInt64(scale))
	whole := new(big.Int).Quo(amount.Num(), amount.Denom())
	if !amount.IsInt() && (scale == 1 || whole.Sign() == 0) {
		return 0, fmt.Errorf("%s is no whole number of bytes; wants a size such as 16GiB, 512MiB or bytes", s)
	}
	if !whole.IsInt64() {
		return 0, fmt.Errorf("%s is more than %d bytes", s, int64(math.MaxInt64))
	}
	return Bytes(whole.Int64()), nil
}
