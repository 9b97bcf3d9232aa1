# The build runs on the machine architecture that it builds for; everything that depends on the architecture is here.
# Another architecture also needs a file in libvgpu/src/ffi/arch/ and its lines in scheduler-sidecar/cli/src/arch.rs.

MACHINE    := $(shell uname -m)
TRIPLE     := $(MACHINE)-unknown-linux-gnu
ZIG_TARGET := $(MACHINE)-linux-gnu
# The tests know this one machine besides their own.
.PHONY: check-aarch64
check-aarch64: build ## the library and the simulated driver for AArch64, built, and tried under qemu-user (tests/setup/aarch64)
	@CARGO="$(CARGO)" make/aarch64

# Debian's name of the architecture.
DEB_x86_64  := amd64
DEB_aarch64 := arm64
DEB_ARCH    := $(or $(DEB_$(MACHINE)),$(MACHINE))
# Oldest C library that can load the shipped files. It is of 2012, older than any CUDA image in use.
GLIBC      := 2.17
