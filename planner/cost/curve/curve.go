// Package curve makes figures of a cluster file from measured times: lines through them,
// and numbers no finer than they are known. It serves every device that is profiled.
package curve

import (
	"math"
	"strconv"
)

// Line returns the a and b with which a·x + b comes nearest to y, all
// deviations taken relative to y, and neither is negative.
func Line(x, y []float64) (a, b float64) {
	return Weighted(x, y, func(i int) float64 { return 1 / y[i] / y[i] })
}

// Weighted is [Line] with a weight of its own for the square of each deviation.
func Weighted(x, y []float64, weight func(i int) float64) (a, b float64) {
	var xx, x1, one, sx, s1 float64
	for i := range x {
		w := weight(i)
		xx, x1, one = xx+w*x[i]*x[i], x1+w*x[i], one+w
		sx, s1 = sx+w*x[i]*y[i], s1+w*y[i]
	}
	det := xx*one - x1*x1
	if det > 0 {
		a, b = (sx*one-s1*x1)/det, (xx*s1-x1*sx)/det
	}
	switch {
	case det <= 0 || b < 0:
		return sx / xx, 0
	case a < 0:
		return 0, s1 / one
	}
	return a, b
}

// Exchange is one measured collective: messages that follow each other, and the
// bytes that each rank moves.
type Exchange struct {
	Messages, Bytes float64
	Seconds         float64
}

// Link returns the latency of a message and the bandwidth of a rank, and how far
// the exchanges are from them.
func Link(all []Exchange) (latency, bandwidth, off float64) {
	// seconds = messages·latency + bytes/bandwidth, per message.
	var x, y []float64
	for _, e := range all {
		x, y = append(x, e.Bytes/e.Messages), append(y, e.Seconds/e.Messages)
	}
	a, b := Line(x, y)
	total := 0.0
	for _, e := range all {
		total += e.Seconds
		off += math.Abs(a*e.Bytes + b*e.Messages - e.Seconds)
	}
	return b, 1 / a, off / total // a bandwidth of +Inf is cut to the largest there is
}

// Share is a share of a peak, from a thousandth to all of it, rounded.
func Share(x float64) float64 { return Round(min(max(x, 1e-3), 1)) }

// Round keeps three figures: more say nothing.
func Round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) {
		return x
	}
	unit := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*unit) / unit
}

// Number prints a rounded figure for YAML, as 1.23e+10.
func Number(x float64) string {
	if x == float64(int64(x)) && x < 1e4 {
		return strconv.FormatInt(int64(x), 10)
	}
	if x >= 1e-3 && x < 1e4 {
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	return strconv.FormatFloat(x, 'e', -1, 64)
}
