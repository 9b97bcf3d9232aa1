# vgpu: one NVIDIA GPU, several containers. `make help` lists the targets; the rules are in make/.

CARGO   ?= cargo
TARGET  := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
DIST    := $(TARGET)/dist

.DEFAULT_GOAL := help
.PHONY: help
help: ## lists the targets
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

include make/arch.mk
include make/build.mk
include make/test.mk
include make/demo.mk
include make/install.mk
include make/portable.mk
include make/deb.mk
include make/ray.mk
include make/kubernetes.mk
-include make/gpu-bundle.mk
