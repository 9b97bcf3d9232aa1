# The demo: two tenants on one GPU, the real one if there is one, else the simulated one.

.PHONY: demo
demo: build ## two tenants side by side: quotas, the last byte, the refusal, shares of time, the daemon
	$(CARGO) build --release -p vgpu-examples
	@$(RELEASE)/vgpu-demo

# mdBook is not installed here: the pages are readable without it.
.PHONY: book
book: ## the book in docs/ as a web site, with mdBook (says how to get it): target/book
	@make/book $(TARGET)/book
