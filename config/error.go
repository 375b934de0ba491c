package config

import "github.com/autopar/autopar/config/strictyaml"

// setFlag is the File of errors in an override.
const setFlag = "--set"

// Error is an input that cannot be used. It prints as "gpt.yaml:3:5: model.n_layer: wants an integer, got ...".
type Error = strictyaml.Error
