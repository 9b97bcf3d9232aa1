# The machine this builds for is the one it builds on; what is of one age stands here too. What another machine needs
# besides: a file in libvgpu/src/arch/, and its lines in scheduler-sidecar/cli/src/arch.rs.

MACHINE    := $(shell uname -m)
TRIPLE     := $(MACHINE)-unknown-linux-gnu
ZIG_TARGET := $(MACHINE)-linux-gnu
# What Debian calls it.
DEB_x86_64  := amd64
DEB_aarch64 := arm64
DEB_ARCH    := $(or $(DEB_$(MACHINE)),$(MACHINE))
# The oldest C library that what is shipped is loaded by: of 2012, older than any CUDA image in use.
GLIBC      := 2.17
