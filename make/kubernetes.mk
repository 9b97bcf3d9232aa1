# The agent of a Kubernetes node. It is a workspace of its own, so that nothing else needs what it needs.

K8S := integrations/kubernetes
K8S_TARGET := $(TARGET)/kubernetes

.PHONY: kubernetes test-kubernetes-agent
kubernetes: ## the agent of a Kubernetes node: target/kubernetes/release/vgpu-k8s
	$(CARGO) build --release --quiet --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET)

test-kubernetes-agent: build ## the agent between a real vgpud and a kubelet that the tests play; a minute, mostly building
	$(CARGO) fmt --check --manifest-path $(K8S)/Cargo.toml
	$(CARGO) clippy --quiet --locked --all-targets --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET) -- -D warnings
	VGPU_BUILD=$(abspath $(RELEASE)) $(CARGO) test --quiet --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET)
