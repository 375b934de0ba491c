package galvatron

import (
	"fmt"
	"math"
)

// This file is Galvatron's cost model: the seconds of a step and the MB of a stage under a plan. search.go finds the
// plan of least cost. Formulas and roundings are Galvatron's, so that both programs agree on every plan.

// Type is how data-parallel ranks hold parameters, gradients and optimizer state.
type Type string

// The types: whole copies, ZeRO stage 2, and stage 3.
const (
	DDP   Type = "ddp"
	ZeRO2 Type = "zero2"
	ZeRO3 Type = "zero3"
)

// Strategy is how a layer is divided over the devices of its stage: TP by tensor and sequence parallelism, or SP by
// Ulysses (all-to-alls between head and sequence splits), and DP. One of TP and SP is 1.
type Strategy struct {
	PP         int  `json:"pp"`
	TP         int  `json:"tp"`
	SP         int  `json:"sp"`
	DP         int  `json:"dp"`
	Type       Type `json:"type"`
	Checkpoint bool `json:"checkpoint"` // its forward pass runs again in the backward pass
}

// sharing is the number of devices that share a sample.
func (s Strategy) sharing() int { return max(s.TP, s.SP) }

// copies is the number of devices that share parameters.
func (s Strategy) copies() int { return s.DP * s.SP }

// Plan is a plan in Galvatron's terms. Embedding is the strategy of everything outside the layers. Buffer is the
// largest sharing of all strategies: ranks of tensor-parallel layers reserve memory for a sequence gathered from that
// many devices.
type Plan struct {
	Batch     int        `json:"global_bsz"`
	Chunks    int        `json:"chunks"` // micro-batches
	Division  []int      `json:"pp_division"`
	Layers    []Strategy `json:"layers"`
	Embedding Strategy   `json:"embedding"`
	Buffer    int        `json:"buffer_tp"`
}

// Model is what Galvatron knows of a training job. It assumes mixed precision, the 1F1B schedule, and gradients that
// are reduced in the background.
type Model struct {
	*Profile
	Layers, Hidden, Tokens int
	Devices                int
	Memory                 int // MB of a device
}

// Limit is the MB that the search may fill. Of more than 20 GB a fifth is kept free.
func (m *Model) Limit() int {
	if m.Memory/1024 > 20 {
		return m.Memory - int(float64(m.Memory)*0.2)
	}
	return m.Memory
}

const context = 1024 // MB that PyTorch takes on every stage

// local is the number of samples of a micro-batch on a data-parallel rank, rounded down as in Galvatron.
func local(batch, chunks int, s Strategy) float64 { return float64(batch / chunks / s.DP) }

// message is the MB of the activations between layers for a number of samples.
func (m *Model) message(samples float64) float64 {
	return samples * float64(m.Tokens) * float64(m.Hidden) * 2 / 1024 / 1024
}

// reduce is the milliseconds per MB of an all-reduce over the ranks that share parameters.
func (m *Model) reduce(s Strategy) float64 {
	return m.Reduce[Ring{s.copies(), s.TP == 1}]
}

// covers reports whether the profile has all figures that a strategy needs.
func (m *Model) covers(s Strategy) bool {
	_, reduces := m.Reduce[Ring{s.copies(), s.TP == 1}]
	_, states := m.Alone.States[s.TP]
	_, activation := m.Activation[s.sharing()]
	_, transfers := m.PointToPoint[s.PP]
	_, gathers := m.Gather[s.TP]
	_, exchanges := m.Exchange[s.SP]
	return reduces && states && activation && (transfers || s.PP == 1) && (gathers || s.TP == 1) && (exchanges || s.SP == 1)
}

// layer returns the seconds of a layer for a micro-batch, forward and backward, with the reduction of its gradients
// and without.
func (m *Model) layer(s Strategy, batch, chunks int) (sync, plain float64) {
	samples := local(batch, chunks, s)
	forward := m.Layer.at(samples / float64(s.sharing()))
	backward := 2 * forward
	if s.Checkpoint {
		backward += forward
	}
	gradients := (float64(s.copies()) - 1) * (m.ParameterSize / float64(s.TP) / float64(s.copies()))
	perMB := m.reduce(s)
	var exchange float64
	switch {
	case s.TP > 1:
		exchange = 6 * m.Gather[s.TP].at(m.message(samples))
	case s.SP > 1:
		exchange = 4 * m.Exchange[s.SP].at(m.message(samples))
	}
	if s.Checkpoint {
		exchange *= 1.5
	}
	time := func(gradients float64) float64 {
		t := forward + backward + exchange
		if s.DP > 1 {
			t = forward + m.beside(backward, gradients, perMB) + exchange
		}
		return t
	}
	more := 0.0
	if s.Type == ZeRO3 {
		more = gradients / 2 * perMB
	}
	if s.PP > 1 { // transfers between stages: all layers of the model share them
		more += float64(s.PP) * 2 * m.message(samples) * m.PointToPoint[s.PP] / float64(m.Layers)
	}
	return (time(gradients) + more) / 1000, (time(0) + more) / 1000
}

// beside is the time of computation and a gradient reduction that run at the same time. Each slows down the other
// while both run.
func (m *Model) beside(computation, megabytes, perMB float64) float64 {
	slow, reduction := computation*m.Overlap, megabytes*perMB*m.Overlap
	switch {
	case reduction > slow:
		return slow + (megabytes-slow/(perMB*m.Overlap))*perMB
	case reduction < slow:
		return reduction + computation - reduction/m.Overlap
	}
	return slow
}

// ends returns, by stage, the seconds of everything outside the layers for a micro-batch.
func (m *Model) ends(s Strategy, batch, chunks int) []float64 {
	samples := local(batch, chunks, s)
	all := make([]float64, s.PP)
	perMB := m.reduce(s) * float64(s.copies()-1) / float64(s.copies())
	exchange := 0.0
	if s.TP > 1 {
		exchange = m.Gather[s.TP].at(m.message(samples))
	}
	forward := m.Other.at(samples / float64(s.sharing()))
	stage := func(states, forward, exchange float64) float64 {
		gather := 0.0
		if s.Type == ZeRO3 {
			gather = states / 4 / 2 * perMB / 2
		}
		return (m.hidden(gather, forward) + m.hidden(gather, 2*forward) + exchange) / 1000
	}
	if s.PP == 1 {
		all[0] = stage(m.Alone.States[s.TP], forward, 2*exchange)
		return all
	}
	all[0] = stage(m.First.States[s.TP], forward/2, exchange)
	all[s.PP-1] = stage(m.Last.States[s.TP], forward/2, exchange)
	return all
}

// hidden is the time of computation and a communication that slows it down while it runs.
func (m *Model) hidden(communication, computation float64) float64 {
	return communication + max(0, computation*m.Overlap-communication)/m.Overlap
}

// pipeline returns the seconds of a step. plain has the seconds of a micro-batch by stage without gradient reduction,
// including what is outside the layers. sync has those of the layers with reduction.
func pipeline(plain, sync []float64, chunks int) float64 {
	stages, sum := len(plain), 0.0
	exposed := 0.0
	for i, t := range plain {
		sum += t
		exposed = max(exposed, sync[i]-sum)
	}
	first, rest := plain[0], sum-plain[0]
	fill := float64(min(stages-1, chunks-1)) * first
	return exposed + max(sum+plain[stages-1]*float64(chunks-1),
		max(fill/3, rest/3)+max(fill*2/3, rest*2/3)+first*float64(max(0, chunks+1-stages)))
}

// states is the share of parameters, gradients and optimizer state that a device holds.
func states(s Strategy, chunks int) float64 {
	share := 1/float64(s.copies()) + 0.003
	eighths := map[Type]float64{DDP: 0, ZeRO2: 7, ZeRO3: 8}[s.Type]
	if chunks > 1 && s.Type != DDP {
		eighths-- // gradients are summed up unsharded
	}
	return eighths/8*share + (8-eighths)/8
}

// layerMemory returns the MB of a layer on a stage, rounded up as Galvatron's search does.
func (m *Model) layerMemory(s Strategy, batch, chunks, stage int) int {
	kept := m.Activation[s.sharing()]
	if s.Checkpoint {
		kept = m.Checkpoint / float64(s.sharing())
	}
	return int(math.Ceil(4*m.ParameterSize/float64(s.TP)*states(s, chunks) + kept*local(batch, chunks, s)*float64(inFlight(s.PP, stage))))
}

// inFlight is the number of micro-batches whose activations a stage keeps under 1F1B.
func inFlight(stages, stage int) int { return stages - stage }

// endsMemory returns, by stage, the MB of what is outside the layers.
func (m *Model) endsMemory(s Strategy, batch, chunks int) []int {
	all := make([]int, s.PP)
	for stage := range all {
		var at Outside
		switch {
		case s.PP == 1:
			at = m.Alone
		case stage == 0:
			at = m.First
		case stage == s.PP-1:
			at = m.Last
		}
		all[stage] = int(math.Ceil(at.States[s.TP]*states(s, chunks) + at.Activation[s.sharing()]*local(batch, chunks, s)*float64(inFlight(s.PP, stage)) + context))
	}
	return all
}

// buffer returns the MB of the buffer into which tensor-parallel ranks gather sequences.
func (m *Model) buffer(batch, chunks, stages, sharing int) int {
	samples := float64(batch) / float64(chunks) / float64(m.Devices/stages/sharing)
	return int(m.message(samples))
}

// Cost is the model's verdict on a plan.
type Cost struct {
	Seconds float64
	MB      []int // by stage
	Fits    bool
}

// Cost prices a plan. It fails if the plan does not suit the model.
func (m *Model) Cost(p *Plan) (Cost, error) {
	layers := 0
	for _, n := range p.Division {
		layers += n
	}
	if layers != m.Layers || len(p.Layers) != m.Layers {
		return Cost{}, fmt.Errorf("galvatron: the plan has stages of %d and strategies of %d layers, the model %d", p.Division, len(p.Layers), m.Layers)
	}
	stages := len(p.Division)
	tensor := p.Embedding.TP > 1
	for _, s := range append([]Strategy{p.Embedding}, p.Layers...) {
		if s.PP != stages || s.PP*s.TP*s.SP*s.DP != m.Devices || s.TP > 1 && s.SP > 1 || !m.covers(s) || p.Chunks < stages || p.Batch/p.Chunks < s.DP {
			return Cost{}, fmt.Errorf("galvatron: %+v is no strategy for %d devices, %d stages, a batch of %d in %d, or the profile has no figures for it", s, m.Devices, stages, p.Batch, p.Chunks)
		}
		tensor = tensor || s.TP > 1
	}
	c := Cost{MB: m.endsMemory(p.Embedding, p.Batch, p.Chunks), Fits: true}
	plain, sync := m.ends(p.Embedding, p.Batch, p.Chunks), make([]float64, stages)
	first := 0
	for stage, n := range p.Division {
		if tensor {
			c.MB[stage] += m.buffer(p.Batch, p.Chunks, stages, p.Buffer)
		}
		for _, s := range p.Layers[first : first+n] {
			a, b := m.layer(s, p.Batch, p.Chunks)
			sync[stage] += a
			plain[stage] += b
			c.MB[stage] += m.layerMemory(s, p.Batch, p.Chunks, stage)
		}
		first += n
		c.Fits = c.Fits && c.MB[stage] <= m.Limit()
	}
	c.Seconds = pipeline(plain, sync, p.Chunks)
	return c, nil
}
