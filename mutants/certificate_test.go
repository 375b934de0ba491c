package mutants

// inTheCertificate has the bugs of a search that proves too much, and of a checker that
// believes it.
func inTheCertificate() []mutant {
	const tampered = "^TestTamperedCertificates$"
	return []mutant{{
		bug:  "a certificate is believed for a plan outside its space",
		file: "planner/certify.go",
		old:  "if a.cert.Plan.BatchShares != nil {", new: "if len(a.cert.Plan.BatchShares) < 0 {",
		pkg: "./planner", run: "^TestTamperedCertificates$",
	}, {
		bug:  "floor too high: more blocks than the fullest stage has",
		file: "planner/passage.go",
		old:  "share := (blocks + p.pp - 1) / p.pp", new: "share := (blocks+p.pp-1)/p.pp + 1",
		pkg: "./planner", run: "^TestCertificates$",
	}, {
		bug: "part of the space dropped", how: "gpipe is never searched",
		file: "planner/space.go",
		old:  "{partition.OneFOneB, partition.GPipe, partition.ZeroBubble, ",
		new:  "{partition.OneFOneB, partition.ZeroBubble, ",
		pkg:  "./planner", run: "^TestCertificateOptions$",
	}, {
		bug:  "what spares memory is looked at under the first ceiling only",
		file: "planner/explore.go",
		old:  "done = len(open) == 0", new: "done = true",
		pkg: "./planner", run: "^TestOffloadWhereMemoryIsShort$",
	}, {
		bug:  "bounds of a certificate believed",
		file: "planner/certify.go",
		old:  "\tif bound < r.bound {", new: "\tif bound < 0 {",
		pkg: "./planner", run: tampered,
	}, {
		bug:  "gaps between the regions of a certificate not seen",
		file: "planner/declared.go",
		old:  "at >= 0 && gap == nil {", new: "at > len(g.taken) && gap == nil {",
		pkg: "./planner", run: tampered,
	}, {
		bug:  "pipelines alike by their number of ranks alone",
		file: "planner/certify.go",
		old:  "a.ways(o) != ways {", new: "a.ways(o) != ways && false {",
		pkg: "./planner", run: tampered,
	}, {
		bug:  "pipelines alike to each other, of which nobody shows anything",
		file: "planner/certify.go",
		old:  "at == nil || a.cert.Regions[*at-1].reason == byTwin {", new: "at == nil {",
		pkg: "./planner", run: tampered,
	}, {
		bug:  "a certificate for other ranks than its options",
		file: "planner/certify.go",
		old:  "if cert.Plan.RuntimeNGPUs != a.opts.RuntimeNGPUs {", new: "if cert.Plan.RuntimeNGPUs < 0 {",
		pkg: "./planner", run: tampered,
	}, {
		bug: "a proof of less than it says", how: "the space may be narrower than the winner asks for",
		file: "planner/certify.go",
		old:  "if a.widens(cert.Plan) {", new: "if false {",
		pkg: "./planner", run: "^TestNarrowedCertificate$",
	}}
}
