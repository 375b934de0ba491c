package measured

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/optimize"
)

// This file fits constants of the cost model to measured step times: a robust nonlinear least-absolute-error fit by successive
// linearisation (as in Gauss-Newton), within ranges and a trust radius.

// Fitted is a parameter with its value. Spread is the standard deviation of its logarithm by the jackknife over sources: it
// says how much the value depends on single sources.
type Fitted struct {
	Parameter
	Value, Spread float64
}

// Fit is constants fitted to rows, and how well they predict.
type Fit struct {
	Parameters []Fitted
	// Rows are all rows, also those of low confidence, predicted with the fitted constants. LeftOut are those not of low
	// confidence, each predicted with constants fitted without its source.
	Rows, LeftOut []Outcome
	Loss          []float64 // before the first step, and after every step that was taken
}

// The loss of a row is the absolute value of log(predicted / measured), smoothed within softness of zero. The loss of constants
// is the mean over sources of the mean over their rows, plus the pull of the priors, which is small beside it.
const (
	softness  = 0.01
	pull      = 0.0005
	trust     = 0.3 // largest change of the logarithm of a constant in a step
	fitSteps  = 6
	fitEnough = 1e-4 // a step that gains less is the last
)

// table has the compiled cases of a fit. Cases of different families may be priced concurrently.
type table struct {
	families [][]*Case
	all      []*Case   // in order of families
	weight   []float64 // by case; 0 if confidence is low
}

func newTable(families [][]*Case) *table {
	t := &table{families: families}
	rows := map[string]int{}
	for _, f := range families {
		t.all = append(t.all, f...)
	}
	for _, c := range t.all {
		if c.Confidence != "low" {
			rows[c.Source]++
		}
	}
	for _, c := range t.all {
		w := 0.0
		if c.Confidence != "low" {
			w = 1 / float64(rows[c.Source]) / float64(len(rows))
		}
		t.weight = append(t.weight, w)
	}
	return t
}

// seconds is the predicted step time of a case with constants.
func (c *Case) seconds(k *Constants) float64 {
	on := c.onto(k.Clusters[clusters()[c.GPU]])
	on.Software = c.softwareOf(k.Software)
	return c.estimator.Price(on).Step.Seconds()
}

// errors returns log(predicted / measured time) of all cases.
func (t *table) errors(k *Constants) []float64 {
	out := make([]float64, len(t.all))
	first := make([]int, len(t.families))
	for i := 1; i < len(first); i++ {
		first[i] = first[i-1] + len(t.families[i-1])
	}
	parallel(len(t.families), func(i int) {
		for j, c := range t.families[i] {
			out[first[i]+j] = math.Log(c.seconds(k) / c.StepSeconds)
		}
	})
	return out
}

// problem is the linearised fit: a step d of the logarithms of the parameters has errors e + J·d.
type problem struct {
	e, weight  []float64
	jacobian   [][]float64 // [parameter][case]
	at         []float64   // logarithms of the parameters
	parameters []Parameter
}

// loss returns the loss after a step, and sets gradient to its gradient unless that is nil.
func (p *problem) loss(step, gradient []float64) float64 {
	sum := 0.0
	clear(gradient)
	for i, e := range p.e {
		if p.weight[i] == 0 {
			continue
		}
		for a, d := range step {
			if d != 0 { // a problem without a jacobian has steps of zero only
				e += p.jacobian[a][i] * d
			}
		}
		size := math.Hypot(e, softness)
		sum += p.weight[i] * (size - softness)
		for a := range gradient {
			gradient[a] += p.weight[i] * e / size * p.jacobian[a][i]
		}
	}
	for a := range step {
		q := &p.parameters[a]
		off := (p.at[a] + step[a] - math.Log(q.Prior)) / q.sigma()
		sum += pull * off * off
		if gradient != nil {
			gradient[a] += 2 * pull * off / q.sigma()
		}
	}
	return sum
}

// solve returns the step of least loss within the parameters' ranges and a radius. It is found by BFGS over unbounded variables,
// which the logistic function maps to the bounded steps.
func (p *problem) solve(radius float64) []float64 {
	n := len(p.at)
	low, high, start := make([]float64, n), make([]float64, n), make([]float64, n)
	for a, q := range p.parameters {
		low[a], high[a] = max(-radius, math.Log(q.Least)-p.at[a]), min(radius, math.Log(q.Most)-p.at[a])
		inside := min(max(-low[a]/(high[a]-low[a]), 0.05), 0.95)
		start[a] = math.Log(inside / (1 - inside))
	}
	step, slope := make([]float64, n), make([]float64, n)
	place := func(x []float64) {
		for a := range x {
			s := 1 / (1 + math.Exp(-x[a]))
			step[a], slope[a] = low[a]+(high[a]-low[a])*s, (high[a]-low[a])*s*(1-s)
		}
	}
	result, err := optimize.Minimize(optimize.Problem{
		Func: func(x []float64) float64 { place(x); return p.loss(step, nil) },
		Grad: func(gradient, x []float64) {
			place(x)
			p.loss(step, gradient)
			for a := range gradient {
				gradient[a] *= slope[a]
			}
		},
	}, start, &optimize.Settings{MajorIterations: 400, GradientThreshold: 1e-7}, &optimize.BFGS{})
	if result == nil || err != nil && result.F > p.loss(make([]float64, n), nil) {
		return make([]float64, n) // no better step was found
	}
	place(result.X)
	return slices.Clone(step)
}

// linearise returns the problem at constants, where the errors are e, with a jacobian by finite differences.
func (t *table) linearise(k *Constants, e []float64, parameters []Parameter) *problem {
	const h = 0.02
	p := &problem{e: e, weight: t.weight, parameters: parameters}
	for i := range parameters {
		q := &parameters[i]
		p.at = append(p.at, math.Log(q.value(k)))
		moved := k.clone()
		q.set(moved, q.value(k)*math.Exp(h))
		column := t.errors(moved)
		for r := range column {
			column[r] = (column[r] - e[r]) / h
		}
		p.jacobian = append(p.jacobian, column)
	}
	return p
}

// moved returns constants after a step.
func moved(k *Constants, parameters []Parameter, step []float64) *Constants {
	out := k.clone()
	for a := range parameters {
		q := &parameters[a]
		q.set(out, min(max(q.value(k)*math.Exp(step[a]), q.Least), q.Most))
	}
	return out
}

// fit minimizes the loss, starting at constants k. Each step solves the linearised problem; a step that does not lower the loss
// is undone, and the radius shrinks. It returns the constants, the problem there, and the losses. progress is called with the
// loss of every step, unless it is nil.
func (t *table) fit(k *Constants, parameters []Parameter, progress func(step int, loss float64)) (*Constants, *problem, []float64) {
	k = moved(k, parameters, make([]float64, len(parameters)))
	p := t.linearise(k, t.errors(k), parameters)
	still := make([]float64, len(parameters))
	losses := []float64{p.loss(still, nil)}
	radius := trust
	for n := 1; n <= fitSteps; n++ {
		step := p.solve(radius)
		next := moved(k, parameters, step)
		q := &problem{e: t.errors(next), weight: t.weight, parameters: parameters}
		for a := range parameters {
			q.at = append(q.at, math.Log(parameters[a].value(next)))
		}
		loss := q.loss(still, nil)
		last := losses[len(losses)-1]
		if progress != nil {
			progress(n, loss)
		}
		if loss >= last {
			radius /= 3
			continue
		}
		k, losses = next, append(losses, loss)
		p = t.linearise(k, q.e, parameters)
		if last-loss < fitEnough {
			break
		}
	}
	return k, p, losses
}

// without solves the problem at the optimum again without one source, and returns the step from the optimum.
func (t *table) without(p *problem, source string) []float64 {
	q := *p
	sources := map[string]bool{}
	for i, c := range t.all {
		if t.weight[i] > 0 {
			sources[c.Source] = true
		}
	}
	n := float64(len(sources))
	q.weight = slices.Clone(p.weight)
	for i, c := range t.all {
		if q.weight[i] *= n / (n - 1); c.Source == source {
			q.weight[i] = 0
		}
	}
	return q.solve(2 * trust)
}

// Refit fits [Parameters], starting at constants k, to the rows of a table that can be modelled and state a step time. It also
// returns the rows that cannot be modelled. It calls progress with what is being done, and how much of it is done, one call at a
// time. Refit fails if the rows that are not of low confidence have fewer than two sources.
func Refit(rows []Row, k *Constants, progress func(what string, done, of int)) (*Fit, []Skipped, error) {
	var timed []Row
	for _, r := range rows {
		if r.StepSeconds > 0 {
			timed = append(timed, r)
		}
	}
	cases, skipped := compileAll(timed, func(done int) { progress("compiling", done, len(timed)) })
	t := newTable(cases)
	sources := []string{}
	for i, c := range t.all {
		if t.weight[i] > 0 && !slices.Contains(sources, c.Source) {
			sources = append(sources, c.Source)
		}
	}
	if len(sources) < 2 {
		return nil, skipped, errors.New("a fit needs rows of two sources at least that can be modelled and are not of low confidence")
	}
	slices.Sort(sources)
	parameters := Parameters()
	fitted, p, losses := t.fit(k, parameters, func(step int, _ float64) { progress("fitting", step, fitSteps) })
	f := &Fit{Loss: losses}
	for i, e := range p.e {
		f.Rows = append(f.Rows, Outcome{Row: t.all[i].Row, PredictedSeconds: t.all[i].StepSeconds * math.Exp(e)})
	}
	steps := make([][]float64, len(sources))
	for s, source := range sources {
		progress("leaving out", s, len(sources))
		steps[s] = t.without(p, source)
		held := t.only(source)
		for i, e := range held.errors(moved(fitted, parameters, steps[s])) {
			c := held.all[i]
			f.LeftOut = append(f.LeftOut, Outcome{Row: c.Row, PredictedSeconds: c.StepSeconds * math.Exp(e)})
		}
	}
	for a := range parameters {
		f.Parameters = append(f.Parameters, Fitted{parameters[a], parameters[a].value(fitted), jackknife(steps, a)})
	}
	return f, skipped, nil
}

// only returns the cases of one source that are not of low confidence.
func (t *table) only(source string) *table {
	part := &table{}
	for _, f := range t.families {
		var of []*Case
		for _, c := range f {
			if c.Source == source && c.Confidence != "low" {
				of = append(of, c)
			}
		}
		if len(of) > 0 {
			part.families, part.all = append(part.families, of), append(part.all, of...)
		}
	}
	return part
}

// jackknife is the standard deviation of parameter at, from n estimates that each leave out one of n groups (Efron and Stein
// 1981).
func jackknife(estimates [][]float64, at int) float64 {
	n, mean, sum := float64(len(estimates)), 0.0, 0.0
	for _, e := range estimates {
		mean += e[at] / n
	}
	for _, e := range estimates {
		sum += (e[at] - mean) * (e[at] - mean)
	}
	return math.Sqrt((n - 1) / n * sum)
}
