# The agent of a Kubernetes node, its image and its chart. The agent is a workspace of its own, so that nothing else
# needs what it needs.

K8S := integrations/kubernetes
K8S_TARGET := $(TARGET)/kubernetes
IMAGE ?= localhost/vgpu:$(DEB_VERSION)

K8S_PORTABLE := $(PORTABLE_TARGET)/kubernetes
K8S_DEB := $(TARGET)/vgpu-kubernetes_$(DEB_VERSION)_$(DEB_ARCH).deb
PACK_K8S := VERSION=$(DEB_VERSION) ARCH=$(DEB_ARCH) GLIBC=$(GLIBC) TRIPLE=$(TRIPLE) CARGO="$(CARGO)" \
            packaging/deb/build-kubernetes $(K8S_PORTABLE)/$(TRIPLE)/dist/vgpu-k8s

.PHONY: kubernetes image manifests test-kubernetes-agent test-containerd test-chart test-kubernetes deb-kubernetes test-deb-kubernetes
kubernetes: ## the agent of a Kubernetes node: target/kubernetes/release/vgpu-k8s
	$(CARGO) build --release --quiet --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET)

image: deb kubernetes ## container image of a node from the Debian package, in an archive: target/vgpu-image.tar; IMAGE=NAME:TAG
	packaging/image/build $(DEB) $(K8S_TARGET)/release/vgpu-k8s $(IMAGE) $(TARGET)/vgpu-image.tar

manifests: ## writes integrations/kubernetes/manifests from the chart; needs tests/setup/kubernetes
	@make/test-kubernetes manifests

test-kubernetes-agent: build ## the agent between a real vgpud and a kubelet that the tests play; a minute, mostly building
	$(CARGO) build --release --quiet --locked $(DEMO)
	$(CARGO) fmt --check --manifest-path $(K8S)/Cargo.toml
	$(CARGO) clippy --quiet --locked --all-targets --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET) -- -D warnings
	VGPU_BUILD=$(abspath $(RELEASE)) $(CARGO) test --quiet --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET)

test-containerd: build ## tenants in containers of a real containerd, by CDI and by NRI; seconds after the build (tests/setup/containerd)
	VGPU_BUILD=$(abspath $(RELEASE)) $(CARGO) test --quiet --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_TARGET) \
	    --test containerd --test contracts

deb-kubernetes: $(ZIG_STAMP) ## Debian package of the agent, with its units: target/vgpu-kubernetes_VERSION_MACHINE.deb
	$(PORTABLE_ENV) $(CARGO) build --profile dist --locked --manifest-path $(K8S)/Cargo.toml --target-dir $(K8S_PORTABLE) --target $(TRIPLE)
	$(PACK_K8S) $(K8S_DEB)

test-deb-kubernetes: deb deb-kubernetes ## both packages under a real systemd, as test-systemd: start, kill, upgrade, removal, purge
	umask 077; TZ=Asia/Tokyo $(PACK_K8S) $(K8S_DEB).again > /dev/null
	cmp $(K8S_DEB) $(K8S_DEB).again && rm -f $(K8S_DEB).again
	packaging/deb/test-kubernetes $(DEB) $(K8S_DEB)

test-chart: ## lints the chart, and checks it against the schemas of Kubernetes; seconds, needs tests/setup/kubernetes
	@TARGET=$(TARGET) make/test-kubernetes chart

test-kubernetes: build image ## pods of a real kubelet on the simulated GPU, the chart and its page; minutes, needs root and tests/setup/kubernetes
	@TARGET=$(TARGET) make/test-kubernetes all
