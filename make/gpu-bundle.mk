# gpu-bundle: everything with which a machine with a GPU measures itself and checks the promises (make/portable.mk).

GPU_BUNDLE       := target/gpu-bundle
GPU_BUNDLE_TAR   := target/gpu-bundle.tar.gz

.PHONY: gpu-bundle
gpu-bundle: portable ## builds the bundle for a machine with a GPU: target/gpu-bundle and its .tar.gz
	rm -rf $(GPU_BUNDLE) $(GPU_BUNDLE_TAR)
	mkdir -p $(GPU_BUNDLE)/bin $(GPU_BUNDLE)/lib/vgpu $(GPU_BUNDLE)/docs
	cp $(PORTABLE)/gpu-probe $(PORTABLE)/vgpu $(PORTABLE)/vgpud $(GPU_BUNDLE)/bin/
	cp $(PORTABLE)/libvgpu.so $(GPU_BUNDLE)/lib/vgpu/
	cp -R benches/hardware/run benches/hardware/suite benches/hardware/programs benches/hardware/model \
	    benches/hardware/bundle/README.md $(GPU_BUNDLE)/
	cp docs/gpu-probe.md LICENSE $(GPU_BUNDLE)/docs/
	find $(GPU_BUNDLE) -name __pycache__ -prune -exec rm -rf {} +
	{ git describe --always --dirty --abbrev=12 || echo unknown; } > $(GPU_BUNDLE)/VERSION
	tar -C target -czf $(GPU_BUNDLE_TAR) gpu-bundle
	sh benches/hardware/bundle/check $(GPU_BUNDLE) $(GPU_BUNDLE_TAR)
	python3 $(GPU_BUNDLE)/run --list > /dev/null
	@echo "on the machine with the GPU: tar xzf gpu-bundle.tar.gz && gpu-bundle/run results"

.PHONY: test-bundle-suite
test-bundle: test-bundle-suite
test-bundle-suite: build gpu-bundle ## the bundle's suite, on a simulated device with the bundle's own parts
	cd benches/hardware && VGPU_REQUIRE_ALL=1 VGPU_BUILD=$(abspath $(RELEASE)) VGPU_LIB_DIR=$(abspath $(GPU_BUNDLE))/lib/vgpu \
	VGPU_PROBE=$(abspath $(GPU_BUNDLE))/bin/gpu-probe python3 -B -m unittest test_suite test_simulated
	rm -rf $(GPU_BUNDLE)-tried
	python3 $(GPU_BUNDLE)/run $(GPU_BUNDLE)-tried --sim $(abspath $(RELEASE))/sim --only "capture rules,capture calls"
	rm -rf $(GPU_BUNDLE)-tried
