package checkpoint

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/models/gpt"
)

// statedLlama returns the configuration of a Llama that the file's metadata states (as [ExportWeights] writes it), or the
// config.json in the same directory. Without either it is nil.
func (w *Weights) statedLlama() (*gpt.Config, error) {
	meta := w.file.Metadata()
	var c *config.Config
	var err error
	if _, ours := meta["n_head"]; ours {
		var sets []string
		for _, key := range slices.Sorted(maps.Keys(meta)) {
			if key != "format" {
				sets = append(sets, "model."+key+"="+meta[key])
			}
		}
		c, err = config.Parse(w.path, []byte("model: {dropout: 0}\n"), sets)
	} else if c, err = w.loadBeside(); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = c.Validate()
	}
	if err == nil {
		err = c.Model.Fits(gpt.Llama)
	}
	if err != nil {
		return nil, &Error{File: w.path, Err: err}
	}
	return &c.Model, nil
}

// besideConfig is the path of the config.json of transformers.
func (w *Weights) besideConfig() string { return filepath.Join(filepath.Dir(w.path), "config.json") }

// loadBeside reads that file. Dropout, which is no part of a trained model, is 0.
func (w *Weights) loadBeside() (*config.Config, error) {
	return config.Load(w.besideConfig(), []string{"model.dropout=0"})
}

// llamaConfig is [WeightsConfig] of a Llama.
func (w *Weights) llamaConfig() (gpt.Config, error) {
	stated, err := w.statedLlama()
	if err == nil && stated == nil {
		err = errorf(w.path, "", "says nothing of the number of heads: it states no n_head, and there is no %s", w.besideConfig())
	}
	if err != nil {
		return gpt.Config{}, err
	}
	return *stated, nil
}

// checkLlama compares the model with what the tensors of a Llama do not show, if it is stated.
func (w *Weights) checkLlama() error {
	stated, err := w.statedLlama()
	if err != nil || stated == nil {
		return err
	}
	said, is := stated.Rotation(), w.cfg.Rotation()
	for _, x := range []struct {
		key      string
		said, is any
	}{
		{"n_head", stated.NHead, w.cfg.NHead}, {"norm_eps", stated.Eps(), w.cfg.Eps()}, {"rope_theta", said.Theta, is.Theta},
		{"rope_factor", said.Factor, is.Factor}, {"rope_low_freq_factor", said.Low, is.Low}, {"rope_high_freq_factor", said.High, is.High},
		{"rope_original_block_size", said.Original, is.Original},
	} {
		if x.said != x.is {
			return errorf(w.path, "", "is of a model with %s %v, not %v", x.key, x.said, x.is)
		}
	}
	return nil
}
