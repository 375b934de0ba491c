package planner

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/partition"
)

// The text of a certificate: Marshal writes it, ReadCertificate reads it back, strictly. It is made
// of lines so that a tool can count, sort or tamper with regions, and so that an error names one.

// Marshal prints the certificate: a header, one line for each region, and their number.
//
//	trunk unit=8 dp=4 cp=1 tp=2 pp=1 chunks=1 zero=1 group=0 sp=off overlap=on offload=none sizes=1-4,8 schedules=1f1b bound=7293000000
func (c *Certificate) Marshal() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, certificateSchema)
	for _, h := range c.header() {
		fmt.Fprintf(&b, "%s %s\n", h.key, h.text())
	}
	for i := range c.Regions {
		r := &c.Regions[i]
		b.WriteString(string(r.reason))
		word := func(key, value string) { b.WriteString(" " + key + "=" + value) }
		number := func(key string, n int) { word(key, strconv.Itoa(n)) }
		number("unit", r.plan)
		number("dp", r.dp)
		number("cp", r.cp)
		number("tp", r.tp)
		number("pp", r.pp)
		if r.order > 0 {
			number("order", r.order)
		}
		number("chunks", r.chunks)
		number("zero", r.zero)
		number("group", r.group)
		word("sp", onOff(r.sequence))
		word("overlap", onOff(r.overlap))
		word("offload", r.offload.String())
		if r.replicate != "" {
			word("replicate", r.replicate)
		}
		if r.batch {
			word("bp", onOff(r.batch))
		}
		if r.rows > 0 {
			number("rows", r.rows)
			word("grid", r.grid)
		}
		for _, of := range []struct {
			key    string
			counts []int
		}{{"slices", r.slices}, {piecesKey(r.ofParts), r.pieces}} {
			if len(of.counts) > 1 || of.counts[0] > 0 {
				var counts []int
				for _, n := range of.counts {
					counts = append(counts, max(1, n))
				}
				word(of.key, rangesText(counts))
			}
		}
		if slices.Contains(r.waits, true) {
			word("waits", map[bool]string{true: "on", false: "both"}[len(r.waits) == 1])
		}
		if ranks := strings.Join(r.ranks, ","); ranks != "" {
			word("ranks", ranks)
		}
		word("sizes", rangesText(r.sizes))
		word("schedules", schedulesText(r.schedules))
		switch r.reason {
		case byTrunk, byStages, byCuts:
			number("bound", int(r.bound))
		case byMemory:
			number("holds", r.holds)
		case byTwin:
			number("of", r.unit)
			if r.as != "" {
				word("as", r.as)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "end %d\n", len(c.Regions))
	return b.Bytes()
}

// headerLine is a line of the header: a key and a value in JSON.
type headerLine struct {
	key   string
	value any
}

func (h headerLine) text() string { return mustJSON(h.value) }

// header lists the lines of the header, with pointers to the values to read into.
func (c *Certificate) header() []headerLine {
	return []headerLine{
		{"graph", &c.GraphHash}, {"config", &c.ConfigHash}, {"cluster", &c.ClusterHash}, {"options", &c.Options}, {"limit", &c.Limit},
		{"everywhere", &c.Everywhere}, {"plan", &c.Plan}, {"step", (*int64)(&c.Step)}, {"peaks", &c.Peaks},
	}
}

func schedulesText(all []partition.Schedule) string {
	var words []string
	for _, s := range all {
		words = append(words, string(s))
	}
	return strings.Join(words, ",")
}

// rangesText writes increasing numbers; consecutive ones as first-last.
func rangesText(all []int) string {
	var words []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		word := strconv.Itoa(all[i])
		if j > i {
			word += "-" + strconv.Itoa(all[j])
		}
		words = append(words, word)
		i = j + 1
	}
	return strings.Join(words, ",")
}

// CertificateError is a certificate that cannot be read.
type CertificateError struct {
	File string
	Line int // from 1; 0 if it is the file as a whole
	Msg  string
}

func (e *CertificateError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
}

// maxCertificate is a limit in bytes, far beyond any certificate: that of 175 billion parameters on
// 1,024 devices has 18 million.
const maxCertificate = 1 << 30

// ReadCertificate reads a file that [Certificate.Marshal] wrote. It fails with a *CertificateError
// on any other.
func ReadCertificate(file string) (*Certificate, error) {
	data, err := infile.Read(file, maxCertificate)
	if err != nil {
		return nil, &CertificateError{file, 0, "cannot be read: " + infile.WithoutPath(err).Error()}
	}
	c, line, err := parseCertificate(data)
	if err != nil {
		return nil, &CertificateError{file, line, err.Error()}
	}
	return c, nil
}

// parseCertificate also returns the line of an error.
func parseCertificate(data []byte) (c *Certificate, line int, err error) {
	c = &Certificate{}
	header := c.header()
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		line++
		text := lines.Text()
		key, value, _ := strings.Cut(text, " ")
		switch {
		case line == 1:
			if text != certificateSchema {
				return nil, line, fmt.Errorf("is %.40q, want %q: not a certificate, or one of another version", text, certificateSchema)
			}
		case line-2 < len(header):
			h := header[line-2]
			if key != h.key {
				return nil, line, fmt.Errorf("is %q, want key %s", key, h.key)
			}
			d := json.NewDecoder(strings.NewReader(value))
			d.DisallowUnknownFields()
			if err := d.Decode(h.value); err != nil || d.More() {
				return nil, line, fmt.Errorf("%s: not a value: %.60s: %v", key, value, err)
			}
		case key == "end":
			if n, err := strconv.Atoi(value); err != nil || n != len(c.Regions) {
				return nil, line, fmt.Errorf("end %s, but there are %d regions before it", value, len(c.Regions))
			}
			if lines.Scan() {
				return nil, line + 1, fmt.Errorf("there is more after the end")
			}
			if c.Plan == nil || len(c.Plan.Stages) == 0 {
				return nil, len(header), fmt.Errorf("plan: there is none")
			}
			return c, line, nil
		default:
			r, err := parseRegion(key, value)
			if err != nil {
				return nil, line, err
			}
			r.line = line
			c.Regions = append(c.Regions, r)
		}
	}
	return nil, line, cmp.Or(lines.Err(), fmt.Errorf("ends without a line end: the file was cut off"))
}

// parseRegion reads the line of a region.
func parseRegion(word, text string) (Region, error) {
	r := Region{reason: reason(word), ranks: []string{""}, waits: []bool{false}, slices: []int{0}, pieces: []int{0}}
	last := map[reason]string{byTrunk: "bound", byStages: "bound", byCuts: "bound", byMemory: "holds", byTwin: "of"}[r.reason]
	if last == "" && r.reason != refused && r.reason != bySearch && r.reason != spares {
		return r, fmt.Errorf("%q is no reason, must be one of trunk stages cuts memory alike refused searched spares", word)
	}
	number := func(at *int) func(string) error {
		return func(text string) (err error) {
			if *at, err = strconv.Atoi(text); err != nil || *at < 0 {
				return fmt.Errorf("must be a whole number, at least 0 and of an int's size")
			}
			return nil
		}
	}
	toggle := func(at *bool) func(string) error {
		return func(text string) error {
			if *at = text == "on"; text != "on" && text != "off" {
				return fmt.Errorf("must be on or off")
			}
			return nil
		}
	}
	bound := (*int64)(&r.bound)
	read := map[string]func(string) error{
		"unit": number(&r.plan), "dp": number(&r.dp), "cp": number(&r.cp), "tp": number(&r.tp), "pp": number(&r.pp), "chunks": number(&r.chunks),
		"zero": number(&r.zero), "group": number(&r.group), "sp": toggle(&r.sequence), "overlap": toggle(&r.overlap),
		"offload": func(text string) error {
			if r.offload = partition.Offload(text); text == "none" {
				r.offload = partition.OffloadNone
			}
			return nil
		},
		"sizes": func(text string) (err error) { r.sizes, err = parseRanges(text); return err },
		"schedules": func(text string) error {
			for _, s := range strings.Split(text, ",") {
				r.schedules = append(r.schedules, partition.Schedule(s))
			}
			return nil
		},
	}
	switch last {
	case "bound":
		read[last] = func(text string) (err error) {
			if *bound, err = strconv.ParseInt(text, 10, 64); err != nil {
				return fmt.Errorf("must be a whole number of picoseconds")
			}
			return nil
		}
	case "holds":
		read[last] = number(&r.holds)
	case "of":
		read[last] = number(&r.unit)
	}
	if strings.Contains(text, " order=") { // only clusters of several kinds of devices have it
		read["order"] = number(&r.order)
	}
	if strings.Contains(text, " replicate=") { // likewise if anything is replicated
		read["replicate"] = func(text string) error { r.replicate = text; return nil }
	}
	if strings.Contains(text, " bp=") { // or tensor-parallel ranks share the batch
		read["bp"] = toggle(&r.batch)
	}
	if strings.Contains(text, " rows=") { // or some modules are on a grid
		read["rows"] = number(&r.rows)
		read["grid"] = func(text string) error { r.grid = text; return nil }
	}
	if strings.Contains(text, " waits=") { // left out if stages do not wait for what they send
		read["waits"] = func(text string) error {
			r.waits = map[string][]bool{"on": {true}, "both": {false, true}}[text]
			if r.waits == nil {
				return fmt.Errorf("must be on or both")
			}
			return nil
		}
	}
	r.ofParts = strings.Contains(text, " "+piecesKey(true)+"=")
	for key, counts := range map[string]*[]int{"slices": &r.slices, piecesKey(r.ofParts): &r.pieces} {
		if strings.Contains(text, " "+key+"=") { // left out if there is one slice, or one part
			read[key] = func(text string) (err error) {
				*counts, err = parseRanges(text)
				for i, n := range *counts {
					if n == 1 {
						(*counts)[i] = 0
					}
				}
				return err
			}
		}
	}
	if strings.Contains(text, " ranks=") { // left out in the usual order
		read["ranks"] = func(text string) error { r.ranks = strings.Split(text, ","); return nil }
	}
	if r.reason == byTwin && strings.Contains(text, " as=") {
		read["as"] = func(text string) error { r.as = text; return nil }
	}
	for _, pair := range strings.Fields(text) {
		key, value, _ := strings.Cut(pair, "=")
		set := read[key]
		if set == nil {
			return r, fmt.Errorf("%s: there is no such key here, or twice", key)
		}
		delete(read, key)
		if err := set(value); err != nil {
			return r, fmt.Errorf("%s: %q: %v", key, value, err)
		}
	}
	if missing := slices.Sorted(maps.Keys(read)); len(missing) > 0 {
		return r, fmt.Errorf("%s: key %s is missing", word, missing[0])
	}
	return r, nil
}

// piecesKey names numbers of pieces: of whole sequences, or of parts of them.
func piecesKey(ofParts bool) string {
	if ofParts {
		return "parts"
	}
	return "pieces"
}

// parseRanges reads what rangesText writes.
func parseRanges(text string) ([]int, error) {
	var all []int
	for _, word := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(word, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 1 || last < first || last > 1<<20 || len(all) > 0 && first <= all[len(all)-1] {
			return nil, fmt.Errorf("want increasing numbers from 1 to %d, such as 1-4,8", 1<<20)
		}
		for n := first; n <= last; n++ {
			all = append(all, n)
		}
	}
	return all, nil
}
