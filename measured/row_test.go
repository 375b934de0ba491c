package measured

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const shared = "../../../../work/shared/measured/"

func TestReadPublished(t *testing.T) {
	for _, name := range []string{"train.csv", "memory_fit_train.csv"} {
		f, err := os.Open("/work/shared/measured/" + name)
		if err != nil {
			t.Skip(err)
		}
		rows, err := Read(name, f)
		require.NoError(t, err)
		t.Log(len(rows), strings.Join([]string{rows[0].ID, rows[0].Source}, " "))
	}
}
