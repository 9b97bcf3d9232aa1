# Building: the library, the simulated driver, the daemon and the command line, all in one directory.

# The products that a user needs. Tests, benches and examples are built by their own commands.
PRODUCTS := -p libvgpu -p sim-cuda -p sim-nvml -p vgpu-daemon -p vgpu-cli
# The demo is part of the shipped build.
DEMO     := -p vgpu-examples

# The loader looks for the driver under these names: LD_LIBRARY_PATH=target/release/sim gives any program the simulated
# one.
define lay_sim
	@mkdir -p $(1)/sim
	@ln -sf ../libcuda.so $(1)/sim/libcuda.so.1
	@ln -sf libcuda.so.1 $(1)/sim/libcuda.so
	@ln -sf ../libnvidia_ml.so $(1)/sim/libnvidia-ml.so.1
endef

.PHONY: build dist setup clean
build: ## release build: libvgpu.so, the simulated driver, vgpu and vgpud in target/release
	$(CARGO) build --release $(PRODUCTS)
	$(call lay_sim,$(RELEASE))

dist: ## the shipped build: one codegen unit, stripped, in target/dist
	$(CARGO) build --profile dist $(PRODUCTS) $(DEMO)
	$(call lay_sim,$(DIST))

setup: ## optional parts of the tests: nvidia-smi, libcuda1, Python clients, Ray, docker.io (Debian, root)
	tests/setup/all

clean: ## removes target; downloads in .cache stay (make distclean removes them too)
	$(CARGO) clean

.PHONY: distclean
distclean: clean
	rm -rf .cache
