"""The cluster leaves the machine as it was, also after a kill."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import cluster as machine
from cluster import PROGRAMS, Cluster, eventually, read_text


def traces():
    """Everything of this machine that a node changes."""
    mounts = sorted(line.split()[4] for line in read_text("/proc/self/mountinfo").splitlines())
    return {
        "mounts": [path for path in mounts if "vgpu" in path or "kubelet" in path],
        "groups": machine.cgroup_dirs(),
        "sysctls": {name: read_text(f"/proc/sys/{name}") for name in machine.SYSCTLS},
        "paths": [path for path in machine.OUTSIDE if os.path.lexists(path)],
        "links": sorted(os.listdir("/sys/class/net")),
        "programs": sorted(
            words for entry in os.listdir("/proc") if entry.isdigit()
            for words in [read_text(f"/proc/{entry}/cmdline").replace("\0", " ")]
            if str(PROGRAMS) in words or "vgpu-kubernetes" in words
        ),
        "directory": os.path.exists(pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / "vgpu-kubernetes"),
        "record": machine.RECORD.exists(),
    }  # fmt: skip


START = """
import sys, time
sys.path.insert(0, {directory!r})
from cluster import Cluster
Cluster.start(with_keeper={keeper})
print("ready", flush=True)
time.sleep(1000)
"""


def start_elsewhere(keeper):
    text = START.format(directory=str(pathlib.Path(__file__).parent), keeper=keeper)
    owner = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "ready\n"
    return owner


@pytest.fixture(autouse=True)
def programs():
    if not (PROGRAMS / "kubelet").exists():
        pytest.skip("run tests/setup/kubernetes")


def run_a_pod():
    cluster = Cluster.running()
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleeper"},
        "spec": {"containers": [{"name": "main", "image": "localhost/pause:1", "imagePullPolicy": "Never"}]},
    }  # fmt: skip
    cluster.kubectl("apply", "-f", "-", text=json.dumps(pod))
    phase = lambda: cluster.kubectl("get", "pod", "sleeper", "-o", "jsonpath={.status.phase}").stdout  # noqa: E731
    eventually("a pod runs", lambda: phase() == "Running")


def test_a_cluster_whose_owner_was_killed_is_removed_with_all_its_traces():
    before = traces()
    owner = start_elsewhere(keeper=True)
    run_a_pod()
    during = traces()
    # The test can fail: a node does change the machine.
    assert all(during[what] != before[what] for what in ("mounts", "groups", "sysctls", "paths", "links", "programs"))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    eventually("the machine is as before", lambda: traces() == before)


def test_a_cluster_without_a_keeper_is_removed_by_the_next_stop():
    before = traces()
    owner = start_elsewhere(keeper=False)
    run_a_pod()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert traces() != before
    subprocess.run([sys.executable, machine.__file__, "stop"], check=True)
    assert traces() == before
