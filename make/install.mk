# Installs the result of `make dist`. Nothing is built here, so that `sudo make install` needs no compiler.
#
# `make deb` installs the result of `make portable` by the same rules, with PREFIX=/usr. The paths of installed files
# are defined only here.

PREFIX     ?= /usr/local
DESTDIR    ?=
# Configuration is not below PREFIX: the unit, the documents and people expect it in one place.
SYSCONFDIR ?= /etc

BIN    = $(DESTDIR)$(PREFIX)/bin
LIB    = $(DESTDIR)$(PREFIX)/lib/vgpu
SHARE  = $(DESTDIR)$(PREFIX)/share
DOC    = $(SHARE)/doc/vgpu
# Python packages: PYTHONPATH names this directory, for any version of Python.
PYTHON = $(SHARE)/vgpu/python
UNITS  = $(DESTDIR)$(PREFIX)/lib/systemd/system
TMP    = $(DESTDIR)$(PREFIX)/lib/tmpfiles.d
CONFIG = $(DESTDIR)$(SYSCONFDIR)/vgpu
BASH   = $(SHARE)/bash-completion/completions
ZSH    = $(SHARE)/zsh/site-functions
FISH   = $(SHARE)/fish/vendor_completions.d
DEMO_PROGRAMS := vgpu-demo example-memory example-view example-launches

# On a running system the service manager reads its units again. Nothing is started, enabled or stopped.
reload_units = @[ -n "$(DESTDIR)" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload || true

.PHONY: install uninstall
install: ## installs what `make dist` built, with units and man pages; PREFIX=/usr/local, DESTDIR for packages
	@for part in vgpu vgpud vgpu-checkpoint libvgpu.so libcuda.so libnvidia_ml.so $(DEMO_PROGRAMS); do \
	    [ -e $(DIST)/$$part ] || { echo "nothing to install, $(DIST)/$$part is missing: run make dist first" >&2; exit 1; }; done
	install -d $(BIN) $(LIB)/sim $(LIB)/demo $(UNITS) $(TMP) $(CONFIG) $(BASH) $(ZSH) $(FISH) $(DOC)/docs/measurements $(DOC)/examples
	install -m 755 $(DIST)/vgpu $(DIST)/vgpud $(DIST)/vgpu-checkpoint $(BIN)
# Replaced by rename, so that programs that have the old file mapped keep it.
	install -m 644 $(DIST)/libvgpu.so $(LIB)/libvgpu.so.new
	mv -f $(LIB)/libvgpu.so.new $(LIB)/libvgpu.so
	install -m 644 $(DIST)/libcuda.so $(LIB)/sim/libcuda.so.1
	install -m 644 $(DIST)/libnvidia_ml.so $(LIB)/sim/libnvidia-ml.so.1
# The demo finds all its parts in its own directory.
	install -m 755 $(addprefix $(DIST)/,$(DEMO_PROGRAMS)) $(LIB)/demo
	ln -sfn ../libvgpu.so $(LIB)/demo/libvgpu.so
	ln -sfn ../sim $(LIB)/demo/sim
	ln -sfn ../../../bin/vgpu $(LIB)/demo/vgpu
	ln -sfn ../../../bin/vgpud $(LIB)/demo/vgpud
	ln -sfn ../lib/vgpu/demo/vgpu-demo $(BIN)/vgpu-demo
	for unit in vgpud.service vgpud.socket; do \
	    sed 's|/usr/local/bin/|$(PREFIX)/bin/|' examples/daemon/$$unit > $(UNITS)/$$unit && chmod 644 $(UNITS)/$$unit || exit; done
	install -m 644 packaging/tmpfiles.conf $(TMP)/vgpu.conf
	[ -e $(CONFIG)/vgpud.toml ] || sed 's|/usr/local/|$(PREFIX)/|' packaging/vgpud.toml > $(CONFIG)/vgpud.toml
	for program in vgpu vgpud vgpu-checkpoint; do \
	    $(DIST)/vgpu completions --of $$program bash > $(BASH)/$$program && \
	    $(DIST)/vgpu completions --of $$program zsh > $(ZSH)/_$$program && \
	    $(DIST)/vgpu completions --of $$program fish > $(FISH)/$$program.fish || exit; done
	$(DIST)/vgpu man $(SHARE)/man > /dev/null
	install -m 644 README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE $(DOC)
	cp docs/*.md $(DOC)/docs
	install -m 644 docs/measurements/*.md $(DOC)/docs/measurements
	cp -R examples/README.md examples/compose examples/daemon examples/docker examples/monitoring examples/systemd $(DOC)/examples
	install -d $(DOC)/integrations/ray $(PYTHON)/vgpu_ray
	cp -R integrations/slurm integrations/swarm $(DOC)/integrations
	install -m 644 integrations/ray/README.md $(DOC)/integrations/ray
	install -m 644 integrations/ray/src/vgpu_ray/*.py $(PYTHON)/vgpu_ray
	$(reload_units)

uninstall: ## removes the installed files, and the configuration if it is unchanged
	! sed 's|/usr/local/|$(PREFIX)/|' packaging/vgpud.toml | cmp -s - $(CONFIG)/vgpud.toml || rm -f $(CONFIG)/vgpud.toml
	[ ! -d $(CONFIG) ] || rmdir --ignore-fail-on-non-empty $(CONFIG)
	rm -f $(BIN)/vgpu $(BIN)/vgpud $(BIN)/vgpu-checkpoint $(BIN)/vgpu-demo $(UNITS)/vgpud.service $(UNITS)/vgpud.socket $(TMP)/vgpu.conf
	rm -f $(addprefix $(BASH)/,vgpu vgpud vgpu-checkpoint) $(addprefix $(ZSH)/_,vgpu vgpud vgpu-checkpoint)
	rm -f $(addprefix $(FISH)/,vgpu.fish vgpud.fish vgpu-checkpoint.fish)
	rm -f $(SHARE)/man/man1/vgpu.1 $(SHARE)/man/man1/vgpu-*.1 $(SHARE)/man/man8/vgpud.8 $(SHARE)/man/man8/vgpu-checkpoint*.8
	rm -rf $(LIB) $(DOC) $(SHARE)/vgpu
	$(reload_units)
