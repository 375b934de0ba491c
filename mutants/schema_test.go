//go:build mutants

package mutants

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// planted is the environment variable that says which mutant of a program is
// run, by its place in the table, of which the first is 1.
const planted = "AUTOPAR_PLANTED_MUTANT"

// selector is a file of each package that mutants change: its name, and planted.
const selector = `package %s

import (
	"os"
	"strconv"
)

var plantedMutant, _ = strconv.Atoi(os.Getenv(%q))
`

// program is the tests of a package with many mutants at once, which is known
// as mutant schemata (Untch, Offutt and Harrold, 1993): a function that mutants
// change has their bodies before its own. It takes one build for all of them,
// and without any of them it is what it is in the sources.
type program struct {
	path string
	has  map[int]bool // by place in the table; others are built by themselves
}

// build makes the tests of a package in dir. A file that does not compile with its
// mutants has none then: which of them is wrong turns out when each is built by itself.
func (tr *tree) build(pkg, dir string, table []mutant) (*program, error) {
	p := &program{filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test"), map[int]bool{}}
	byFile := map[string][]int{}
	for i, m := range table {
		if m.pkg == pkg && filepath.Ext(m.file) == ".go" {
			byFile[m.file] = append(byFile[m.file], i+1)
		}
	}
	overlay := map[string]string{} // path -> where its text is
	for file, places := range byFile {
		source, err := os.ReadFile(filepath.Join(tr.dir, file))
		if err != nil {
			return nil, err
		}
		text, name, has := splice(string(source), places, table)
		if len(has) == 0 {
			continue
		}
		for _, place := range has {
			p.has[place] = true
		}
		for file, text := range map[string]string{file: text, filepath.Join(filepath.Dir(file), "planted_mutant.go"): fmt.Sprintf(selector, name, planted)} {
			to := p.path + "_" + strings.ReplaceAll(file, "/", "_")
			overlay[filepath.Join(tr.dir, file)] = to
			if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
				return nil, err
			}
		}
	}
	for {
		wrong := tr.compileWith(overlay, pkg, p.path)
		if wrong == nil {
			return p, nil
		}
		n := len(overlay)
		for file, places := range byFile {
			path := filepath.Join(tr.dir, file)
			if to, ok := overlay[path]; ok && strings.Contains(wrong.Error(), filepath.Base(to)+":") {
				delete(overlay, path)
				for _, place := range places {
					delete(p.has, place)
				}
			}
		}
		if len(overlay) == n {
			return nil, wrong
		}
	}
}

// compileWith builds the tests of a package with other texts in the place of its files.
func (tr *tree) compileWith(overlay map[string]string, pkg, program string) error {
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	list := program + ".json"
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return err
	}
	return tr.compile(pkg, program, "-overlay="+list)
}

// splice returns a source text with the bodies of mutants, which have these
// places in the table, before those of functions that they change, the name of
// its package, and which mutants it has: none of those that change more than a body.
func splice(source string, places []int, table []mutant) (text, pkg string, has []int) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", source, parser.SkipObjectResolution)
	if err != nil {
		return "", "", nil
	}
	before := map[int]string{} // where a body begins -> those before it
	for _, place := range places {
		m := table[place-1]
		if strings.Count(source, m.old) != 1 {
			continue // it no longer applies, and is said not to when it is planted by itself
		}
		from := strings.Index(source, m.old)
		to := from + len(m.old)
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil || !nests(fn) {
				continue
			}
			first, last := files.Position(fn.Body.Lbrace).Offset+1, files.Position(fn.Body.Rbrace).Offset
			if from < first || to > last {
				continue
			}
			body := source[first:from] + m.new + source[to:last]
			if fn.Type.Results == nil {
				body += "\nreturn"
			}
			before[first] += fmt.Sprintf("\nif plantedMutant == %d {%s\n}\n", place, body)
			has = append(has, place)
		}
	}
	end := 0
	for _, at := range slices.Sorted(maps.Keys(before)) {
		text += source[end:at] + before[at]
		end = at
	}
	return text + source[end:], parsed.Name.Name, has
}

// nests says whether the body of a function means the same in a block of its own:
// labels would be there twice, and := assigns to parameters in the outermost block only.
func nests(fn *ast.FuncDecl) bool {
	params := map[string]bool{}
	for _, list := range []*ast.FieldList{fn.Recv, fn.Type.Params, fn.Type.Results} {
		if list == nil {
			continue
		}
		for _, field := range list.List {
			for _, name := range field.Names {
				params[name.Name] = true
			}
		}
	}
	nests := true
	for _, s := range fn.Body.List {
		if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			nests = nests && !slices.ContainsFunc(a.Lhs, func(x ast.Expr) bool { return params[x.(*ast.Ident).Name] })
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		_, label := n.(*ast.LabeledStmt)
		nests = nests && !label
		return true
	})
	return nests
}

func TestSplice(t *testing.T) {
	const source = `package p

func (x T) twice() int { return 2 * int(x) }

func set(p *int) {
	*p = 1
}

func open() (err error) {
	f, err := os.Open("f")
	return close(f, err)
}
`
	table := []mutant{
		{old: "2 *", new: "3 *"},
		{old: "*p = 1", new: "*p = 2"},
		{old: "int(x)", new: "-int(x)"},
		{old: `"f"`, new: `"g"`},         // err would be another variable
		{old: "(p *int) {", new: "() {"}, // more than a body
		{old: "func", new: "func "},      // more than once
	}
	text, pkg, has := splice(source, []int{1, 2, 3, 4, 5, 6}, table)
	require.Equal(t, "p", pkg)
	require.Equal(t, []int{1, 2, 3}, has)
	require.Equal(t, `package p

func (x T) twice() int {
if plantedMutant == 1 { return 3 * int(x) 
}

if plantedMutant == 3 { return 2 * -int(x) 
}
 return 2 * int(x) }

func set(p *int) {
if plantedMutant == 2 {
	*p = 2

return
}

	*p = 1
}

func open() (err error) {
	f, err := os.Open("f")
	return close(f, err)
}
`, text)
}
