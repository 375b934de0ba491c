package safetensors

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFloat32s(t *testing.T) {
	values := []float32{0, float32(math.Copysign(0, -1)), 1.5, -3.25e-20, math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Inf(-1))}
	got, err := FromFloat32s("a", []int{7}, values).Float32s()
	require.NoError(t, err)
	require.Equal(t, values, got)
	require.True(t, math.Signbit(float64(got[1])))

	got, err = Tensor{Name: "a", DType: BF16, Shape: []int{2, 2}, Data: []byte{0x80, 0x3f, 0x49, 0x40, 0x80, 0xff, 0x01, 0x00}}.Float32s()
	require.NoError(t, err)
	require.Equal(t, []float32{1, 3.140625, float32(math.Inf(-1)), 0x1p-133}, got)
}

// TestFloat16 compares the conversion with the definition of binary16 for every bit pattern.
func TestFloat16(t *testing.T) {
	data := make([]byte, 0, 2<<16)
	for h := range 1 << 16 {
		data = binary.LittleEndian.AppendUint16(data, uint16(h))
	}
	got, err := Tensor{Name: "a", DType: F16, Shape: []int{1 << 16}, Data: data}.Float32s()
	require.NoError(t, err)
	for h, g := range got {
		exponent, fraction := h>>10&31, float64(h&1023)
		want := math.Ldexp(1+fraction/1024, exponent-15)
		switch {
		case exponent == 0:
			want = math.Ldexp(fraction/1024, -14)
		case exponent == 31 && fraction == 0:
			want = math.Inf(1)
		case exponent == 31:
			require.True(t, math.IsNaN(float64(g)), "%#04x: got %v, want NaN", h, g)
			continue
		}
		if h>>15 == 1 {
			want = -want
		}
		if math.Float64bits(float64(g)) != math.Float64bits(want) {
			t.Fatalf("%#04x: got %v, want %v", h, g, want)
		}
	}
}

func TestInt32s(t *testing.T) {
	for _, test := range []struct {
		dtype DType
		data  []byte
		want  []int32
	}{
		{I32, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x80}, []int32{-1, math.MinInt32}},
		{I16, []byte{0xff, 0xff, 0, 0x80}, []int32{-1, -32768}},
		{U16, []byte{0xff, 0xff, 0, 0x80}, []int32{65535, 32768}},
		{I8, []byte{0xff, 0x80}, []int32{-1, -128}},
		{U8, []byte{0xff, 0x80}, []int32{255, 128}},
	} {
		got, err := Tensor{Name: "a", DType: test.dtype, Shape: []int{2}, Data: test.data}.Int32s()
		require.NoError(t, err)
		require.Equal(t, test.want, got, test.dtype)
	}
	values := []int32{math.MinInt32, -1, 0, math.MaxInt32}
	got, err := FromInt32s("a", []int{4}, values).Int32s()
	require.NoError(t, err)
	require.Equal(t, values, got)
}

func TestConversionErrors(t *testing.T) {
	_, err := FromInt32s("ids", []int{1}, []int32{1}).Float32s()
	require.EqualError(t, err, `safetensors: tensor "ids" is I32, want F32, F16 or BF16`)
	_, err = Tensor{Name: "w", DType: F64, Data: make([]byte, 8)}.Float32s()
	require.ErrorContains(t, err, "is F64", "float64 would be rounded")
	_, err = FromFloat32s("w", []int{1}, []float32{1}).Int32s()
	require.EqualError(t, err, `safetensors: tensor "w" is F32, want I32, I16, I8, U16 or U8`)
	_, err = Tensor{Name: "w", DType: I64, Data: make([]byte, 8)}.Int32s()
	require.ErrorContains(t, err, "is I64", "int64 would be cut")
	_, err = FromFloat32s("w", []int{3}, []float32{1, 2}).Float32s()
	require.EqualError(t, err, `safetensors: tensor "w": 8 bytes of data, but shape [3] of F32 takes 12`)
}
