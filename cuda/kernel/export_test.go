package kernel

// What tests outside the package see.

var (
	Has      = has
	Conflict = conflict
)

// Sources lists what Source takes.
func Sources() []string {
	var names []string
	for _, p := range programs() {
		for _, d := range p.types {
			names = append(names, typed(p.name, d.String()))
		}
	}
	return names
}
