# The Debian package and its tests.

DEB_VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
DEB         := $(TARGET)/vgpu_$(DEB_VERSION)_$(DEB_ARCH).deb

# Packs the build BUILT into a package, with make's own values.
PACK        := VERSION=$(DEB_VERSION) ARCH=$(DEB_ARCH) GLIBC=$(GLIBC) TRIPLE=$(TRIPLE) CARGO="$(CARGO)" MAKE="$(MAKE)" \
               SHIPPED="$(filter-out -p,$(PRODUCTS) $(DEMO))" packaging/deb/build

.PHONY: deb test-deb test-systemd story
deb: portable ## Debian package of the shipped build: target/vgpu_VERSION_MACHINE.deb, the same bytes each time
	$(PACK) $(PORTABLE) $(DEB)

test-deb: deb ## installs the package in clean Debian roots without a network, tries it there, and removes it
	umask 077; TZ=Asia/Tokyo $(PACK) $(PORTABLE) $(DEB).again > /dev/null
	cmp $(DEB) $(DEB).again && rm -f $(DEB).again
	packaging/deb/test $(DEB)

test-systemd: deb ## the package under a real systemd, booted by systemd-nspawn without a network: start, reload, kill, upgrade, socket
	packaging/deb/test-systemd $(DEB)

story: deb ## follows README's first five minutes with the package on this machine, and checks that nothing is left; about a minute
	packaging/story/run $(DEB)
