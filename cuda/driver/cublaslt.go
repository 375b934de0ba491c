package driver

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/autopar/autopar/ir"
)

// minCUBLASLt is the oldest cuBLASLt, 10000*major + 100*minor + patch.
const minCUBLASLt = 120000

// Lt is the library cuBLASLt with the algorithms chosen so far, which all GPUs of the process
// share.
type Lt struct {
	version int
	scales  [2]float32 // 0 and 1; products point to them

	create, destroy, descCreate, descSet, descDestroy, layoutCreate, layoutDestroy,
	prefCreate, prefSet, prefDestroy, heuristic, matmul, statusName proc

	mu      sync.Mutex
	chosen  map[string]algorithm // by key
	untimed map[string]bool      // of those, the ones not timed for lack of memory: they are not saved
	file    string               // where they are saved; "" is nowhere
	bound   time.Duration        // on the wait for another process that chooses
	alone   bool                 // such a wait has been in vain: there are no more
}

// algorithm is a cublasLtMatmulAlgo_t: how one kind of product is computed. It can be stored and
// used again with the same version of the library on the same kind of GPU.
type algorithm [64]byte

// LtOptions are the options of [NewLt].
type LtOptions struct {
	// Dir is where the choice of algorithms is kept between runs; "" is nowhere. Different
	// algorithms add in different orders, so results repeat bit for bit from run to run only if the
	// choice is kept. Processes that run at the same time share it.
	Dir string
}

// choosing is how long other processes may take to choose algorithms before this one does so too: much longer than
// patience. turn is how often it looks whether they have.
const (
	choosing = 2 * time.Minute
	turn     = time.Millisecond
)

// NewLt loads cuBLASLt for a driver of a version.
func NewLt(driver int, opts LtOptions) (*Lt, error) {
	lib, err := libCUBLASLt.open(majorsFor(driver))
	if err != nil {
		return nil, err
	}
	return newLt(lib, opts)
}

func newLt(lib *shared, opts LtOptions) (*Lt, error) {
	var missing error
	find := func(name string) proc { return lib.proc(name, &missing) }
	l := &Lt{
		scales: [2]float32{0, 1}, create: find("cublasLtCreate"), destroy: find("cublasLtDestroy"),
		descCreate: find("cublasLtMatmulDescCreate"), descSet: find("cublasLtMatmulDescSetAttribute"), descDestroy: find("cublasLtMatmulDescDestroy"),
		layoutCreate: find("cublasLtMatrixLayoutCreate"), layoutDestroy: find("cublasLtMatrixLayoutDestroy"),
		prefCreate: find("cublasLtMatmulPreferenceCreate"), prefSet: find("cublasLtMatmulPreferenceSetAttribute"), prefDestroy: find("cublasLtMatmulPreferenceDestroy"),
		heuristic: find("cublasLtMatmulAlgoGetHeuristic"), matmul: find("cublasLtMatmul"), statusName: find("cublasLtGetStatusString"),
		chosen: map[string]algorithm{}, untimed: map[string]bool{}, bound: choosing,
	}
	version := find("cublasLtGetVersion")
	if missing != nil {
		return nil, missing
	}
	l.version = version.version()
	if l.version < minCUBLASLt {
		return nil, lib.tooOld(ltVersion(l.version), ltVersion(minCUBLASLt))
	}
	if opts.Dir != "" {
		l.file = filepath.Join(opts.Dir, fmt.Sprintf("cublaslt-%d.txt", l.version))
		l.load()
	}
	return l, nil
}

func ltVersion(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// Version is that of the library, formatted.
func (l *Lt) Version() string { return ltVersion(l.version) }

// read returns the choices in the file. Each line has an algorithm in hexadecimal and its key. Lines
// that do not parse are ignored, and their products are tuned again.
func (l *Lt) read() map[string]algorithm {
	choices := map[string]algorithm{}
	text, err := os.ReadFile(l.file)
	if err != nil {
		return choices
	}
	for line := range strings.Lines(string(text)) {
		digits, key, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var a algorithm
		if b, err := hex.DecodeString(digits); err == nil && len(b) == len(a) && key != "" {
			copy(a[:], b)
			choices[key] = a
		}
	}
	return choices
}

// load takes over choices of other runs and processes. What this process has used stays.
func (l *Lt) load() {
	for key, a := range l.read() {
		if _, ok := l.chosen[key]; !ok {
			l.chosen[key] = a
		}
	}
}

// save adds the choices to the file, except those that were not timed.
func (l *Lt) save() {
	if l.file == "" {
		return
	}
	all := l.read()
	for key, a := range l.chosen {
		if _, ok := all[key]; !ok && !l.untimed[key] {
			all[key] = a
		}
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%x %s\n", all[key], key)
	}
	replaceFile(l.file, []byte(b.String()))
}

// alternate keeps other processes from choosing until the returned function is called, unless one of them chooses, or
// has chosen, the algorithm of key: that is taken over. So ranks that compute the same product compute it alike.
func (l *Lt) alternate(key string) (end func()) {
	if l.file == "" {
		return func() {}
	}
	for late := time.Now().Add(l.bound); ; time.Sleep(turn) {
		unlock, busy := lockFile(l.file + ".lock")
		l.load()
		if _, ok := l.chosen[key]; ok || !busy {
			return func() {
				unlock()
				time.Sleep(2 * turn) // so that those who wait get their turn
			}
		}
		if l.alone = l.alone || time.Now().After(late); l.alone {
			return func() {}
		}
	}
}

func (l *Lt) check(p proc, code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: p.name, Code: code, Name: l.statusName.callString(code)}
}

// lt is a handle of cuBLASLt on one GPU. It implements [BLAS].
type lt struct {
	*Lt
	driver Driver
	gpu    string // name of the GPU
	handle uintptr

	mu    sync.Mutex
	plans map[GEMM]*ltPlan
}

// ltPlan is a kind of product with its descriptors and algorithm.
type ltPlan struct {
	desc, a, b, c uintptr
	algo          algorithm // or noAlgorithm: the epilogue is computed apart
}

// noAlgorithm stands for a product whose epilogue is faster apart, or not supported by the library.
var noAlgorithm algorithm

// Open returns a BLAS on the GPU of the current context. gpu is its name.
func (l *Lt) Open(d Driver, gpu string) (BLAS, error) {
	b := &lt{Lt: l, driver: d, gpu: gpu, plans: map[GEMM]*ltPlan{}}
	if err := l.check(l.create, l.create.call(uintptr(unsafe.Pointer(&b.handle)))); err != nil {
		return nil, err // without a handle that a caller would close
	}
	return b, nil
}

// Workspace is 32 MiB, as NVIDIA recommends for Hopper.
func (*lt) Workspace() int64 { return 32 << 20 }

func (b *lt) MatMul(g GEMM, x, y, z, workspace Ptr, s Stream) error {
	p, err := b.known(g, x, y, z, 0, workspace, s, nil)
	if err != nil {
		return err
	}
	return b.run(p, g.Accumulate, x, y, z, z, workspace, s)
}

func (b *lt) With(g GEMM, x, y, z, vector, workspace Ptr, s Stream, apart func() error) error {
	p, err := b.known(g, x, y, z, vector, workspace, s, apart)
	if err != nil {
		return err
	}
	if p.algo == noAlgorithm {
		return apart()
	}
	b.mu.Lock() // all streams share the descriptor, which has the vector's address
	defer b.mu.Unlock()
	if err := b.set(p, descVector, uint64(vector)); err != nil {
		return err
	}
	return b.run(p, g.Accumulate, x, y, z, z, workspace, s)
}

// set sets an attribute of a product's descriptor to a word.
func (b *lt) set(p *ltPlan, attr uintptr, word uint64) error {
	return b.check(b.descSet, b.descSet.call(p.desc, attr, uintptr(unsafe.Pointer(&word)), unsafe.Sizeof(word)))
}

// known returns the plan of a kind of product, and makes it the first time.
func (b *lt) known(g GEMM, x, y, z, vector, workspace Ptr, s Stream, apart func() error) (*ltPlan, error) {
	b.mu.Lock()
	p := b.plans[g]
	b.mu.Unlock()
	if p != nil {
		return p, nil
	}
	if apart != nil { // apart runs the plain product, which cannot be planned while the choice is locked
		plain := g
		plain.Epilogue = NoEpilogue
		if _, err := b.known(plain, x, y, z, 0, workspace, s, nil); err != nil {
			return nil, err
		}
	}
	p, err := b.plan(g, x, y, z, vector, workspace, s, apart)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g, err)
	}
	b.mu.Lock()
	b.plans[g] = p
	b.mu.Unlock()
	return p, nil
}

// run computes d = a·b, or that added to c.
func (b *lt) run(p *ltPlan, accumulate bool, x, y, c, d, workspace Ptr, s Stream) error {
	beta := &b.scales[0]
	if accumulate {
		beta = &b.scales[1]
	}
	return b.check(b.matmul, b.matmul.call(b.handle, p.desc, uintptr(unsafe.Pointer(&b.scales[1])), uintptr(x), p.a, uintptr(y), p.b,
		uintptr(unsafe.Pointer(beta)), uintptr(c), p.c, uintptr(d), p.c, uintptr(unsafe.Pointer(&p.algo)), uintptr(workspace), uintptr(b.Workspace()), uintptr(s)))
}

// String formats a product, for messages and as a key.
func (g GEMM) String() string {
	op := map[bool]string{false: "N", true: "T"}
	add := ""
	if g.Accumulate {
		add = " added"
	}
	add += [...]string{NoEpilogue: "", AddBias: " with bias", SumB: " with sums of b"}[g.Epilogue]
	return fmt.Sprintf("gemm %s%s %dx%dx%d ld %d %d %d %s %s to %s%s", op[g.TransA], op[g.TransB], g.M, g.N, g.K, g.LDA, g.LDB, g.LDC, g.TypeA, g.TypeB, g.TC, add)
}

// Constants of cublasLt.h and library_types.h.
const (
	compute32F      = 68
	descTransA      = 3
	descTransB      = 4
	descEpilogue    = 7
	descVector      = 8
	prefWorkspace   = 1
	prefReduction   = 3
	prefAlignA      = 5 // those of B, C and D follow
	reductionInType = 2 // partial sums are added in f32, in the workspace
	opT             = 1
	epilogueBias    = 4
	epilogueBGradB  = 512
)

// dataType is the cudaDataType of a type.
func dataType(d ir.DType) uintptr {
	return map[ir.DType]uintptr{ir.F32: 0, ir.F16: 2, ir.BF16: 14}[d]
}

// arenaAlign is the least alignment of tensors in bytes.
const arenaAlign = 64

// heuristicResult is a cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algo      algorithm
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// candidates is how many algorithms are timed, four runs each, or two if the second takes hopeless
// times as long as the best run of another. patience bounds the milliseconds that one product's
// trials take. By the rates that GPUs reach, all products of a step of GPT-2 124M of 32,768 tokens
// in bf16 take some 3 s, once. In f32 the largest take a quarter of a second each; of those only the
// library's first candidates are tried, which it lists in the order of its estimates.
const (
	candidates = 24
	patience   = 1000
	hopeless   = 1.25
)

// plan makes the plan of a kind of product, with the fastest of the library's candidates.
func (b *lt) plan(g GEMM, x, y, z, vector, workspace Ptr, s Stream, apart func() error) (p *ltPlan, err error) {
	p = &ltPlan{}
	if err := b.check(b.descCreate, b.descCreate.call(uintptr(unsafe.Pointer(&p.desc)), compute32F, dataType(ir.F32))); err != nil {
		return nil, err
	}
	for attr, trans := range map[uintptr]bool{descTransA: g.TransA, descTransB: g.TransB} {
		op := int32(0)
		if trans {
			op = opT
		}
		if err := b.check(b.descSet, b.descSet.call(p.desc, attr, uintptr(unsafe.Pointer(&op)), unsafe.Sizeof(op))); err != nil {
			return nil, err
		}
	}
	if g.Epilogue != NoEpilogue {
		if err := b.set(p, descVector, uint64(vector)); err != nil {
			return nil, err
		}
		e := [...]int32{AddBias: epilogueBias, SumB: epilogueBGradB}[g.Epilogue]
		if err := b.check(b.descSet, b.descSet.call(p.desc, descEpilogue, uintptr(unsafe.Pointer(&e)), unsafe.Sizeof(e))); err != nil {
			return nil, err
		}
	}
	stored := func(trans bool, rows, cols int64) (int64, int64) {
		if trans {
			return cols, rows
		}
		return rows, cols
	}
	aRows, aCols := stored(g.TransA, g.M, g.K)
	bRows, bCols := stored(g.TransB, g.K, g.N)
	for _, m := range []struct {
		layout         *uintptr
		d              ir.DType
		rows, cols, ld int64
	}{{&p.a, g.TypeA, aRows, aCols, g.LDA}, {&p.b, g.TypeB, bRows, bCols, g.LDB}, {&p.c, g.TC, g.M, g.N, g.LDC}} {
		err := b.check(b.layoutCreate, b.layoutCreate.call(uintptr(unsafe.Pointer(m.layout)), dataType(m.d), uintptr(m.rows), uintptr(m.cols), uintptr(m.ld)))
		if err != nil {
			return nil, err
		}
	}
	key := fmt.Sprintf("%s, %s", b.gpu, g)
	b.Lt.mu.Lock() // GPUs of one kind share a choice: the others wait for the first
	defer b.Lt.mu.Unlock()
	if algo, ok := b.chosen[key]; ok {
		p.algo = algo
		return p, nil
	}
	defer b.alternate(key)()
	if algo, ok := b.chosen[key]; ok {
		p.algo = algo
		return p, nil
	}
	timed, err := b.choose(g, p, x, y, z, workspace, s, apart)
	if err != nil {
		return nil, err
	}
	b.chosen[key], b.untimed[key] = p.algo, !timed
	b.save()
	return p, nil
}

// choose times the candidates on the operands and takes the fastest. For a product with an
// epilogue, apart is one of the candidates. timed is false if there was no memory for trials.
func (b *lt) choose(g GEMM, p *ltPlan, x, y, z, workspace Ptr, s Stream, apart func() error) (timed bool, err error) {
	results, err := b.ask(p)
	var refused *Error
	if apart != nil && (errors.As(err, &refused) || err == nil && len(results) == 0) {
		return true, nil // the library does not support it
	}
	if err != nil {
		return false, err
	}
	if len(results) == 0 {
		return false, fmt.Errorf("cuBLASLt %s has no algorithm for it", b.Version())
	}
	first := results[0].algo
	if len(results) == 1 && apart == nil {
		p.algo = first
		return true, nil
	}
	out, err := b.driver.Alloc(g.LDC * g.N * g.TC.Size())
	if err != nil {
		if apart == nil {
			p.algo = first
		}
		return false, nil // no memory for trials: take the library's first choice
	}
	best, spent := float32(0), float32(0)
	try := func(algo algorithm, do func() error) error {
		ms, all, err := b.time(do, s, best*hopeless)
		spent += all
		if err == nil && (best == 0 || ms < best) {
			best, p.algo = ms, algo
		}
		return err
	}
	for _, r := range results {
		if spent > patience {
			break
		}
		trial := *p
		trial.algo = r.algo
		_ = try(r.algo, func() error { return b.run(&trial, g.Accumulate, x, y, z, out, workspace, s) }) // if it fails, others may run
	}
	if apart != nil {
		err = try(noAlgorithm, apart)
	}
	if err := errors.Join(err, b.driver.Free(out)); err != nil {
		return false, err
	}
	if best == 0 {
		return false, fmt.Errorf("none of %d algorithms runs", len(results))
	}
	return true, nil
}

// ask returns the library's candidates, best estimate first.
func (b *lt) ask(p *ltPlan) (results []heuristicResult, err error) {
	var pref uintptr
	if err := b.check(b.prefCreate, b.prefCreate.call(uintptr(unsafe.Pointer(&pref)))); err != nil {
		return nil, err
	}
	defer func() {
		if gone := b.check(b.prefDestroy, b.prefDestroy.call(pref)); err == nil {
			err = gone
		}
	}()
	workspace, reduction, align := uint64(b.Workspace()), uint32(reductionInType), uint32(arenaAlign)
	if err := b.check(b.prefSet, b.prefSet.call(pref, prefWorkspace, uintptr(unsafe.Pointer(&workspace)), unsafe.Sizeof(workspace))); err != nil {
		return nil, err
	}
	if err := b.check(b.prefSet, b.prefSet.call(pref, prefReduction, uintptr(unsafe.Pointer(&reduction)), unsafe.Sizeof(reduction))); err != nil {
		return nil, err
	}
	for i := range uintptr(4) {
		if err := b.check(b.prefSet, b.prefSet.call(pref, prefAlignA+i, uintptr(unsafe.Pointer(&align)), unsafe.Sizeof(align))); err != nil {
			return nil, err
		}
	}
	results = make([]heuristicResult, candidates)
	var n int32
	err = b.check(b.heuristic, b.heuristic.call(b.handle, p.desc, p.a, p.b, p.c, p.c, pref, candidates, uintptr(unsafe.Pointer(&results[0])), uintptr(unsafe.Pointer(&n))))
	if err != nil {
		return nil, err
	}
	// The other fields of a result say nothing unless its state is success.
	return slices.DeleteFunc(results[:n], func(r heuristicResult) bool { return r.state != 0 }), nil
}

// time returns how many milliseconds the work that do gives to a stream takes: the best of three
// runs after a warm-up, or one if it takes longer than limit, which is not 0. all is the sum with the
// warm-up.
func (b *lt) time(do func() error, s Stream, limit float32) (best, all float32, err error) {
	var ends [2]Event
	for i := range ends {
		if ends[i], err = b.driver.CreateEvent(true); err != nil {
			return 0, all, err
		}
		defer b.driver.DestroyEvent(ends[i])
	}
	for round := range 4 {
		if err := b.driver.RecordEvent(ends[0], s); err != nil {
			return 0, all, err
		}
		if err := do(); err != nil {
			return 0, all, err
		}
		if err := b.driver.RecordEvent(ends[1], s); err != nil {
			return 0, all, err
		}
		if err := b.driver.SyncStream(s); err != nil {
			return 0, all, err
		}
		ms, err := b.driver.Elapsed(ends[0], ends[1])
		if err != nil {
			return 0, all, err
		}
		all += ms
		if round == 1 || round > 1 && ms < best {
			best = ms
		}
		if round == 1 && limit > 0 && ms > limit {
			break
		}
	}
	return max(best, 1e-6), all, nil
}

func (b *lt) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.plans {
		b.descDestroy.call(p.desc)
		for _, layout := range []uintptr{p.a, p.b, p.c} {
			b.layoutDestroy.call(layout)
		}
	}
	return b.check(b.destroy, b.destroy.call(b.handle))
}
