package kernel

import "runtime"

// productGeneric is isa.product in plain Go: two rows by four columns at a time, so that the eight sums stay in registers.
func productGeneric(m, n, k int, a []float32, rsa, csa int, b, c []float32, ldc int, acc bool) {
	const width = 16
	for i := 0; i < m; i += 2 {
		a0, a1 := a[i*rsa:], a[i*rsa:]
		if i+1 < m {
			a1 = a[(i+1)*rsa:]
		}
		for j := 0; j < n; j += 4 {
			var s [2][4]float32
			s00, s01, s02, s03 := s[0][0], s[0][1], s[0][2], s[0][3]
			s10, s11, s12, s13 := s[1][0], s[1][1], s[1][2], s[1][3]
			for q := range k {
				x0, x1 := a0[q*csa], a1[q*csa]
				p := b[q*width+j : q*width+j+4 : q*width+j+4]
				s00 += x0 * p[0]
				s01 += x0 * p[1]
				s02 += x0 * p[2]
				s03 += x0 * p[3]
				s10 += x1 * p[0]
				s11 += x1 * p[1]
				s12 += x1 * p[2]
				s13 += x1 * p[3]
			}
			s = [2][4]float32{{s00, s01, s02, s03}, {s10, s11, s12, s13}}
			for r := range min(2, m-i) {
				out := c[(i+r)*ldc+j:][:min(4, n-j)]
				for l := range out {
					if acc {
						out[l] += s[r][l]
					} else {
						out[l] = s[r][l]
					}
				}
			}
		}
	}
}

func packRowsGeneric(dst, src []float32, ld, k, n, width int) {
	for q := range k {
		row := dst[q*width : (q+1)*width]
		clear(row[copy(row, src[q*ld:q*ld+n]):])
	}
}

func packColsGeneric(dst, src []float32, ld, k, n, width int) {
	for j := range width {
		if j >= n {
			for q := range k {
				dst[q*width+j] = 0
			}
			continue
		}
		for q, v := range src[j*ld : j*ld+k] {
			dst[q*width+j] = v
		}
	}
}

func dotGeneric(a, b []float32) float32 {
	b = b[:len(a)]
	var s [4]float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func axpyGeneric(dst, x []float32, s float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += s * x[i]
	}
}

func multiplyAddGeneric(rounds int) {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	x := float32(rounds)
	for range rounds {
		s0, s1, s2, s3 = s0*x+x, s1*x+x, s2*x+x, s3*x+x
		s4, s5, s6, s7 = s4*x+x, s5*x+x, s6*x+x, s7*x+x
	}
	runtime.KeepAlive(s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7)
}
