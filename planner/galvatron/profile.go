// Package galvatron evaluates plans in the terms of Galvatron (Miao et al., PVLDB 2022; Hetu-Galvatron, commit
// cea12ffb). It reads the files that Galvatron's profilers write, computes what Galvatron's cost model says of a
// plan, and finds the plan of least cost under it.
//
// It serves to compare searches on the same figures and by the same judge, and says nothing about the programs that
// autopar makes. The cost model was written from Galvatron's formulas (galvatron/core/cost_model); bench/galvatron.sh
// checks that both agree.
package galvatron

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/infile"
)

// Profile is what Galvatron measured of a model's layers, at one sequence length, and of a cluster's links. Times are
// in milliseconds, sizes in MB of 2^20 bytes.
type Profile struct {
	// Layer and Other are the forward time of one layer, and of everything else, by number of samples on one device.
	Layer, Other Line
	// ParameterSize is the size of a layer's parameters, at 4 bytes each.
	ParameterSize float64
	// Activation is the size of the activations that a layer keeps for one sample, by number of devices that share
	// it.
	Activation map[int]float64
	// Checkpoint is the same for a layer that is recomputed, on one device.
	Checkpoint float64
	// Alone, First and Last are what is outside the layers: without pipeline parallelism, on the first stage, and on
	// the last.
	Alone, First, Last Outside

	// Reduce is the time per MB of an all-reduce, over consecutive ranks or over ranks as far apart as possible.
	// PointToPoint is that of a transfer, by number of pipeline stages.
	Reduce       map[Ring]float64
	PointToPoint map[int]float64
	// Gather and Exchange are the times of an all-gather and of an all-to-all, by number of ranks.
	Gather, Exchange map[int]Table
	// Overlap is the factor by which computation and communication slow each other down.
	Overlap float64
}

// Line is the time Slope·x + Constant.
type Line struct{ Slope, Constant float64 }

func (l Line) at(x float64) float64 { return l.Slope*x + l.Constant }

// Outside is the memory of what is outside the layers. States is parameters, gradients and optimizer state, by
// tensor-parallel degree. Activation is what is kept for a sample, by number of devices that share it.
type Outside struct{ States, Activation map[int]float64 }

// Ring identifies the ranks of an all-reduce.
type Ring struct {
	Ranks       int
	Consecutive bool
}

// Table is the time of a collective by MB: measured sizes, and a line through all of them for other sizes.
type Table struct {
	Measured map[int]float64
	Fitted   Line
}

func (t Table) at(megabytes float64) float64 {
	if whole := int(megabytes); float64(whole) == megabytes && t.Measured[whole] > 0 {
		return t.Measured[whole]
	}
	return t.Fitted.at(megabytes)
}

// Files are the files of a profile.
type Files struct{ Computation, Memory, AllReduce, PointToPoint, Overlap, Collectives string }

// FilesOf returns where a checkout of Galvatron has the files for a model in bfloat16, on a number of nodes with a
// number of GPUs each.
func FilesOf(checkout, model string, nodes, gpus int) Files {
	configs := filepath.Join(checkout, "galvatron", "models", "gpt", "configs")
	hardware := filepath.Join(checkout, "galvatron", "profile_hardware", "hardware_configs")
	cluster := fmt.Sprintf("%dnodes_%dgpus_per_node.json", nodes, gpus)
	return Files{
		Computation:  filepath.Join(configs, "computation_profiling_bf16_"+model+"_all.json"),
		Memory:       filepath.Join(configs, "memory_profiling_bf16_"+model+"_all.json"),
		AllReduce:    filepath.Join(hardware, "allreduce_bandwidth_"+cluster),
		PointToPoint: filepath.Join(hardware, "p2p_bandwidth_"+cluster),
		Overlap:      filepath.Join(hardware, "overlap_coefficient.json"),
		Collectives:  filepath.Join(hardware, "sp_time_"+cluster),
	}
}

// FileError is a profile file whose content cannot be used.
type FileError struct{ File, Key, Msg string }

func (e *FileError) Error() string {
	if e.Key == "" {
		return e.File + ": " + e.Msg
	}
	return fmt.Sprintf("%s: %q: %s", e.File, e.Key, e.Msg)
}

// Read reads a profile for sequences of the given number of tokens. It fails with a *FileError.
func Read(f Files, tokens int) (*Profile, error) {
	p := &Profile{Reduce: map[Ring]float64{{1, true}: 0, {1, false}: 0}, PointToPoint: map[int]float64{}}
	for _, read := range []func() error{
		func() error { return p.readTimes(f.Computation, tokens) },
		func() error { return p.readMemory(f.Memory, tokens) },
		func() error { return p.readLinks(f.AllReduce, f.PointToPoint, f.Overlap) },
		func() error { return p.readCollectives(f.Collectives) },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// decode reads a JSON file, which must hold exactly one value of the given type, without unknown fields.
func decode(file string, into any) error {
	r, err := infile.Open(file)
	if err != nil {
		return &FileError{File: file, Msg: "cannot be read: " + infile.WithoutPath(err).Error()}
	}
	defer r.Close()
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return &FileError{File: file, Msg: unfit(err)}
	}
	if _, err := d.Token(); err != io.EOF {
		return &FileError{File: file, Msg: "goes on after its value"}
	}
	return nil
}

// unfit says what is wrong with JSON, without types of Go.
func unfit(err error) string {
	var bad *json.UnmarshalTypeError
	if !errors.As(err, &bad) {
		return err.Error()
	}
	wants := "keys and values"
	if bad.Type.Kind() == reflect.Float64 {
		wants = "a number"
	}
	return strings.TrimPrefix(fmt.Sprintf("%s: wants %s, got %s", bad.Field, wants, bad.Value), ": ")
}

// figures reads a file of named positive figures.
func figures(file string) (map[string]float64, error) {
	var raw map[string]json.RawMessage
	if err := decode(file, &raw); err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		var figure float64
		if err := json.Unmarshal(raw[key], &figure); err != nil {
			return nil, &FileError{file, key, unfit(err)}
		}
		if figure <= 0 {
			return nil, &FileError{file, key, fmt.Sprintf("is %v, must be positive", figure)}
		}
		all[key] = figure
	}
	return all, nil
}

var (
	timeKey       = regexp.MustCompile(`^(layertype_0|layertype_other|layernum\[\d+\])_bsz(\d+)_seq(\d+)$`)
	reduceKey     = regexp.MustCompile(`^allreduce_size_(\d+)_consec_([01])$`)
	transferKey   = regexp.MustCompile(`^pp_size_(\d+)$`)
	collectiveKey = regexp.MustCompile(`^(allreduce|all2all)_size_(\d+)_(\d+)MB_time$`)
	measuredKey   = regexp.MustCompile(`^\d+_\d+_\d+(_vtp)?(_c)?(_sp)?$`) // raw measurements that the layers' figures were computed from
)

// least is the smallest number of measurements that a line is fitted to.
const least = 8

// readTimes reads the forward times per sample, measured with several samples at once, and fits lines to them.
func (p *Profile) readTimes(file string, tokens int) error {
	all, err := figures(file)
	if err != nil {
		return err
	}
	lines := map[string]*points{"layertype_0": {}, "layertype_other": {}}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m := timeKey.FindStringSubmatch(key)
		if m == nil {
			return &FileError{file, key, "is unknown; want layertype_0_bszN_seqN, layertype_other_bszN_seqN or layernum[N]_bszN_seqN"}
		}
		if line := lines[m[1]]; line != nil && m[3] == strconv.Itoa(tokens) {
			samples, _ := strconv.ParseFloat(m[2], 64)
			line.add(samples, all[key]*samples)
		}
	}
	for name, line := range lines {
		if len(line.x) < least {
			return &FileError{file, fmt.Sprintf("%s_bszN_seq%d", name, tokens), fmt.Sprintf("there are %d batch sizes, want %d or more", len(line.x), least)}
		}
	}
	p.Layer, p.Other = lines["layertype_0"].fit(), lines["layertype_other"].fit()
	return nil
}

// points are measurements to fit a line to, by least squares.
type points struct{ x, y []float64 }

func (p *points) add(x, y float64) { p.x, p.y = append(p.x, x), append(p.y, y) }

func (p *points) fit() Line {
	var x, y, xx, xy float64
	n := float64(len(p.x))
	for i := range p.x {
		x, y = x+p.x[i]/n, y+p.y[i]/n
	}
	for i := range p.x {
		xx += (p.x[i] - x) * (p.x[i] - x)
		xy += (p.x[i] - x) * (p.y[i] - y)
	}
	return Line{xy / xx, y - xy/xx*x}
}

// readMemory reads the sizes measured with sequence parallelism, which tensor-parallel layers use.
func (p *Profile) readMemory(file string, tokens int) error {
	var raw map[string]json.RawMessage
	if err := decode(file, &raw); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		known := strings.HasPrefix(key, "layertype_0") || strings.HasPrefix(key, "other_memory_pp_")
		if !known && !measuredKey.MatchString(key) {
			return &FileError{file, key, "is unknown"}
		}
	}
	var layer struct {
		ParameterSize float64            `json:"parameter_size"`
		Activation    map[string]float64 `json:"tp_activation_per_bsz_dict"`
	}
	if err := ofLength(file, raw, "layertype_0_sp", tokens, &layer); err != nil {
		return err
	}
	p.ParameterSize, p.Checkpoint = layer.ParameterSize, layer.Activation["checkpoint"]
	if p.ParameterSize <= 0 || p.Checkpoint <= 0 {
		return &FileError{file, "layertype_0_sp", "needs a positive parameter_size and tp_activation_per_bsz_dict.checkpoint"}
	}
	delete(layer.Activation, "checkpoint")
	var err error
	if p.Activation, err = byDegree(file, "layertype_0_sp", layer.Activation); err != nil {
		return err
	}
	for key, into := range map[string]*Outside{"other_memory_pp_off_sp": &p.Alone, "other_memory_pp_on_first_sp": &p.First, "other_memory_pp_on_last_sp": &p.Last} {
		var x struct {
			States     map[string]float64 `json:"model_states"`
			Activation map[string]float64 `json:"activation"`
		}
		if err := ofLength(file, raw, key, tokens, &x); err != nil {
			return err
		}
		if into.States, err = byDegree(file, key, x.States); err != nil {
			return err
		}
		if into.Activation, err = byDegree(file, key, x.Activation); err != nil {
			return err
		}
	}
	return nil
}

// ofLength decodes the value of a key for one sequence length.
func ofLength(file string, raw map[string]json.RawMessage, key string, tokens int, into any) error {
	var lengths map[string]json.RawMessage
	if raw[key] == nil {
		return &FileError{file, key, "is missing"}
	}
	if err := json.Unmarshal(raw[key], &lengths); err != nil {
		return &FileError{file, key, unfit(err)}
	}
	text := lengths[strconv.Itoa(tokens)]
	if text == nil {
		return &FileError{file, key, fmt.Sprintf("says nothing of %d tokens, only of %s", tokens, strings.Join(slices.Sorted(maps.Keys(lengths)), ", "))}
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return &FileError{file, key, unfit(err)}
	}
	return nil
}

// byDegree converts the keys of figures to numbers: the degrees that they are for.
func byDegree(file, key string, named map[string]float64) (map[int]float64, error) {
	all := map[int]float64{}
	for name, value := range named {
		degree, err := strconv.Atoi(name)
		if err != nil || degree < 1 || value <= 0 {
			return nil, &FileError{file, key, fmt.Sprintf("has %q: %v, want a degree and a positive figure", name, value)}
		}
		all[degree] = value
	}
	if all[1] == 0 {
		return nil, &FileError{file, key, "has no figure for degree 1"}
	}
	return all, nil
}

// readLinks reads bandwidths in GB/s. A MB takes the inverse of it in milliseconds.
func (p *Profile) readLinks(reduce, transfer, overlap string) error {
	all, err := figures(reduce)
	if err != nil {
		return err
	}
	most := 0
	for key, bandwidth := range all {
		m := reduceKey.FindStringSubmatch(key)
		if m == nil {
			return &FileError{reduce, key, "is unknown; want allreduce_size_N_consec_0 or _1"}
		}
		ranks, _ := strconv.Atoi(m[1])
		p.Reduce[Ring{ranks, m[2] == "1"}] = 1 / bandwidth
		most = max(most, ranks)
	}
	if p.Reduce[Ring{most, true}] == 0 {
		return &FileError{reduce, fmt.Sprintf("allreduce_size_%d_consec_1", most), "is missing"}
	}
	p.Reduce[Ring{most, false}] = p.Reduce[Ring{most, true}] // all ranks: they are consecutive
	if all, err = figures(transfer); err != nil {
		return err
	}
	for key, bandwidth := range all {
		m := transferKey.FindStringSubmatch(key)
		if m == nil {
			return &FileError{transfer, key, "is unknown; want pp_size_N"}
		}
		stages, _ := strconv.Atoi(m[1])
		p.PointToPoint[stages] = 1 / bandwidth
	}
	if all, err = figures(overlap); err != nil {
		return err
	}
	if p.Overlap = all["overlap_coe"]; p.Overlap < 1 || len(all) != 1 {
		return &FileError{overlap, "overlap_coe", fmt.Sprintf("is %v, beside %d other figures; must be at least 1, and alone", p.Overlap, len(all)-1)}
	}
	return nil
}

// readCollectives reads the times of collectives by size. An all-gather takes half of an all-reduce.
func (p *Profile) readCollectives(file string) error {
	all, err := figures(file)
	if err != nil {
		return err
	}
	p.Gather, p.Exchange = map[int]Table{}, map[int]Table{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m := collectiveKey.FindStringSubmatch(key)
		if m == nil {
			return &FileError{file, key, "is unknown; want allreduce_size_N_NMB_time or all2all_size_N_NMB_time"}
		}
		ranks, _ := strconv.Atoi(m[2])
		size, _ := strconv.Atoi(m[3])
		tables, time := p.Exchange, all[key]
		if m[1] == "allreduce" {
			tables, time = p.Gather, time/2
		}
		if tables[ranks].Measured == nil {
			tables[ranks] = Table{Measured: map[int]float64{}}
		}
		tables[ranks].Measured[size] = time
	}
	if len(p.Gather) == 0 {
		return &FileError{file, "allreduce_size_N_NMB_time", "is missing"}
	}
	for name, tables := range map[string]map[int]Table{"allreduce": p.Gather, "all2all": p.Exchange} {
		for ranks, t := range tables {
			line := &points{}
			for _, size := range slices.Sorted(maps.Keys(t.Measured)) {
				line.add(float64(size), t.Measured[size])
			}
			if len(line.x) < least {
				return &FileError{file, fmt.Sprintf("%s_size_%d_NMB_time", name, ranks), fmt.Sprintf("there are %d sizes, want %d or more", len(line.x), least)}
			}
			t.Fitted = line.fit()
			tables[ranks] = t
		}
	}
	return nil
}
