package explain

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Summary writes the part of the report that is about the whole plan: what it costs, and what other plans would.
func (r *Report) Summary(w io.Writer) error {
	out := bufio.NewWriter(w)
	r.summary(out)
	return out.Flush()
}

func (r *Report) summary(out io.Writer) {
	r.header(out)
	if r.Prediction != nil {
		r.Prediction.text(out)
	}
	r.divisionsText(out)
	for _, v := range r.Versus {
		v.text(out, r.Prediction.StepSeconds)
	}
	if len(r.Rejected) > 0 {
		r.rejectedText(out)
	}
	if r.Sensitivities != nil {
		r.sensitivityText(out)
	}
	if r.Fronts != nil {
		r.frontText(out)
	}
}

// Text writes the whole report as text.
func (r *Report) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	r.summary(out)
	for _, st := range r.Stages {
		r.stageText(out, st)
	}
	r.trafficText(out)
	return out.Flush()
}

// header prints the model, the degrees and the choices of the plan.
func (r *Report) header(out io.Writer) {
	fmt.Fprintf(out, "%s: %s parameters, %s and %s tokens per step\n", r.Model, Grouped(r.Parameters), Count(r.Batch, "sequence"), Grouped(int64(r.Tokens)))
	fmt.Fprintf(out, "%s: %s of %s, %s x %s; ", Count(r.RuntimeNGPUs, "rank"), Count(r.Units, "unit"), Count(r.PlanNGPUs, "rank"),
		r.prog.Plan.MeshDegrees(), Count(r.PP, "stage"))
	if n := r.CP; n > 1 {
		fmt.Fprintf(out, "%s share every sequence; ", Count(n, "rank"))
	}
	fmt.Fprintf(out, "%s of up to %s, %s schedule%s\n", Count(r.MicroBatches, "micro-batch"), Count(r.MicroBatch, "sequence"), r.prog.Plan.ScheduleText(), shardedText(r.prog.Plan))
	fmt.Fprintf(out, "every stage is a %s; what is not split over dp is the same on all data-parallel ranks\n", r.Mesh)
	if p := r.prog.Plan; p.SequenceParts > 1 {
		fmt.Fprintf(out, "each sequence is %d rows of the batch, parts of %d tokens that tensor parallelism may make one by one; attention joins them\n",
			p.SequenceParts, r.Tokens/r.Batch/p.SequenceParts)
	}
	if p := r.prog.Plan; p.RankOrder != "" {
		fmt.Fprintf(out, "ranks of a unit are numbered in order %s, innermost first\n", p.RankOrderText())
	}
	if p := r.prog.Plan; p.BatchShares != nil {
		fmt.Fprintf(out, "data-parallel ranks share the batch as %s; the mesh has those with the most first\n", ir.SharesText(p.BatchShares))
	}
	if r.cfg.Train.Reproducible {
		fmt.Fprintf(out, "reproducible: %s\n", ReproducibleText(r.prog.Plan))
	}
}

func (r *Report) stageText(out io.Writer, st *Stage) {
	fmt.Fprintf(out, "\nstage %d: %s", st.Index, rankText(st.Ranks))
	if len(st.Chunks) == 0 {
		fmt.Fprint(out, blocksText(st.Blocks), againText(r.prog.Plan.Stages[st.Index]))
	}
	for i, blocks := range st.Chunks {
		fmt.Fprintf(out, "; chunk %d%s%s", i, blocksText(blocks), againText(r.prog.Plan.Stages[st.Index+i*len(r.Stages)]))
	}
	fmt.Fprintln(out)

	headings := map[string]string{
		KindWeight: "weights", KindGradient: "gradients, kept until the update", KindSaved: "saved from a micro-batch's forward to its backward",
		KindInput: "inputs", KindConstant: "constants", KindOther: "other values kept",
	}
	for _, kind := range kinds() {
		if kind == KindOptimizer {
			r.optimizerText(out, st)
			continue
		}
		var rows [][]string
		for _, t := range st.Tensors {
			if t.Kind == kind {
				name := t.Name
				if kind == KindGradient {
					name = "of " + t.Of
				}
				rows = append(rows, []string{name, times(t.Count), shapeText(t.DType, t.Shape), t.Spec, Grouped(t.Bytes), t.Why})
			}
		}
		if len(rows) > 0 {
			table(out, headings[kind]+", bytes on one rank", rows, 4)
		}
	}
	r.commTable(out, st)
	st.Memory.text(out)
}

// optimizerText prints the optimizer state as one sum for each reason why it lies as it does.
func (r *Report) optimizerText(out io.Writer, st *Stage) {
	type sum struct {
		tensors int
		bytes   int64
	}
	var reasons []string
	by := map[string]sum{}
	for _, t := range st.Tensors {
		if t.Kind != KindOptimizer {
			continue
		}
		s, seen := by[t.Why]
		if !seen {
			reasons = append(reasons, t.Why)
		}
		by[t.Why] = sum{s.tensors + t.Count, s.bytes + int64(t.Count)*t.Bytes}
	}
	for _, why := range reasons {
		fmt.Fprintf(out, "  optimizer state: %s, %s bytes; each %s\n", Count(by[why].tensors, "tensor"), Grouped(by[why].bytes), why)
	}
}

func (r *Report) commTable(out io.Writer, st *Stage) {
	if len(st.Communication) == 0 {
		fmt.Fprintf(out, "  communication: none\n")
		return
	}
	var rows [][]string
	var bytes int64
	for _, c := range st.Communication {
		group := fmt.Sprintf("%s of %d", c.Axis, c.Ranks)
		if c.Peer != nil {
			group = fmt.Sprintf("stage %d", *c.Peer)
		}
		if c.Host {
			group = "host"
		}
		rows = append(rows, []string{c.Name, c.Op, group, c.Phase, times(c.Runs), Grouped(c.Single), Grouped(c.Bytes)})
		bytes += c.Bytes
	}
	rows = append(rows, []string{"together", "", "", "", "", "", Grouped(bytes)})
	title := fmt.Sprintf("communication of rank %d in a step: what is moved, runs, bytes each, bytes per step", st.Busiest)
	table(out, title, rows, 4, 5, 6)
}

func blocksText(blocks []string) string {
	switch n := len(blocks); n {
	case 0:
		return ""
	case 1:
		return ", block " + blocks[0]
	default:
		return fmt.Sprintf(", blocks %s to %s", blocks[0], blocks[n-1])
	}
}

// where names the blocks of a stage, of each chunk if there are several.
func (st *Stage) where() string {
	if len(st.Chunks) == 0 {
		return blocksText(st.Blocks)
	}
	text := ""
	for i, blocks := range st.Chunks {
		text += fmt.Sprintf("; chunk %d%s", i, blocksText(blocks))
	}
	return text
}

// againText says in which blocks of a stage of the plan activations are computed again.
func againText(s partition.Stage) string {
	text := ""
	if s.Recompute > 0 {
		text += fmt.Sprintf(", activations computed again in the first %d", s.Recompute)
	}
	if s.Selective > 0 {
		text += fmt.Sprintf(", attention computed again in %d", s.Selective)
	}
	if s.Pointwise > 0 {
		text += fmt.Sprintf(", norms and activation functions computed again in %d", s.Pointwise)
	}
	return text
}

func (m Memory) text(out io.Writer) {
	fmt.Fprintf(out, "  memory: arena of %s bytes = %s persistent", Grouped(m.Arena), Grouped(m.Persist))
	for _, c := range m.Chunks {
		fmt.Fprintf(out, " + %s of %s", Count(c.Slots, "slot"), Grouped(c.Slot))
		if c.Inbox > 0 {
			fmt.Fprintf(out, " + %d to receive %s", c.Inboxes, Grouped(c.Inbox))
		}
	}
	fmt.Fprintf(out, " + %s temporary\n", Grouped(m.Temp))
	var parts []string
	for _, p := range m.Parts {
		parts = append(parts, fmt.Sprintf("%s %s", p.Kind, Grouped(p.Bytes)))
	}
	fmt.Fprintf(out, "    persistent: %s\n", strings.Join(parts, ", "))
	if m.Host > 0 {
		fmt.Fprintf(out, "    host memory: arena of %s bytes beside that of the device\n", Grouped(m.Host))
	}
	for i, c := range m.Chunks {
		what := "slot"
		if len(m.Chunks) > 1 {
			what = fmt.Sprintf("slot of chunk %d", i)
		}
		c.SlotPeak.text(out, what, c.Slot)
	}
	m.TempPeak.text(out, "temporary", m.Temp)
}

func (p Peak) text(out io.Writer, what string, region int64) {
	if p.Bytes == 0 {
		return
	}
	fmt.Fprintf(out, "    %s: fullest at %s (%s), %s of %s bytes live:", what, p.At, p.Phase, Grouped(p.Bytes), Grouped(region))
	for i, l := range p.Largest[:min(3, len(p.Largest))] {
		if i > 0 {
			fmt.Fprint(out, ",")
		}
		fmt.Fprintf(out, " %s %s", l.Name, Grouped(l.Bytes))
	}
	fmt.Fprintln(out)
}

// trafficText lists what the runtime will count. Ranks that communicate the same share a row.
func (r *Report) trafficText(out io.Writer) {
	var rows [][]string
	ranks := map[Traffic][]int{}
	var order []Traffic
	for _, t := range r.Traffic {
		key := t
		key.Rank = 0
		if ranks[key] == nil {
			order = append(order, key)
		}
		ranks[key] = append(ranks[key], t.Rank)
	}
	var collective, transfer, host int64
	for _, t := range r.Traffic {
		collective += t.CollectiveBytes
		transfer += t.TransferBytes
		host += t.HostBytes
	}
	title, columns := "counted per step: collectives, bytes received in them, transfers (both ends), bytes in them", []int{1, 2, 3, 4}
	add := func(who, collectives string, collectiveBytes int64, transfers string, transferBytes int64, copies string, hostBytes int64) {
		row := []string{who, collectives, Grouped(collectiveBytes), transfers, Grouped(transferBytes)}
		if host > 0 {
			row = append(row, copies, Grouped(hostBytes))
		}
		rows = append(rows, row)
	}
	if host > 0 {
		title, columns = title+", copies from and to the host, bytes in them", append(columns, 5, 6)
	}
	for _, t := range order {
		add(rankText(ranks[t]), strconv.Itoa(t.Collectives), t.CollectiveBytes, strconv.Itoa(t.Transfers), t.TransferBytes, strconv.Itoa(t.HostCopies), t.HostBytes)
	}
	add("all ranks", "", collective, "", transfer, "", host)
	fmt.Fprintln(out)
	table(out, title, rows, columns...)
}

// table prints rows of cells in columns below a title. The columns listed in right are aligned to the right.
func table(out io.Writer, title string, rows [][]string, right ...int) {
	fmt.Fprintf(out, "  %s\n", title)
	for _, column := range right {
		width := 0
		for _, row := range rows {
			width = max(width, len(row[column]))
		}
		for _, row := range rows {
			row[column] = strings.Repeat(" ", width-len(row[column])) + row[column]
		}
	}
	var text strings.Builder
	tab := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(tab, "    %s\n", strings.Join(row, "\t"))
	}
	tab.Flush() // to memory: cannot fail
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

func shapeText(dtype string, shape []int) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = strconv.Itoa(n)
	}
	return dtype + "[" + strings.Join(parts, ",") + "]"
}

func times(n int) string { return fmt.Sprintf("x%d", n) }

// Count prints "1 rank", "2 ranks", "3 micro-batches".
func Count(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "ch"):
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// rankText lists ranks as ranges; of very many, as those of a large mesh with a stride, the first and the last.
func rankText(ranks []int) string {
	const few = 8
	all := ranges(ranks)
	if len(all) > few {
		return fmt.Sprintf("%d ranks: %s,...,%s", len(ranks), strings.Join(all[:few/2], ","), all[len(all)-1])
	}
	if len(ranks) == 1 {
		return "rank " + all[0]
	}
	return "ranks " + strings.Join(all, ",")
}

// numbers prints increasing integers as ranges: 0-3,8-11.
func numbers(xs []int) string { return strings.Join(ranges(xs), ",") }

func ranges(xs []int) (all []string) {
	for i := 0; i < len(xs); {
		from := i
		for i++; i < len(xs) && xs[i] == xs[i-1]+1; i++ {
		}
		text := strconv.Itoa(xs[from])
		if i-1 > from {
			text += "-" + strconv.Itoa(xs[i-1])
		}
		all = append(all, text)
	}
	return all
}

// Grouped prints an integer with a comma every three digits.
func Grouped(n int64) string {
	if -1000 < n && n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", Grouped(n/1000), max(n%1000, -(n%1000)))
}

// Seconds prints a time with four significant digits.
func Seconds(s float64) string {
	switch a := math.Abs(s); {
	case a >= 1 || a == 0:
		return fmt.Sprintf("%.4g s", s)
	case a >= 1e-3:
		return fmt.Sprintf("%.4g ms", s*1e3)
	}
	return fmt.Sprintf("%.4g us", s*1e6)
}
