package kernel

// What tests outside the package need.

var (
	Has      = has
	Conflict = conflict
)

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
