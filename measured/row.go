// Package measured compares predictions with published training runs. It reads tables of runs, translates each row to a plan,
// a cluster and a description of the training software, and prices that plan as the planner prices any plan.
// `autopar validate` and `autopar fit` call it.
//
// Reading order:
//
//   - row.go and consistent.go read a table and check it.
//   - predict.go translates a row to a model, plan and cluster; cut.go how its software cuts a model into stages, software.go
//     which software it ran, memory.go what that software keeps in memory beyond the arena.
//   - compile.go compiles and prices rows. unstated.go predicts rows that do not state all of their plan.
//   - report.go, memoryreport.go and plot.go summarize errors; regret.go is what choosing plans by prediction costs, noise.go
//     what it costs because measurements scatter.
//   - constants.go lists the constants of the cost model, fit.go fits them to a table.
package measured

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/planner/cost"
)

// Row is one published run. Counts that its source does not state are 0.
type Row struct {
	Line int // of the file, from 1

	ID, Source, Ref, Framework, ModelName string

	Layers, Hidden, Heads, KVHeads, FFN, Vocab, SeqLen int
	Gated, Tied                                        bool

	GPU               string // a name of hardware.csv
	GPUs, GPUsPerNode int
	Network           float64       // bytes/s per GPU and direction between nodes; 0 if not stated
	machine           *cost.Cluster // nil means the built-in cluster with the GPU

	TP, PP, VirtualStages, CP, DP int
	Experts                       int // column ep: ranks that share the experts of a layer
	SequenceParallel              bool
	Schedule                      string // none, 1f1b, interleaved_1f1b, unstated or ""
	ZeRO, ZeROGroup               int
	MicroBatch, GlobalBatch       int    // sequences
	Recompute                     string // none, selective, full or unstated
	DType                         string // bf16, fp16 or fp8
	GradDType                     string // type in which gradients are reduced; "" if not stated
	FlashAttention                bool
	FlashAttention2               bool // version 2 or later
	Compiled                      bool // by torch.compile
	FusedNorm                     bool // the row names a kernel for RMSNorm
	RecomputeNote, Note           string
	Kernels                       string // column attention_kernel; "" if the table lacks it

	StepSeconds float64 // 0 if only the outcome is known
	Peak        float64 // bytes; 0 if not published
	PeakKind    string  // what measured Peak: see peakAs
	Fits        *bool   // whether it ran, in a table of outcomes
	Confidence  string
}

// Error says why a table cannot be read.
type Error struct {
	File   string
	Line   int
	Column string
	Msg    string
}

func (e *Error) Error() string {
	text := e.File
	if e.Line > 0 {
		text += fmt.Sprintf(":%d", e.Line)
	}
	if e.Column != "" {
		column := e.Column
		if !plain(column) {
			column = strconv.Quote(column)
		}
		text += ": " + column
	}
	return text + ": " + e.Msg
}

// plain reports whether a text can be printed as it is: nothing in it controls a terminal or ends a line.
func plain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) })
}

// needed are the columns that every table must have.
func needed() []string {
	return []string{
		"row_id", "source_id", "n_layers", "hidden_size", "n_heads", "n_kv_heads", "ffn_hidden_size", "ffn_gated", "vocab_size",
		"seq_len", "gpu", "n_gpus", "gpus_per_node", "tp", "pp", "cp", "dp", "sequence_parallel", "zero_stage", "micro_batch",
		"global_batch", "recompute", "dtype",
	}
}

// known are all columns that are read, and those that are only for human readers.
func known() []string {
	return append(needed(),
		"source_ref", "framework", "model_name", "tied_embeddings", "inter_node_gb_s_per_gpu", "vpp", "ep", "schedule",
		"zero_shard_degree", "recompute_note", "grad_reduce_dtype", "flash_attention", "torch_compile", "attention_kernel",
		"step_time_s", "step_time_origin", "tokens_per_s_per_gpu", "tflops_per_gpu", "tflops_convention", "mfu_pct", "hfu_pct",
		"peak_tflops_for_mfu", "peak_mem_gib", "peak_mem_kind", "confidence", "note", "fits")
}

// maxTable bounds the size of a file, in bytes, far above that of any table.
const maxTable = 64 << 20

// Load reads a table from a file: see [Read].
func Load(path string, own ...*cost.Cluster) ([]Row, error) {
	text, err := infile.Read(path, maxTable)
	if err != nil {
		return nil, &Error{File: path, Msg: "cannot be read: " + infile.WithoutPath(err).Error()}
	}
	return Read(path, bytes.NewReader(text), own...)
}

// Read reads a table; file names it in errors, which are of type [*Error]. Every row must state its model, its machine and
// its plan, and either a step time or whether it fits. Rows whose gpu is the device of a cluster in own are predicted on that
// cluster and not on a built-in one.
func Read(file string, r io.Reader, own ...*cost.Cluster) ([]Row, error) {
	text := bufio.NewReader(r)
	if mark, _, err := text.ReadRune(); err == nil && mark != '\ufeff' {
		text.UnreadRune()
	}
	lines := csv.NewReader(text)
	header, err := lines.Read()
	if err != nil {
		return nil, readError(file, err)
	}
	if len(header) == 1 {
		return nil, &Error{File: file, Line: 1, Msg: "has one column; columns are separated by commas"}
	}
	at := map[string]int{}
	for i, name := range header {
		name = strings.TrimSpace(name)
		header[i] = name
		if name == "" { // spreadsheets write such columns beside the table
			continue
		}
		if _, twice := at[name]; twice {
			return nil, &Error{File: file, Line: 1, Column: name, Msg: "is there twice"}
		}
		at[name] = i
	}
	for _, name := range needed() {
		if _, ok := at[name]; !ok {
			return nil, &Error{File: file, Line: 1, Column: name, Msg: "is missing"}
		}
	}
	for _, name := range header {
		if name == "" {
			continue
		}
		if near := config.Nearest(name, known()); near != name {
			if _, there := at[near]; !there {
				return nil, &Error{File: file, Line: 1, Column: name, Msg: "is unknown; did you mean " + near + "?"}
			}
		}
	}
	_, timed := at["step_time_s"]
	_, judged := at["fits"]
	if !timed && !judged {
		return nil, &Error{File: file, Line: 1, Msg: "has neither step_time_s nor fits: there is nothing to compare with"}
	}
	var rows []Row
	ids := map[string]int{}
	for {
		cells, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, csv.ErrFieldCount) {
			return nil, readError(file, err)
		}
		line, _ := lines.FieldPos(0)
		if err != nil {
			return nil, &Error{File: file, Line: line, Msg: fmt.Sprintf("has %d cells, the header %d", len(cells), len(header))}
		}
		p := parser{file: file, line: line, cells: cells, at: at, own: own}
		row := p.row()
		if p.err != nil {
			return nil, p.err
		}
		if first, twice := ids[row.ID]; twice {
			return nil, &Error{File: file, Line: line, Column: "row_id", Msg: fmt.Sprintf("%s is on line %d already", row.ID, first)}
		}
		ids[row.ID] = line
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil, &Error{File: file, Msg: "has no rows"}
	}
	return rows, nil
}

func readError(file string, err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{File: file, Msg: "is empty"}
	}
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		return &Error{File: file, Line: bad.Line, Msg: bad.Err.Error()}
	}
	return &Error{File: file, Msg: err.Error()}
}

// parser reads the cells of one line. Its error is that of the first cell that is wrong.
type parser struct {
	file  string
	line  int
	cells []string
	at    map[string]int
	own   []*cost.Cluster
	err   error
}

func (p *parser) row() Row {
	flash := p.upTo("flash_attention", 2)
	r := Row{
		Line: p.line,
		ID:   p.text("row_id"), Source: p.text("source_id"), Ref: p.text("source_ref"), Framework: p.text("framework"), ModelName: p.text("model_name"),
		Layers: p.count("n_layers"), Hidden: p.count("hidden_size"), Heads: p.count("n_heads"), KVHeads: p.count("n_kv_heads"),
		FFN: p.count("ffn_hidden_size"), Vocab: p.count("vocab_size"), SeqLen: p.count("seq_len"),
		Gated: p.flag("ffn_gated"), Tied: p.flag("tied_embeddings"),
		GPU: p.text("gpu"), GPUs: p.count("n_gpus"), GPUsPerNode: p.count("gpus_per_node"), Network: p.network(),
		TP: p.count("tp"), PP: p.count("pp"), VirtualStages: max(1, p.atLeast("vpp", 0)), CP: p.count("cp"), DP: p.count("dp"), Experts: p.atLeast("ep", 0),
		SequenceParallel: p.flag("sequence_parallel"), Schedule: p.optional("schedule", "none", "1f1b", "interleaved_1f1b", "unstated"),
		ZeRO: p.atLeast("zero_stage", 0), ZeROGroup: p.atLeast("zero_shard_degree", 0),
		MicroBatch: p.atLeast("micro_batch", 0), GlobalBatch: p.count("global_batch"),
		Recompute: p.word("recompute", "none", "selective", "full", "unstated"), DType: p.word("dtype", "fp32", "bf16", "fp16", "fp8"),
		GradDType:       p.optional("grad_reduce_dtype", "fp32", "bf16", "fp16", "fp8", "unstated"),
		FlashAttention:  flash > 0 || strings.Contains(p.text("attention_kernel"), "flash"),
		FlashAttention2: flash > 1 || strings.Contains(p.text("attention_kernel"), "flash_attention2"), Compiled: p.flag("torch_compile"),
		FusedNorm: strings.Contains(p.text("attention_kernel")+p.text("note"), "RMS kernel"), RecomputeNote: p.text("recompute_note"), Note: p.text("note"),
		StepSeconds: p.number("step_time_s"), Peak: p.peak(), PeakKind: p.text("peak_mem_kind"), Kernels: p.text("attention_kernel"), Confidence: p.optional("confidence", "high", "medium", "low"),
	}
	if p.text("fits") != "" {
		fits := p.flag("fits")
		r.Fits = &fits
	}
	if p.err == nil && r.Fits == nil && r.StepSeconds <= 0 {
		p.refuse("step_time_s", "is missing")
	}
	for _, column := range []string{"row_id", "source_id", "gpu"} {
		switch text := p.text(column); {
		case text == "":
			p.refuse(column, "is missing")
		case !plain(text):
			p.refuse(column, fmt.Sprintf("is %q, want text without control characters", text))
		}
	}
	p.consistent(&r)
	return r
}

func (p *parser) refuse(column, msg string) {
	if p.err == nil {
		p.err = &Error{File: p.file, Line: p.line, Column: column, Msg: msg}
	}
}

// text returns a cell, or "" if the table lacks the column.
func (p *parser) text(column string) string {
	if i, ok := p.at[column]; ok {
		return strings.TrimSpace(p.cells[i])
	}
	return ""
}

func (p *parser) count(column string) int { return p.atLeast(column, 1) }

// atLeast returns a count. If 0 is allowed, a cell may be empty, which means 0.
func (p *parser) atLeast(column string, least int) int {
	text := p.text(column)
	if least == 0 && (text == "" || text == "none") {
		return 0
	}
	const most = 1 << 30
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		p.refuse(column, fmt.Sprintf("is %q, want a count of %d to %d", text, least, most))
		return least
	}
	return n
}

// upTo returns one of the few values of a column, which count from 0. An empty cell means 0.
func (p *parser) upTo(column string, most int) int {
	n := p.atLeast(column, 0)
	if n > most {
		p.refuse(column, fmt.Sprintf("is %q, want 0 to %d", p.text(column), most))
	}
	return n
}

// number returns a positive number, or 0 for an empty cell. No time, memory or rate lies outside its bounds, and with such
// numbers errors of predictions and sizes in bytes would not be finite.
func (p *parser) number(column string) float64 {
	text := p.text(column)
	if text == "" {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 1e-9 && f <= 1e9) {
		p.refuse(column, fmt.Sprintf("is %q, want a positive number, of 1e-9 to 1e9", text))
	}
	return f
}

// network returns the rate between nodes in bytes/s, or 0 if it is not stated. No cluster has less than 1,000 bytes/s.
func (p *parser) network() float64 {
	const column = "inter_node_gb_s_per_gpu"
	f := p.number(column)
	if p.err == nil && f > 0 && f < 1e-6 {
		p.refuse(column, fmt.Sprintf("is %q, want 1e-6 (1,000 bytes/s) at least", p.text(column)))
	}
	return 1e9 * f
}

// peak returns the published peak memory in bytes. nvidia-smi prints MiB, and sources that give gigabytes from it mean 1000
// MiB.
func (p *parser) peak() float64 {
	unit := 1 << 30
	if strings.HasPrefix(p.text("peak_mem_kind"), "nvidia_smi_gb") {
		unit = 1000 << 20
	}
	return p.number("peak_mem_gib") * float64(unit)
}

func (p *parser) flag(column string) bool {
	switch text := p.text(column); text {
	case "", "0":
		return false
	case "1":
		return true
	default:
		p.refuse(column, fmt.Sprintf("is %q, want 0 or 1", text))
		return false
	}
}

// optional returns one of a few words, or "" if the table does not state it.
func (p *parser) optional(column string, words ...string) string {
	if p.text(column) == "" {
		return ""
	}
	return p.word(column, words...)
}

func (p *parser) word(column string, words ...string) string {
	text := p.text(column)
	if slices.Contains(words, text) {
		return text
	}
	p.refuse(column, fmt.Sprintf("is %q, want one of %s; did you mean %s?", text, strings.Join(words, ", "), config.Nearest(text, words)))
	return words[0]
}
