// Package trace is the API in which models are written. A forward function runs once on symbolic tensors, and
// what it does is recorded as an [ir.Graph].
//
// A Tracer carries the module path at which it records: t.Scope("h", 3) is the
// same graph seen from module h.3. Each recorded node is named by that path and
// its op (h.3.attn.c_attn/matmul) and knows the source line of the caller.
//
// Mistakes (shapes that do not fit, values of another tracer) do not panic. The first one is recorded and
// returned by [Tracer.Finish] with its source line; everything after it is dropped.
package trace

import (
	"fmt"
	"path"
	"path/filepath"
	goruntime "runtime"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/autodiff"
)

// Tracer records operations into one graph. Tracers derived from another by
// Scope, Phase or Float record into the same graph.
type Tracer struct {
	rec   *recording
	path  string
	phase ir.Phase
	float ir.DType // type of parameters that are declared
}

// recording is shared by all tracers of a graph.
type recording struct {
	graph   *ir.Graph
	err     error
	streams map[uint32]string  // by hash of a stream's name: the name of the node that draws from it
	asked   []*ir.Value        // gradients that Grad was asked for: kept even if nothing reads them
	lines   map[uintptr]string // by program counter: source position, see caller
	pos     string             // source position of all nodes while it is not empty: see hold
}

// Tensor is the user's handle to one value. The zero Tensor stands for a missing operand, such as the bias of a
// layer without one.
type Tensor struct {
	v   *ir.Value
	rec *recording
}

// Stream is the source of a step's random numbers: a draw is a function of the seed, the step, the name of the
// drawing node and the index of the element. Seed and Step are i32 scalars.
type Stream struct{ Seed, Step Tensor }

// New returns a tracer at the root path, in phase Forward, of an empty graph.
func New(name string) *Tracer {
	return &Tracer{rec: &recording{graph: ir.NewGraph(name), lines: map[uintptr]string{}, streams: map[uint32]string{}}}
}

// Scope returns the tracer for a module inside this one: Scope("h", 3) of the root records at h.3, and
// Scope("attn") of that at h.3.attn.
func (t *Tracer) Scope(name string, index ...int) *Tracer {
	s := *t
	s.path = t.join(name)
	for _, i := range index {
		s.path = fmt.Sprintf("%s.%d", s.path, i)
	}
	return &s
}

// Phase returns the tracer that records at the same path in another phase.
func (t *Tracer) Phase(p ir.Phase) *Tracer {
	s := *t
	s.phase = p
	return &s
}

// Float returns a tracer at the same path that declares parameters of another floating-point type. Ops compute
// in the type of their operands. Sums inside ops, and results with one number per row (statistics of norms, the
// log-sum-exp of a softmax, losses), are always f32.
func (t *Tracer) Float(d ir.DType) *Tracer {
	s := *t
	s.float = d
	return &s
}

// Path returns the module path at which t records: h.3.attn.
func (t *Tracer) Path() string { return t.path }

func (t *Tracer) join(name string) string {
	if t.path == "" {
		return name
	}
	return t.path + "." + name
}

// Finish returns the graph, without the nodes that no output, no update and no gradient requested from Grad
// needs. If anything went wrong it returns the first error.
func (t *Tracer) Finish() (*ir.Graph, error) {
	if t.rec.err != nil {
		return nil, t.rec.err
	}
	t.rec.graph.Prune(t.rec.asked...)
	return t.rec.graph, nil
}

// Failf records an error of the user's own with the caller's source line, unless an error is recorded already.
func (t *Tracer) Failf(format string, args ...any) {
	if t.rec.err == nil {
		t.rec.err = fmt.Errorf("trace: %s: %w", t.rec.caller(), fmt.Errorf(format, args...))
	}
}

// Param declares a parameter called name inside the current module, as in
// Scope("ln_f").Param("weight", ...) for ln_f.weight.
func (t *Tracer) Param(name string, shape []int, attr ir.ParamAttr) Tensor {
	return t.leaf(ir.OpParam, name, ir.Type{DType: t.float, Shape: shape}, attr)
}

// Input declares a value that the caller feeds.
func (t *Tracer) Input(name string, dtype ir.DType, shape ...int) Tensor {
	return t.leaf(ir.OpInput, name, ir.Type{DType: dtype, Shape: shape}, nil)
}

// Const records a scalar constant.
func (t *Tracer) Const(name string, dtype ir.DType, value float64) Tensor {
	return t.leaf(ir.OpConst, name, ir.Type{DType: dtype}, ir.ConstAttr{Value: value})
}

func (t *Tracer) leaf(op ir.Op, name string, typ ir.Type, attr ir.Attr) Tensor {
	if t.rec.err != nil {
		return Tensor{}
	}
	full := t.join(name)
	v, err := t.rec.graph.Leaf(op, full, typ, attr)
	if err != nil {
		t.Failf("%w", err)
		return Tensor{}
	}
	if v.Def.Name != full {
		t.Failf("%s: the name %q is taken", op, full)
		return Tensor{}
	}
	v.Def.Pos, v.Def.Phase = t.rec.caller(), t.phase
	return t.tensor(v)
}

func (t *Tracer) tensor(v *ir.Value) Tensor { return Tensor{v, t.rec} }

// Output makes x readable under the given name after each run.
func (t *Tracer) Output(name string, x Tensor) {
	if t.rec.err != nil {
		return
	}
	if !t.owns(x) {
		return
	}
	if t.rec.graph.Output(name) != nil {
		t.Failf("output %q is named twice", name)
		return
	}
	t.rec.graph.Outputs = append(t.rec.graph.Outputs, ir.Output{Name: name, Value: x.v})
}

// Update makes next the value of param for the next run.
func (t *Tracer) Update(param, next Tensor) {
	if t.rec.err != nil || !t.owns(param, next) {
		return
	}
	if param.v.Def.Op != ir.OpParam || !param.v.Type.Equal(next.v.Type) {
		t.Failf("update: %s cannot become %s", describe(param), describe(next))
		return
	}
	t.rec.graph.Updates = append(t.rec.graph.Updates, ir.StateUpdate{Param: param.v, New: next.v})
}

// Weights returns the parameters declared so far that are trained, neither state nor frozen, in order of
// declaration.
func (t *Tracer) Weights() []Tensor {
	var out []Tensor
	for _, v := range t.rec.graph.Params() {
		if attr := v.Def.Attr.(ir.ParamAttr); !attr.State && !attr.Frozen {
			out = append(out, t.tensor(v))
		}
	}
	return out
}

// Grad records the backward pass of a scalar loss and returns its gradient with respect to each of wrt, summed
// in type wide. See [autodiff.Grad].
func (t *Tracer) Grad(loss Tensor, wrt []Tensor, wide ir.DType) []Tensor {
	out := make([]Tensor, len(wrt))
	if t.rec.err != nil || !t.owns(loss) || !t.owns(wrt...) {
		return out
	}
	values := make([]*ir.Value, len(wrt))
	for i, w := range wrt {
		values[i] = w.v
	}
	grads, err := autodiff.Grad(t.rec.graph, loss.v, values, wide)
	if err != nil {
		t.Failf("%w", err)
		return out
	}
	for i, v := range values {
		out[i] = t.tensor(grads[v])
		t.rec.asked = append(t.rec.asked, grads[v])
	}
	return out
}

// record appends one node named <path>/<op> and returns its results.
func (t *Tracer) record(op ir.Op, attr ir.Attr, args ...Tensor) []Tensor {
	return t.recordAs(t.path, op, attr, args...)
}

// recordAs is record at the path of another module.
func (t *Tracer) recordAs(module string, op ir.Op, attr ir.Attr, args ...Tensor) []Tensor {
	if t.rec.err != nil || !t.owns(args...) {
		return failed()
	}
	values := make([]*ir.Value, len(args))
	for i, a := range args {
		values[i] = a.v
	}
	name := op.String()
	if module != "" {
		name = module + "/" + name
	}
	n, err := t.rec.graph.Add(op, attr, name, t.phase, values...)
	if err != nil {
		t.Failf("%w", err)
		return failed()
	}
	n.Pos = t.rec.caller()
	out := make([]Tensor, len(n.Results))
	for i, v := range n.Results {
		out[i] = t.tensor(v)
	}
	return out
}

// failed returns the results of a call that failed: missing tensors, which nothing looks into. No op has more
// than four results.
func failed() []Tensor { return make([]Tensor, 4) }

// owns reports whether every tensor is present and of this graph, and records an error otherwise.
func (t *Tracer) owns(xs ...Tensor) bool {
	for i, x := range xs {
		if x.v == nil {
			t.Failf("operand %d is missing", i)
			return false
		}
		if x.rec != t.rec {
			t.Failf("operand %d, %s, belongs to another graph", i, describe(x))
			return false
		}
	}
	return true
}

func describe(x Tensor) string {
	if x.v == nil {
		return "a missing tensor"
	}
	return fmt.Sprintf("%s %s", x.v.Name(), x.v.Type)
}

// Shape returns the shape, nil for a missing tensor. It must not be modified.
func (x Tensor) Shape() []int {
	if x.v == nil {
		return nil
	}
	return x.v.Type.Shape
}

// Name returns the structural name of the value, "" for a missing tensor.
func (x Tensor) Name() string {
	if x.v == nil {
		return ""
	}
	return x.v.Name()
}

// caller returns file:line, with the base name of the file, of the innermost frame outside this package (its
// tests count as outside). Two things make it fast: it looks at the top of the stack first, where the frame
// usually is, and it caches positions by program counter.
func (r *recording) caller() string {
	if r.pos != "" {
		return r.pos
	}
	var pcs [16]uintptr
	for _, depth := range []int{5, len(pcs)} {
		n := goruntime.Callers(2, pcs[:depth])
		for i := range n {
			line, known := r.lines[pcs[i]]
			if !known {
				line = lineOf(pcs[i : i+1])
				r.lines[pcs[i]] = line
			}
			if line != "" {
				return line
			}
		}
	}
	return "unknown:0"
}

// hold gives all nodes recorded until release is called the current caller's position.
func (r *recording) hold() (release func()) {
	r.pos = r.caller()
	return func() { r.pos = "" }
}

// lineOf returns the position of the one frame given, "" inside this package.
func lineOf(pc []uintptr) string {
	f, _ := goruntime.CallersFrames(pc).Next()
	pkg, _, _ := strings.Cut(path.Base(f.Function), ".")
	if pkg == "trace" && !strings.HasSuffix(f.File, "_test.go") {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
}
