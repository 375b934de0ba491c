// Package curve fits the figures of a cluster file to measured times, and rounds them to the precision with which
// they are known. The profilers of all devices use it.
package curve

import (
	"math"
	"slices"
	"strconv"
)

// Line returns a and b, both non-negative, for which a·x + b comes nearest to y by the squares of the relative
// deviations.
func Line(x, y []float64) (a, b float64) {
	ab := Fit([][]float64{x, slices.Repeat([]float64{1}, len(x))}, y, func(i int) float64 { return 1 / y[i] / y[i] })
	return ab[0], ab[1]
}

// Fit returns non-negative factors of the columns x for which their weighted sum comes nearest to y in weighted least
// squares. A column that would get a negative factor, or that is a linear combination of others, gets factor 0.
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

// solve returns the factors of the used columns by Gauss elimination of the normal equations, with NaN for the first
// column that is a linear combination of those before it. The matrix is symmetric and positive semidefinite, so
// elimination needs no pivoting.
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

// Exchange is one measured collective: the number of messages that follow each other, the bytes that each rank moves,
// and the seconds that it took.
type Exchange struct {
	Messages, Bytes float64
	Seconds         float64
}

// Link returns the latency per message in seconds and the bandwidth per rank in bytes/s that fit the exchanges best,
// and the sum of the absolute deviations from the measured times divided by the sum of these times.
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
	return b, 1 / a, off / total // the cluster file limits a bandwidth of +Inf to the largest allowed
}

// Share limits a share of a peak to [0.001, 1] and rounds it.
func Share(x float64) float64 { return Round(min(max(x, 1e-3), 1)) }

// Round keeps three significant figures: measurements are no more precise.
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
