package mutants

// inFiles has the bugs of files that commands read and write.
func inFiles() []mutant {
	return []mutant{{
		bug: "results that nobody gets count as done", how: "what is printed is lost",
		file: "cmd/autopar/cli.go",
		old:  "err = con.lost", new: "err = nil",
		pkg: "./cmd/autopar", run: "^TestLostResults$",
	}, {
		bug: "a file takes the place of a device", how: "a plan",
		file: "cmd/autopar/output.go",
		old:  "!info.Mode().IsRegular() {", new: "info == nil {",
		pkg: "./cmd/autopar", run: "^TestWriteFile$",
	}, {
		bug: "a file takes the place of a device", how: "a checkpoint",
		file: "checkpoint/safetensors/writer.go",
		old:  "!info.Mode().IsRegular() && !info.IsDir() {", new: "info == nil {",
		pkg: "./checkpoint/safetensors", run: "^TestNoFileInPlaceOfADevice$",
	}, {
		bug: "a file without end is read to its end", how: "what is too much is taken for all",
		file: "config/config.go",
		old:  "int64(len(text)) > most {", new: "int64(len(text)) > most+1 {",
		pkg: "./config", run: "^TestReadFile$",
	}}
}
