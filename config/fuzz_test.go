package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzParse: no input panics, and what is accepted prints and parses back to the same values.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../examples/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "train.max_iters=10")
	}
	f.Add([]byte(everyKey), "model.bias='False'")
	f.Add([]byte(gpt2JSON), "parallel.pin=[{match: a, placement: [tp]}]")
	f.Add([]byte("a: &x [*x]\n<<: *x"), "data.dir=\x00")
	f.Fuzz(func(t *testing.T, data []byte, override string) {
		for _, overrides := range [][]string{nil, {override}} {
			c, err := Parse("fuzz", data, overrides)
			if err != nil {
				_ = err.Error()
				continue
			}
			_ = c.Validate()
			again, err := Parse("again", c.Marshal(), nil)
			if err != nil {
				t.Fatalf("own print is refused: %v\n%s", err, c.Marshal())
			}
			if diff := cmp.Diff(c, again, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Fatalf("changed by a round trip:\n%s\n%s", diff, c.Marshal())
			}
		}
	})
}
