package kernel

import "math"

func addGeneric(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func mulGeneric(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

func maxGeneric(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = max(a[i], b[i])
	}
}

func scaleGeneric(dst, x []float32, s float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = s * x[i]
	}
}

func colSumGeneric(dst, x []float32, rows, ld int) {
	for j := range dst {
		var s float32
		for i := range rows {
			s += x[i*ld+j]
		}
		dst[j] += s
	}
}

func sumGeneric(x []float32) float32 {
	var s [4]float32
	for i, v := range x {
		s[i&3] += v
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func maxOfGeneric(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

func sum64Generic(x []float32) float64 {
	var s float64
	for _, v := range x {
		s += float64(v)
	}
	return s
}

func sumSquaresGeneric(x []float32) float64 {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}

func sumSquaresAboutGeneric(x []float32, mean float32) float32 {
	var s [4]float32
	for i, v := range x {
		s[i&3] += (v - mean) * (v - mean)
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func normalizeGeneric(y, x, w, b []float32, mean, rstd float32) {
	x, w, b = x[:len(y)], w[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = (x[i]-mean)*rstd*w[i] + b[i]
	}
}

func normGradSumsGeneric(dy, x, w []float32, mean, rstd float32) (g, gx float32) {
	x, w = x[:len(dy)], w[:len(dy)]
	var sg, sgx [4]float32
	for i := range dy {
		d := dy[i] * w[i]
		sg[i&3] += d
		sgx[i&3] += d * ((x[i] - mean) * rstd)
	}
	return (sg[0] + sg[1]) + (sg[2] + sg[3]), (sgx[0] + sgx[1]) + (sgx[2] + sgx[3])
}

func normGradRowGeneric(dx, dy, x, w []float32, mean, rstd, g, gx float32) {
	dy, x, w = dy[:len(dx)], x[:len(dx)], w[:len(dx)]
	for i := range dx {
		dx[i] = rstd * (dy[i]*w[i] - g - gx*((x[i]-mean)*rstd))
	}
}

func normGradParamsGeneric(dw, db, dy, x []float32, mean, rstd float32) {
	db, dy, x = db[:len(dw)], dy[:len(dw)], x[:len(dw)]
	for i := range dw {
		dw[i] += dy[i] * ((x[i] - mean) * rstd)
		db[i] += dy[i]
	}
}

func rotateGeneric(lo, hi, a, b, cos, sin []float32) {
	hi, a, b, cos, sin = hi[:len(lo)], a[:len(lo)], b[:len(lo)], cos[:len(lo)], sin[:len(lo)]
	for i := range lo {
		x, y := a[i], b[i]
		lo[i], hi[i] = x*cos[i]-y*sin[i], y*cos[i]+x*sin[i]
	}
}

func softmaxGradGeneric(ds, p, dp []float32, delta, scale float32) {
	p, dp = p[:len(ds)], dp[:len(ds)]
	for i := range ds {
		ds[i] = scale * p[i] * (dp[i] - delta)
	}
}

func adamwGeneric(w, m, v, g []float32, c *adamwFactors) {
	m, v, g = m[:len(w)], v[:len(w)], g[:len(w)]
	for i := range w {
		gi := g[i] * c[gradScale]
		mi := c[beta1]*m[i] + c[gain1]*gi
		vi := c[beta2]*v[i] + c[gain2]*gi*gi
		m[i], v[i] = mi, vi
		w[i] = w[i]*c[decay] - c[stepSize]*mi/(float32(math.Sqrt(float64(vi)))*c[rootBias]+c[epsilon])
	}
}

// dropoutFactorsGeneric sets dst[i] to scale where dropout keeps element 4*block+i of the tensor named by key, else to
// zero. len(dst) is a multiple of 4 here, of dropoutStep in the callers.
func dropoutFactorsGeneric(dst []float32, block uint64, key *MaskKey, threshold uint32, scale float32) {
	for ; len(dst) >= 4; dst = dst[4:] {
		for lane, bits := range key.Block(block) {
			dst[lane] = 0
			if bits >= threshold {
				dst[lane] = scale
			}
		}
		block++
	}
}
