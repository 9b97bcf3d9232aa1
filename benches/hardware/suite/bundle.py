"""Paths of the bundle's parts: next to `run`, or in a build tree."""
import os


class Bundle:
    def __init__(self, probe, library, vgpu=None, vgpud=None):
        self.probe, self.library, self.vgpu, self.vgpud = probe, library, vgpu, vgpud

    def missing(self):
        return [f"{name}: {path}" for name, path in (("gpu-probe", self.probe), ("libvgpu.so", self.library))
                if not path or not os.path.exists(path)]


def find(here, probe=None, library=None):
    """Explicitly named parts first, then those next to `run`, then those of a build tree above it."""
    root = os.path.dirname(os.path.dirname(here))
    # In a build directory the programs are next to the library; in a bundle or an installation they are in bin.
    beside = os.path.dirname(os.path.abspath(library)) if library else here
    places = {
        "probe": [probe, os.path.join(here, "bin", "gpu-probe"), os.path.join(root, "target", "release", "gpu-probe")],
        "library": [library, os.path.join(here, "lib", "vgpu", "libvgpu.so"), os.path.join(root, "target", "release", "libvgpu.so")],
        **{name: [os.path.join(here, "bin", name), os.path.join(beside, name),
                  os.path.join(beside, "..", "..", "bin", name), os.path.join(root, "target", "release", name)]
           for name in ("vgpu", "vgpud")},
    }
    found = {}
    for name, candidates in places.items():
        # A part named explicitly that does not exist is an error, not a reason to take another one.
        named = [path for path in candidates[:1] if path and name in ("probe", "library")]
        existing = [path for path in (named or candidates) if path and os.path.exists(path)]
        found[name] = os.path.abspath(existing[0]) if existing else (named[0] if named else None)
    return Bundle(found["probe"], found["library"], found["vgpu"], found["vgpud"])
