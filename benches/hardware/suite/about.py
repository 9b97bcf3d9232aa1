"""Identification of a run: date, device, driver, the bundle's version and the command. The head of every raw file."""
import os
import platform
import subprocess
import sys
import time

from .runner import NotPossible


def version(here):
    """Commit that the bundle was built from; in a working tree the tree's commit."""
    try:
        with open(os.path.join(here, "VERSION"), encoding="utf-8") as text:
            return text.read().strip()
    except OSError:
        pass
    try:
        found = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, timeout=10, check=False).stdout.decode().strip()
    except (OSError, subprocess.TimeoutExpired):
        found = ""
    return found or None


def gather(suite, here, started):
    """The head. Unknown values are null, and `device_error` states why."""
    about = {"date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)), "version": version(here),
             "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), "simulated": bool(suite.sim),
             "kernel": platform.release(), "gpu": None, "driver": None, "cuda_driver_version": None}
    try:
        got = suite.run(suite.python("about.py"), suite.environment(), 60).json()
        about.update({key: got[key] for key in ("gpu", "driver", "cuda_driver_version")})
    except (NotPossible, KeyError) as reason:
        about["device_error"] = str(reason)[-300:]
    return about
