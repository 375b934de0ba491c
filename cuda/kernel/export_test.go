package kernel

import "github.com/autopar/autopar/ir"

// What tests outside the package need.

var (
	Has      = has
	Conflict = conflict
)

// CastInPlace returns the launches of a large cast in place, and the bytes of scratch memory that they need.
func CastInPlace(from, to ir.DType, at, scratch uint64, n, few int64) ([]Launch, int64) {
	l := &list{scratch: scratch}
	l.castInPlace(from, to, address(at), n, few)
	return l.out, l.used
}

// Sources lists the arguments of Source.
func Sources() []string {
	var names []string
	for _, p := range programs() {
		for _, d := range p.types {
			names = append(names, typed(p.name, d.String()))
		}
	}
	return names
}
