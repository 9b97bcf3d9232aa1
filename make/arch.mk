# The build runs on the machine architecture that it builds for; everything that depends on the architecture is here.
# Another architecture also needs a file in libvgpu/src/ffi/arch/ and its lines in scheduler-sidecar/cli/src/arch.rs.

MACHINE    := $(shell uname -m)
TRIPLE     := $(MACHINE)-unknown-linux-gnu
ZIG_TARGET := $(MACHINE)-linux-gnu
# Debian's name of the architecture.
DEB_x86_64  := amd64
DEB_aarch64 := arm64
DEB_ARCH    := $(or $(DEB_$(MACHINE)),$(MACHINE))
# Oldest C library that can load the shipped files. It is of 2012, older than any CUDA image in use.
GLIBC      := 2.17
