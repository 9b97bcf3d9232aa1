# Testing and measuring. The scripts next to this file do the work, so that they can be run and read on their own.

# Seconds of `make soak`: 40 minutes at most, `make soak SECONDS=60` for a slice.
SECONDS ?= 1800

.PHONY: test test-quick compatibility soak audit-histories mixed fuzz lint bench bench-instructions bench-quick bench-shares bench-tenants bench-alone bench-daemon bench-report mutants
test: ## everything: format, lints, all packages, the model checker, processes under LD_PRELOAD, containers
	@CARGO="$(CARGO)" MAKE="$(MAKE)" make/test all

test-quick: ## unit and integration tests of the crates alone; about a minute when warm
	@CARGO="$(CARGO)" MAKE="$(MAKE)" make/test quick

compatibility: ## runs the tests of clients, of their driver calls and of engines, and writes docs/compatibility.md and docs/matrix.md; ONLY=matrix for that page
	@CARGO="$(CARGO)" MAKE="$(MAKE)" ONLY="$(ONLY)" make/test compatibility

lint: ## format and lints, warnings are errors
	@CARGO="$(CARGO)" MAKE="$(MAKE)" make/test lint

soak: ## random kills, failures and inputs for SECONDS (default 1800): make soak SECONDS=60
	@CARGO="$(CARGO)" MAKE="$(MAKE)" make/soak $(SECONDS)

# The histories with a liar are a tenth of HONEST. VGPU_SEED draws others.
HONEST ?= 100000
audit-histories: ## random histories of the proof audit: no honest tenant is named, a liar is; HONEST=1000 for fewer, VGPU_SEED=n for others
	$(CARGO) test --release -q -p vgpu-core --test shares --no-run
	PROPTEST_CASES=$(HONEST) $(CARGO) test --release -q -p vgpu-core --test shares -- no_honest_tenant_is_ever_found --nocapture
	PROPTEST_CASES=$$(($(HONEST) / 10)) $(CARGO) test --release -q -p vgpu-core --test shares -- a_liar_among_honest_tenants --nocapture

# Ten minutes, unless SECONDS was set to another value than the soak's default.
mixed: build ## a mixed run in which tenants' tools and the daemon must agree: ten minutes; make mixed SECONDS=60
	VGPU_MIXED_SECONDS=$(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) VGPU_BUILD=$(abspath $(RELEASE)) \
	VGPU_LIB_DIR=$(abspath $(RELEASE)) VGPU_SIM_LIB_DIR=$(abspath $(RELEASE))/sim \
	$(CARGO) test -q --workspace --test time_mixed -- --nocapture

fuzz: ## libFuzzer on the messages of tenants and administrators: make fuzz SECONDS=600 TARGETS=ask
	@CARGO="$(CARGO)" make/fuzz $(SECONDS) $(TARGETS)

# A driver whose calls cost almost nothing, so that only the library's own code of a launch under a ceiling remains.
NOTHING := $(RELEASE)/nothing/libcuda.so.1
$(NOTHING): benches/overhead/nothing.c
	@mkdir -p $(dir $@)
	cc -O2 -Wall -Wextra -fPIC -shared -Wl,-soname,libcuda.so.1 -o $@ $<

bench: build $(NOTHING) ## the cost that the library adds to a call, as differences against the bare driver in one run
	$(CARGO) bench -p vgpu-benches
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-overhead
	@command -v valgrind > /dev/null || { echo "SKIPPED: instructions per call (apt-get install valgrind)"; exit 0; } && \
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-overhead -- --instructions

bench-instructions: build $(NOTHING) ## instructions per call, counted by valgrind: a figure that a busy machine does not change
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-overhead -- --instructions --check

bench-quick: build ## shares of device time: twelve points of 10 s, medians of three; about three minutes
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-shares -- --quick --runs 3 --out $(TARGET)/shares/quick

bench-shares: build ## shares of device time: the whole table, about a quarter of an hour; POINTS=text,... for a part of it
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-shares -- $(if $(POINTS),--points $(POINTS)) --out $(TARGET)/shares/full

bench-tenants: build ## tenants under the daemon: shares, latency, two services, decode steps, changes of limits; seven minutes on a quiet host
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-shares -- tenants $(if $(ONLY),--only $(ONLY)) --check --out $(TARGET)/tenants

bench-alone: build ## several processes of a tenant that is alone: bare, an open gate, a wide lease in turns; five minutes
	benches/alone/measure $(RELEASE)

bench-daemon: build ## the daemon with 1,000 tenants and 10,000 members: latency of a grant, descriptors, processor; a minute
	$(CARGO) run --release -q -p vgpu-benches --bin vgpu-daemon-bench -- --check --out $(TARGET)/daemon

# The tools are built first, because the report runs them as programs.
bench-report: build $(NOTHING) ## the metrics of a published suite, with native and null-control columns: ten minutes at most; ONLY=IS for a part
	$(CARGO) build --release -q -p vgpu-benches --bins
	$(RELEASE)/vgpu-bench-report $(if $(ONLY),--only $(ONLY)) --out $(TARGET)/bench-report > /dev/null
	@echo "$(TARGET)/bench-report/report.md"

mutants: build ## breaks library and daemon on purpose and checks that the tests notice; twenty minutes
	tests/mutants

# Here and in make/soak the whole workspace is named, although one package has these tests. That package alone enables
# fewer features of its dependencies, and cargo would build them a second time.
.PHONY: test-bundle
test-bundle: build gpu-bundle ## the process-level tests with the library of the bundle (another linker, an old glibc)
	VGPU_BUILD=$(abspath $(RELEASE)) VGPU_SIM_LIB_DIR=$(abspath $(RELEASE))/sim VGPU_LIB_DIR=$(abspath $(GPU_BUNDLE))/lib/vgpu \
	$(CARGO) test -q --workspace --test lookup --test memory --test input --test tenant --test guest
