# What is of one machine and of one age stands here; another machine is another set of these lines, and what
# libvgpu/src/lookup/naked.rs says about registers.

TRIPLE     := x86_64-unknown-linux-gnu
ZIG_TARGET := x86_64-linux-gnu
DEB_ARCH   := amd64
# The oldest C library that what is shipped is loaded by: of 2012, older than any CUDA image in use.
GLIBC      := 2.17
