# The demo: two tenants on one GPU, the real one if there is one, else the simulated one.

.PHONY: demo
demo: build ## two tenants side by side: quotas, the last byte, the refusal, shares of time, the daemon
	$(CARGO) build --release -p vgpu-examples
	@$(RELEASE)/vgpu-demo
