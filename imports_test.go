package autopar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const modulePath = "github.com/autopar/autopar"

// readRooms returns the packages in the table of README.md, by rows and from left
// to right. A package may import only those before it.
func readRooms(t *testing.T) (rooms []string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| package |")
	require.True(t, found, "README.md has no table of packages")
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for i, name := range strings.Split(first, "`") {
			if i%2 > 0 { // in backquotes
				rooms = append(rooms, name)
			}
		}
	}
	return rooms
}

// forTests reports whether only tests, and other such packages, may import a package.
func forTests(room string) bool {
	return strings.HasSuffix(room, "test") || room == "cuda/driver/fake"
}

// source is what one file says about its package.
type source struct {
	file, room string // relative to the module
	test       bool
	doc        bool
	imports    []string // rooms
}

// TestImportsOnlyPointUp makes the table of README.md law.
func TestImportsOnlyPointUp(t *testing.T) {
	rooms, sources := readRooms(t), readSources(t)
	for _, complaint := range checkImports(rooms, sources) {
		t.Error(complaint)
	}
	for _, room := range rooms {
		require.True(t, slices.ContainsFunc(sources, func(s source) bool { return s.room == room }), "README.md lists %s, which is not there", room)
	}
}

// TestEveryPackageHasADoc fails on a package without a package comment.
func TestEveryPackageHasADoc(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range readSources(t) {
		if !s.test {
			documented[s.room] = documented[s.room] || s.doc
		}
	}
	for room, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", room)
		}
	}
}

// TestImportLawCanFail breaks each clause of the law once.
func TestImportLawCanFail(t *testing.T) {
	rooms := readRooms(t)
	for name, bad := range map[string]source{
		"points down":           {room: "partition", imports: []string{"planner"}},
		"itself":                {room: "ir", imports: []string{"ir"}},
		"a model sees more":     {room: "models/gpt", imports: []string{"ir"}},
		"tests in the program":  {room: "partition", imports: []string{"ir/irtest"}},
		"a room without a row":  {room: "util"},
		"an import without one": {room: "cmd/autopar", imports: []string{"common"}},
	} {
		require.NotEmpty(t, checkImports(rooms, []source{bad}), name)
	}
	for name, good := range map[string]source{
		"points up":         {room: "planner", imports: []string{"partition", "planner/cost"}},
		"tests see all":     {room: "ir", test: true, imports: []string{"ir/irtest", "models/gpt"}},
		"helpers see rooms": {room: "runtime/backendtest", imports: []string{"ir/irtest", "runtime"}},
	} {
		require.Empty(t, checkImports(rooms, []source{good}), name)
	}
}

func checkImports(rooms []string, sources []source) (complaints []string) {
	for _, s := range sources {
		if s.test {
			continue
		}
		row := slices.Index(rooms, s.room)
		if row < 0 {
			complaints = append(complaints, s.file+": package "+s.room+" is missing from the table of README.md")
			continue
		}
		for _, imported := range s.imports {
			above := slices.Index(rooms, imported)
			switch {
			case above < 0:
				complaints = append(complaints, s.file+": imports "+imported+", which is missing from the table of README.md")
			case above >= row:
				complaints = append(complaints, s.file+": "+s.room+" imports "+imported+", which is not above it")
			case forTests(imported) && !forTests(s.room):
				complaints = append(complaints, s.file+": imports "+imported+", which is for tests")
			case strings.HasPrefix(s.room, "models/") && imported != "trace":
				complaints = append(complaints, s.file+": imports "+imported+"; a model is written against trace alone")
			}
		}
	}
	return complaints
}

// readSources parses the package clause and the imports of every Go file.
func readSources(t *testing.T) []source {
	t.Helper()
	var sources []source
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && file != "." && (name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		sources = append(sources, source{
			file:    filepath.ToSlash(file),
			room:    path.Dir(filepath.ToSlash(file)),
			test:    strings.HasSuffix(name, "_test.go"),
			doc:     parsed.Doc != nil,
			imports: roomsOf(parsed.Imports),
		})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	return sources
}

// roomsOf keeps the imports of this module.
func roomsOf(specs []*ast.ImportSpec) (imported []string) {
	for _, spec := range specs {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has already checked it
		}
		if room, ok := strings.CutPrefix(target, modulePath+"/"); ok {
			imported = append(imported, room)
		} else if target == modulePath {
			imported = append(imported, ".")
		}
	}
	return imported
}
