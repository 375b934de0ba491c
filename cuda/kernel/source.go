package kernel

// Source returns the text of a program, prelude and all.
func Source(program string) string { return "" }

// Programs lists the programs.
func Programs() []string { return nil }
