# The Python package for Ray, and its tests.

# make/test-ray builds the wheel and installs it into a directory of its own, so that the tests run what is shipped.
.PHONY: ray-wheel test-ray
ray-wheel: ## the Python package vgpu_ray: target/ray/vgpu_ray-VERSION-py3-none-any.whl
	@TARGET=$(TARGET) make/test-ray wheel

test-ray: build ## actors and tasks of a real Ray on simulated GPUs, held to their fractions; about two minutes, needs tests/setup/ray
	@TARGET=$(TARGET) make/test-ray all
