# gpu-bundle: everything that a machine with a GPU needs to measure itself and to check the promises, for glibc 2.17.
#
# zig is the linker (a package of PyPI, kept under .cache/): it can link against an old glibc and needs no libgcc_s.

GPU_BUNDLE       := target/gpu-bundle
GPU_BUNDLE_TAR   := target/gpu-bundle.tar.gz
GPU_BUNDLE_TRIPLE := x86_64-unknown-linux-gnu
ZIG_VERSION      := 0.17.0
ZIG_VENV         := .cache/zig-$(ZIG_VERSION)
ZIG_STAMP        := $(ZIG_VENV)/.installed
# A place of its own, so that neither this nor another build waits for the other.
GPU_BUNDLE_TARGET := $(TARGET)/bundle
GPU_BUNDLE_BUILT := $(GPU_BUNDLE_TARGET)/$(GPU_BUNDLE_TRIPLE)/dist

.PHONY: gpu-bundle
gpu-bundle: $(ZIG_STAMP) ## build the bundle for a machine with a GPU: target/gpu-bundle and its .tar.gz
	ZIG_PYTHON=$(abspath $(ZIG_VENV))/bin/python \
	ZIG_GLOBAL_CACHE_DIR=$(abspath .cache/zig-cache) ZIG_LOCAL_CACHE_DIR=$(abspath .cache/zig-cache) \
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=$(abspath benches/hardware/bundle/zig-cc) \
	CC_x86_64_unknown_linux_gnu=$(abspath benches/hardware/bundle/zig-cc) \
	cargo build --profile dist --target-dir $(GPU_BUNDLE_TARGET) --target $(GPU_BUNDLE_TRIPLE) -p gpu-probe -p libvgpu -p scheduler-sidecar
	rm -rf $(GPU_BUNDLE) $(GPU_BUNDLE_TAR)
	mkdir -p $(GPU_BUNDLE)/bin $(GPU_BUNDLE)/lib/vgpu $(GPU_BUNDLE)/docs
	cp $(GPU_BUNDLE_BUILT)/gpu-probe $(GPU_BUNDLE_BUILT)/vgpu $(GPU_BUNDLE_BUILT)/vgpud $(GPU_BUNDLE)/bin/
	cp $(GPU_BUNDLE_BUILT)/libvgpu.so $(GPU_BUNDLE)/lib/vgpu/
	cp -R benches/hardware/run benches/hardware/suite benches/hardware/programs benches/hardware/model \
	    benches/hardware/bundle/README.md $(GPU_BUNDLE)/
	cp docs/gpu-probe.md LICENSE $(GPU_BUNDLE)/docs/
	find $(GPU_BUNDLE) -name __pycache__ -prune -exec rm -rf {} +
	{ git describe --always --dirty --abbrev=12 || echo unknown; } > $(GPU_BUNDLE)/VERSION
	tar -C target -czf $(GPU_BUNDLE_TAR) gpu-bundle
	sh benches/hardware/bundle/check $(GPU_BUNDLE) $(GPU_BUNDLE_TAR)
	python3 $(GPU_BUNDLE)/run --list > /dev/null
	@echo "on the machine with the GPU: tar xzf gpu-bundle.tar.gz && gpu-bundle/run results"

.PHONY: test-bundle-suite
test-bundle: test-bundle-suite
test-bundle-suite: build gpu-bundle ## the suite that the bundle carries, on a simulated device with the bundle's own parts
	cd benches/hardware && VGPU_REQUIRE_ALL=1 VGPU_BUILD=$(abspath $(RELEASE)) VGPU_LIB_DIR=$(abspath $(GPU_BUNDLE))/lib/vgpu \
	VGPU_PROBE=$(abspath $(GPU_BUNDLE))/bin/gpu-probe python3 -B -m unittest test_suite test_simulated
	rm -rf $(GPU_BUNDLE)-tried
	python3 $(GPU_BUNDLE)/run $(GPU_BUNDLE)-tried --sim $(abspath $(RELEASE))/sim --only "capture rules,capture calls"
	rm -rf $(GPU_BUNDLE)-tried

$(ZIG_STAMP):
	rm -rf $(ZIG_VENV)
	python3 -m venv $(ZIG_VENV)
	$(ZIG_VENV)/bin/pip install --quiet --disable-pip-version-check ziglang==$(ZIG_VERSION)
	touch $@
