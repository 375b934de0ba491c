package ir

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// attrOf returns the zero attributes of an op, nil when it takes none.
func attrOf(op Op) Attr {
	switch op {
	case OpParam:
		return ParamAttr{}
	case OpConst:
		return ConstAttr{}
	case OpMatMul:
		return MatMulAttr{}
	case OpSumTo:
		return SumToAttr{}
	case OpClipScale:
		return ClipAttr{}
	case OpEmbeddingGrad:
		return EmbeddingGradAttr{}
	case OpFromFixed:
		return FixedAttr{}
	case OpLayerNorm, OpLayerNormGrad:
		return LayerNormAttr{}
	case OpRMSNorm, OpRMSNormGrad:
		return RMSNormAttr{}
	case OpGELU, OpGELUGrad:
		return GELUAttr{}
	case OpRoPE:
		return RoPEAttr{}
	case OpDropout, OpAttention, OpAttentionGrad, OpAttentionKV, OpAttentionKVGrad:
		return DropoutAttr{}
	case OpAdamW:
		return AdamWAttr{}
	case OpCast:
		return CastAttr{}
	case OpLossScale:
		return LossScaleAttr{}
	case OpRows:
		return RowsAttr{}
	case OpSend, OpRecv:
		return P2PAttr{}
	case OpFetch, OpStash:
		return nil
	}
	if op.Class() == Comm {
		return CommAttr{}
	}
	return nil
}

// enumNames returns the names of an enumerated attribute type, nil for others.
func enumNames(t reflect.Type) []string {
	switch t {
	case reflect.TypeFor[InitKind]():
		return []string{InitZeros: "zeros", InitOnes: "ones", InitNormal: "normal", InitConstant: "constant"}
	case reflect.TypeFor[DType]():
		return dtypeNames[:]
	case reflect.TypeFor[MatMulForm]():
		return []string{MatMulNT: "nt", MatMulNN: "nn", MatMulTN: "tn"}
	case reflect.TypeFor[Reduction]():
		return []string{Sum: "sum", Max: "max"}
	}
	return nil
}

// checkAttr checks that an op has attributes of its type, with values in range.
func checkAttr(op Op, attr Attr) error {
	want := attrOf(op)
	if reflect.TypeOf(attr) != reflect.TypeOf(want) {
		return fmt.Errorf("attribute is %T, want %T", attr, want)
	}
	if attr == nil {
		return nil
	}
	v := reflect.ValueOf(attr)
	for i := range v.NumField() {
		key, f := attrKey(v.Type(), i), v.Field(i)
		switch names := enumNames(f.Type()); {
		case names != nil && f.Uint() >= uint64(len(names)):
			return fmt.Errorf("attribute %s is %d, want one of %s", key, f.Uint(), strings.Join(names, ", "))
		case f.Kind() == reflect.Float64 && (math.IsNaN(f.Float()) || math.IsInf(f.Float(), 0)):
			return fmt.Errorf("attribute %s is %v", key, f.Float())
		case f.Kind() == reflect.String && !utf8.ValidString(f.String()):
			return fmt.Errorf("attribute %s is not valid UTF-8", key)
		}
	}
	if f := Frac(attr); f < 0 || f > maxFrac {
		return fmt.Errorf("attribute frac is %d, want 0 to %d", f, maxFrac)
	} else if f > 0 && (op == OpLayerNorm || op == OpRMSNorm) {
		return fmt.Errorf("attribute frac is %d, but no result is a sum over the batch", f)
	}
	switch a := attr.(type) {
	case MatMulAttr:
		if a.Frac > 0 && a.Form != MatMulTN {
			return fmt.Errorf("attribute frac is %d, but form %s does not sum over sequences (want tn)", a.Frac, enumNames(reflect.TypeFor[MatMulForm]())[a.Form])
		}
	case FixedAttr:
		if a.Frac < 1 || a.Frac > maxFrac {
			return fmt.Errorf("attribute frac is %d, want 1 to %d", a.Frac, maxFrac)
		}
	case DropoutAttr:
		if a.P < 0 || a.P >= 1 {
			return fmt.Errorf("attribute p is %v, want 0 <= p < 1", a.P)
		}
		if min(a.Fold, a.Dim) < 0 || a.Fold > maxAxisSize || a.Dim > maxRank {
			return fmt.Errorf("attributes fold and dim are %d and %d, want 0 to %d and 0 to %d", a.Fold, a.Dim, maxAxisSize, maxRank)
		}
		if a.Parts < 0 || a.Parts > maxAxisSize || a.Parts > 0 && op == OpDropout {
			return fmt.Errorf("attribute parts is %d, want 0 to %d, and 0 for all but attention to whole sequences", a.Parts, maxAxisSize)
		}
	case CastAttr:
		if !a.To.Float() {
			return fmt.Errorf("attribute to is %s, want a floating-point type", a.To)
		}
	case RoPEAttr:
		if a.Theta <= 0 {
			return fmt.Errorf("attribute theta is %v, want more than 0", a.Theta)
		}
		if a.Factor < 0 || a.Factor > 0 && !(a.Original > 0 && 0 < a.Low && a.Low < a.High) {
			return fmt.Errorf("attributes factor, low, high and original are %v, %v, %v and %d, want positive ones, low below high, or no factor", a.Factor, a.Low, a.High, a.Original)
		}
	case RowsAttr:
		if a.Parts < 1 || a.Parts > maxAxisSize || a.Part < 0 || a.Part >= a.Parts {
			return fmt.Errorf("attributes part and parts are %d and %d, want a number below another of at most %d", a.Part, a.Parts, maxAxisSize)
		}
	case CommAttr:
		if min(a.Dim, a.To) < 0 || max(a.Dim, a.To) > maxRank {
			return fmt.Errorf("attributes dim and to are %d and %d, want 0 to %d", a.Dim, a.To, maxRank)
		}
		if a.Parts < 0 || a.Parts > maxAxisSize || (a.Parts > 0) != (op == OpFold || op == OpUnfold) {
			return fmt.Errorf("attribute parts is %d, want the size of the axis for fold and unfold and 0 for others", a.Parts)
		}
	}
	return nil
}

// attrKey returns the text key of field i: its Go name in lower case.
func attrKey(t reflect.Type, i int) string { return strings.ToLower(t.Field(i).Name) }

// formatAttr prints attributes as {form=tn k=2 bias key="a b"}. Zero fields are
// left out, so {} is the zero attribute; a true bool is its key alone. No
// attribute prints as "".
func formatAttr(attr Attr) string {
	if attr == nil {
		return ""
	}
	v := reflect.ValueOf(attr)
	var parts []string
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() && (v.NumField() > 1 || f.Kind() == reflect.Bool) {
			continue
		}
		part := attrKey(v.Type(), i)
		if f.Kind() != reflect.Bool {
			part += "=" + formatField(f)
		}
		parts = append(parts, part)
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func formatField(f reflect.Value) string {
	if names := enumNames(f.Type()); names != nil && f.Uint() < uint64(len(names)) {
		return names[f.Uint()]
	}
	switch f.Kind() {
	case reflect.Float64:
		return strconv.FormatFloat(f.Float(), 'g', -1, 64)
	case reflect.String:
		if isBare(f.String()) {
			return f.String()
		}
		return strconv.Quote(f.String())
	}
	return fmt.Sprint(f.Interface())
}

// isBare reports whether a string prints without quotes.
func isBare(s string) bool {
	for i := range len(s) {
		if !isBareByte(s[i]) {
			return false
		}
	}
	return s != "" && !strings.HasPrefix(s, "//")
}

func isBareByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_./#@+-", c) >= 0
}

// setAttr sets one attribute of an op from its unquoted text. hasValue distinguishes key= from key.
func setAttr(attr reflect.Value, key, value string, hasValue bool) error {
	for i := range attr.NumField() {
		if attrKey(attr.Type(), i) != key {
			continue
		}
		f := attr.Field(i)
		if (f.Kind() == reflect.Bool) == hasValue {
			return fmt.Errorf("attribute %q: a bool stands alone, others take =value", key)
		}
		return setField(f, key, value)
	}
	return fmt.Errorf("unknown attribute %q of %s", key, attr.Type().Name())
}

func setField(f reflect.Value, key, value string) error {
	bad := func(want string) error { return fmt.Errorf("attribute %s=%q: want %s", key, value, want) }
	if names := enumNames(f.Type()); names != nil {
		for i, name := range names {
			if name == value {
				f.SetUint(uint64(i))
				return nil
			}
		}
		return bad("one of " + strings.Join(names, ", "))
	}
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(true)
	case reflect.Int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return bad("an integer")
		}
		f.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return bad("a finite number")
		}
		f.SetFloat(x)
	case reflect.String:
		f.SetString(value)
	default:
		panic("BUG: attribute " + key + " has kind " + f.Kind().String())
	}
	return nil
}
