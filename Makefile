# Everything a contributor runs. `make help` lists it.

GO        ?= go
BIN       := bin/autopar
FUZZTIME  ?= 5s
FUZZSEEDS ?= 20

# Pure Go, as everything is built and tested; without cgo, packages are also compiled once for all of it.
export CGO_ENABLED ?= 0

.PHONY: help build demo test check fmt vet race golden fuzz bench bench-planner parity long curves mutants peers rivals profile-check gpu gorgonia test-cuda validate-plots fit-memory

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

build: ## build bin/autopar
	$(GO) build -o $(BIN) ./cmd/autopar

demo: build ## plan, explain and train a small GPT on four ranks, and let it write: under five minutes
	./examples/demo.sh $(BIN)

# Tests make much garbage and keep little: collecting it a quarter as often saves a fifth of their time. That nothing samples what
# they allocate, for a profile of memory that nobody asked for, saves a tenth of what is left.
# What go test would vet is part of make vet. Four tests at a time: some wait for processes and timeouts. The package that takes
# longest comes first: last, it would have one core at work.
test: ## run every test
	GOGC=400 GODEBUG=memprofilerate=0 $(GO) test -vet=off -ldflags=-w -parallel 4 -timeout 15m ./planner ./...

# The only package with files for some processors exports the same for all of them. Its tests would need half of the standard
# library compiled for each.
KERNEL_TESTS := $(patsubst %,"%":"",$(wildcard runtime/cpu/kernel/*_test.go))

check: fmt vet build ## formatting, vet, also of what is for other processors, and a build
	@echo GOARCH=arm64 $(GO) vet ./runtime/cpu/kernel
	@echo '$(KERNEL_TESTS)' | sed 's/ /,/g; s/.*/{"Replace":{&}}/' | GOARCH=arm64 $(GO) vet -overlay /dev/stdin ./runtime/cpu/kernel

fmt: ## fail on files that gofmt would change
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt -w $$files"; exit 1; fi

vet: ## go vet
	$(GO) vet ./...

race: export CGO_ENABLED = 1
race: ## run every test under the race detector
	$(GO) test -race -timeout 30m ./...

# Tests that run scripts have their flag -update from package irtest.
golden: ## rewrite the golden files of every test that has some
	$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | while read -r dir; do \
		if grep -qs -e 'flag.Bool("update"' -e 'irtest.RunScripts(' $$dir/*_test.go; then $(GO) test $$dir -update || exit 1; fi; done

fuzz: ## run every fuzz target for FUZZTIME, those of whole commands for FUZZSEEDS seeds
	@grep -rl --include='*_test.go' '^func Fuzz' . | grep -v '^./cmd/' | xargs -n1 dirname | sort -u | while read -r dir; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$dir/*_test.go); do \
			echo "$$dir $$target"; $(GO) test $$dir -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) || exit 1; done; done
	$(GO) test ./cmd/autopar -timeout 0 -run '^Fuzz' -args -seeds $(FUZZSEEDS) -first-seed $$(date +%s)

bench: ## run every benchmark once, for its time and allocations
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-planner: ## time whole searches over models, layers, devices and batches
	bench/planner.sh

parity: ## train under every plan of the parity table and print it
	$(GO) test -count=1 -timeout 1h -v -run TestParity . -args -parity-all

long: ## every plan, long runs and large searches, of which make test takes samples: an hour or two
	$(GO) test -count=1 -timeout 4h . -args -parity-all
	$(GO) test -count=1 -timeout 2h -run 'IsExact|AreSearched|IsSimulation|IsTheProgram|Floor|Certificate' ./planner -args -exact-all
	$(GO) test -count=1 -timeout 1h ./cuda/kernel ./runtime/cpu -args -ops-all

curves: build ## train 300 steps under five very different plans and draw their losses over each other
	bench/curves.sh $(BIN)

mutants: ## plant known bugs one at a time; each must turn a test red
	GOGC=400 $(GO) test -tags mutants -count=1 -timeout 3h -v ./mutants

peers: build ## time training steps beside PyTorch and JAX, installed for the occasion, in about twenty minutes: bin/cpu.md, whose tables are carried over to bench/cpu.md by hand
	bench/cpu.sh $(BIN) > bin/cpu.md

rivals: build ## search the jobs of other planners, cloned for the occasion, and have each judge the plans: bench/rivals.md
	bench/rivals.sh $(BIN)

profile-check: build ## measure this machine, then hold predictions against measured steps of twelve plans: bin/profile.md, whose tables are carried over to bench/profile.md by hand
	bench/profile.sh $(BIN) > bin/profile.md

GPU_BUNDLE  ?= bin/gpu
SHAKESPEARE ?= $(wildcard ../shared/data/shakespeare/input.txt)

gpu: ## put all that is run on a machine with a GPU, which needs no Go, into a folder and bin/gpu.tgz: then OUT=results gpu/run.sh there
	rm -rf $(GPU_BUNDLE) && mkdir -p $(GPU_BUNDLE)/tests $(GPU_BUNDLE)/cuda/driver $(GPU_BUNDLE)/cuda/kernel
	$(GO) build -ldflags="-s -w" -o $(GPU_BUNDLE)/autopar ./cmd/autopar
	$(GO) test -ldflags="-s -w" -c -o $(GPU_BUNDLE)/tests/autopar.test .
	$(GO) test -ldflags="-s -w" -c -o $(GPU_BUNDLE)/tests/cuda.test ./cuda
	$(GO) test -ldflags="-s -w" -c -o $(GPU_BUNDLE)/tests/driver.test ./cuda/driver
	$(GO) test -ldflags="-s -w" -c -o $(GPU_BUNDLE)/tests/kernel.test ./cuda/kernel
	cp -r cuda/driver/testdata $(GPU_BUNDLE)/cuda/driver
	cp -r cuda/kernel/testdata cuda/kernel/*.cu $(GPU_BUNDLE)/cuda/kernel
	cp bench/gpu/run.sh bench/gpu/gpt2.py bench/gpu/gpt2.yaml examples/shakespeare_char.yaml $(GPU_BUNDLE)
	-$(GPU_BUNDLE)/autopar data prepare shakespeare_char $(if $(SHAKESPEARE),--input $(SHAKESPEARE)) -o $(GPU_BUNDLE)/data/shakespeare_char
	git rev-parse HEAD > $(GPU_BUNDLE)/commit
	tar -czf $(GPU_BUNDLE).tgz -C $(dir $(GPU_BUNDLE)) $(notdir $(GPU_BUNDLE))

CUDA_HOME ?= /usr/local/cuda

gorgonia: ## build bin/autopar with the CUDA driver called through gorgonia.org/cu: needs cgo and the CUDA toolkit, and a GPU to start
	CGO_ENABLED=1 CGO_CFLAGS="-I$(CURDIR)/cuda/driver/gorgonia/include -I$(CUDA_HOME)/include" CGO_LDFLAGS="-L$(CUDA_HOME)/lib64/stubs" $(GO) build -tags gorgonia -o $(BIN) ./cmd/autopar

test-cuda: ## tests of the CUDA backend; what would be skipped for want of a GPU, a library or gcc fails
	AUTOPAR_TEST_CUDA=1 $(GO) test -count=1 -timeout 30m ./cuda/...
	AUTOPAR_TEST_CUDA=1 $(GO) test -count=1 -timeout 30m -run 'GPU|Loopback|Replayed' .

TABLE ?= ../shared/measured/train.csv

validate-plots: build ## fit the time model to a table of published runs, and plot predicted against measured
	$(BIN) fit $(TABLE) -o bench

fit-memory: ## refit what training software keeps in memory, on the published tables, with halves held out
	$(GO) test -count=1 -timeout 30m -v -run TestFitPublishedMemory ./measured -args -fit-memory
