package interp

import "github.com/autopar/autopar/ir"

// someRows takes one part of the positions of all sequences.
func someRows(n *ir.Node, in, out []Tensor) error {
	copyPositions(out[0], 0, in[0], n.Attr.(ir.RowsAttr).Part*out[0].Shape[1], out[0].Shape[1])
	return nil
}

// joinRows joins the parts, in order, to all positions.
func joinRows(_ *ir.Node, in, out []Tensor) error {
	for i, x := range in {
		copyPositions(out[0], i*x.Shape[1], x, 0, x.Shape[1])
	}
	return nil
}

// copyPositions copies n positions of all sequences.
func copyPositions(to Tensor, at int, from Tensor, first, n int) {
	row := 1
	for _, size := range to.Shape[2:] {
		row *= size
	}
	for b := range to.Shape[0] {
		i, j := (b*to.Shape[1]+at)*row, (b*from.Shape[1]+first)*row
		if to.I != nil {
			copy(to.I[i:i+n*row], from.I[j:])
		} else {
			copy(to.F[i:i+n*row], from.F[j:])
		}
	}
}
