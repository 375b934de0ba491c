package kernel

// What tests outside the package see.

var (
	Has      = has
	Conflict = conflict
)
