// Package curve makes figures of a cluster file from measured times: lines through them,
// and numbers no finer than they are known. It serves every device that is profiled.
package curve

import (
	"math"
	"slices"
	"strconv"
)

// Line returns the a and b with which a·x + b comes nearest to y, all
// deviations taken relative to y, and neither is negative.
func Line(x, y []float64) (a, b float64) {
	ab := Fit([][]float64{x, slices.Repeat([]float64{1}, len(x))}, y, func(i int) float64 { return 1 / y[i] / y[i] })
	return ab[0], ab[1]
}

// Fit returns the factors of the columns x with which their sum comes nearest to y, by the
// weighted squares of the deviations. What would have a negative factor is left out, and so
// is a column that others make up.
func Fit(x [][]float64, y []float64, weight func(i int) float64) []float64 {
	factors := make([]float64, len(x))
	var used []int
	for j := range x {
		used = append(used, j)
	}
	for len(used) > 0 {
		f := solve(x, y, weight, used)
		worst := 0
		for i := range f {
			if f[i] < f[worst] || math.IsNaN(f[i]) {
				worst = i
			}
		}
		if f[worst] >= 0 {
			for i, j := range used {
				factors[j] = f[i]
			}
			break
		}
		used = slices.Delete(used, worst, worst+1)
	}
	return factors
}

// solve returns the factors of the used columns, or NaN of one that the ones before it
// make up, by Gauss elimination of the normal equations. These are symmetric and
// positive, so that no rows change places.
func solve(x [][]float64, y []float64, weight func(i int) float64, used []int) []float64 {
	n := len(used)
	rows := make([][]float64, n)
	for i, p := range used {
		rows[i] = make([]float64, n+1)
		for k := range y {
			w := weight(k)
			for j, q := range used {
				rows[i][j] += w * x[p][k] * x[q][k]
			}
			rows[i][n] += w * x[p][k] * y[k]
		}
	}
	f := make([]float64, n)
	for i := range n {
		whole := rows[i][i]
		for j := range i {
			by := rows[i][j] / rows[j][j]
			for c := j; c <= n; c++ {
				rows[i][c] -= by * rows[j][c]
			}
		}
		if !(rows[i][i] > 1e-12*whole) {
			f[i] = math.NaN()
			return f
		}
	}
	for i := n - 1; i >= 0; i-- {
		f[i] = rows[i][n]
		for j := i + 1; j < n; j++ {
			f[i] -= rows[i][j] * f[j]
		}
		f[i] /= rows[i][i]
	}
	return f
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
