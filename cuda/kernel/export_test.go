package kernel

// What tests outside the package see.

var (
	Portable = portable
	Has      = has
	Conflict = conflict
)
