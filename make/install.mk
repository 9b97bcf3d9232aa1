# Installing what `make dist` built. Nothing is built here, so that `sudo make install` needs no compiler.

PREFIX  ?= /usr/local
DESTDIR ?=

BIN         = $(DESTDIR)$(PREFIX)/bin
LIB         = $(DESTDIR)$(PREFIX)/lib/vgpu
COMPLETIONS = $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
              $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

.PHONY: install uninstall
install: ## installs what `make dist` built; PREFIX=/usr/local, DESTDIR for packages
	@test -e $(DIST)/libvgpu.so -a -x $(DIST)/vgpu || { echo "nothing to install: run make dist first" >&2; exit 1; }
	install -d $(BIN) $(LIB)/sim $(COMPLETIONS)
	install -m 755 $(DIST)/vgpu $(DIST)/vgpud $(BIN)
	install -m 755 $(DIST)/libvgpu.so $(LIB)/libvgpu.so.new
	mv -f $(LIB)/libvgpu.so.new $(LIB)/libvgpu.so
	install -m 755 $(DIST)/libcuda.so $(LIB)/sim/libcuda.so.1
	install -m 755 $(DIST)/libnvidia_ml.so $(LIB)/sim/libnvidia-ml.so.1
	$(DIST)/vgpu completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/vgpu
	$(DIST)/vgpu completions zsh  > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_vgpu
	$(DIST)/vgpu completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/vgpu.fish

uninstall: ## removes what install put there
	rm -f $(BIN)/vgpu $(BIN)/vgpud
	rm -rf $(LIB)
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/vgpu \
	      $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_vgpu \
	      $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/vgpu.fish
