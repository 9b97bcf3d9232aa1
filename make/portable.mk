# The build for other machines: linked for an old C library, without libgcc_s, without the paths of this machine.
#
# zig is the linker (a package of PyPI, kept under .cache/): it can link against an old glibc and needs no libgcc_s.

ZIG_VERSION     := 0.17.0
ZIG_VENV        := .cache/zig-$(ZIG_VERSION)
ZIG_STAMP       := $(ZIG_VENV)/.installed
# A separate target directory, so that neither this nor another build waits for the other's lock.
PORTABLE_TARGET := $(TARGET)/bundle
PORTABLE        := $(PORTABLE_TARGET)/$(TRIPLE)/dist
# Panic messages name source files. These flags make the names equal on every build machine.
PORTABLE_FLAGS  = $(RUSTFLAGS) --remap-path-prefix=$(CURDIR)=/vgpu \
                   --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src=/crates \
                   --remap-path-prefix=$(shell rustc --print sysroot)/lib/rustlib/src/rust=/rust
TRIPLE_UPPER    := $(shell echo $(TRIPLE) | tr a-z- A-Z_)
TRIPLE_LOWER    := $(subst -,_,$(TRIPLE))

PORTABLE_ENV = ZIG_PYTHON=$(abspath $(ZIG_VENV))/bin/python ZIG_TARGET=$(ZIG_TARGET).$(GLIBC) \
	ZIG_GLOBAL_CACHE_DIR=$(abspath .cache/zig-cache) ZIG_LOCAL_CACHE_DIR=$(abspath .cache/zig-cache) \
	CARGO_TARGET_$(TRIPLE_UPPER)_LINKER=$(abspath benches/hardware/bundle/zig-cc) \
	CC_$(TRIPLE_LOWER)=$(abspath benches/hardware/bundle/zig-cc) \
	RUSTFLAGS="$(strip $(PORTABLE_FLAGS))"

.PHONY: portable
portable: $(ZIG_STAMP) ## the shipped build, linked for every glibc since 2.17: target/bundle
	$(PORTABLE_ENV) $(CARGO) build --profile dist --target-dir $(PORTABLE_TARGET) --target $(TRIPLE) -p gpu-probe $(PRODUCTS) $(DEMO)
	$(call lay_sim,$(PORTABLE))

$(ZIG_STAMP):
	rm -rf $(ZIG_VENV)
	python3 -m venv $(ZIG_VENV)
	$(ZIG_VENV)/bin/pip install --quiet --disable-pip-version-check ziglang==$(ZIG_VERSION)
	touch $@
