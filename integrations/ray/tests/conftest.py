"""A real Ray cluster of two nodes on the loopback device, each with simulated GPUs of its own.

The node `held` has two GPUs and a vgpud, the node `alone` has one GPU and no vgpud. VGPU_BUILD, VGPU_LIB_DIR and
VGPU_SIM_LIB_DIR name the products, as in the other tests.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("VGPU_BUILD") or ROOT / "target/release")
LIBRARY = pathlib.Path(os.environ.get("VGPU_LIB_DIR") or BUILD) / "libvgpu.so"
DRIVER = pathlib.Path(os.environ.get("VGPU_SIM_LIB_DIR") or BUILD / "sim")
PLUGINS = json.dumps([{"class": "vgpu_ray.plugin.VgpuPlugin"}])
TESTS = pathlib.Path(__file__).resolve().parent
# A bound for liveness on a busy host; nothing is measured by it.
PATIENCE_S = 60
# Nodes and driver of this cluster share a token. Ray would otherwise keep one in the user's home directory.
AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ.update(AUTHENTICATION, RAY_USAGE_STATS_ENABLED="0")


def eventually(what, question, seconds=PATIENCE_S):
    """Waits until `question` answers with something true, and returns the answer."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


class Node:
    """A machine of its own: simulated GPUs, directories, and Ray's processes."""

    def __init__(self, home, name, gpus):
        self.home, self.name, self.gpus = home / name, name, gpus
        (self.home / "ledgers").mkdir(parents=True)
        self.log = open(self.home / "log", "ab")
        self.children = []

    def environment(self, **more):
        ours = ("VGPU_", "CUDA_", "LD_", "RAY_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "PATH": f"{BUILD}:{pathlib.Path(sys.executable).parent}:{kept['PATH']}",
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{TESTS}",
            "LD_LIBRARY_PATH": str(DRIVER),
            "VGPU_LIBRARY": str(LIBRARY),
            "VGPU_SIM_DIR": str(self.home / "sim"),
            "VGPU_SIM_PROFILE": f"{self.gpus}xh200",
            "VGPU_RUNTIME_DIR": str(self.home / "run"),
            "VGPU_STATE_DIR": str(self.home / "ledgers"),
            "RAY_RUNTIME_ENV_PLUGINS": PLUGINS,
            "RAY_USAGE_STATS_ENABLED": "0",
            **AUTHENTICATION,
            **more,
        }

    def start(self, words, **more):
        child = subprocess.Popen(
            words, env=self.environment(**more), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        self.children.append(child)
        return child

    def start_daemon(self):
        daemon = self.start(["vgpud", "--config", str(self.home / "vgpud.toml"), "--log", "warn"])
        eventually("vgpud answers", lambda: self.vgpu("status")[0] == 0)
        return daemon

    def vgpu(self, *words):
        """Runs `vgpu`; returns its exit code and its output."""
        done = subprocess.run(["vgpu", *words], env=self.environment(), capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def vgpu_json(self, *words):
        code, out, err = self.vgpu(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def truth(self):
        """The device's own record: for each device its processes by PID."""
        devices = self.vgpu_json("sim", "stat")["devices"]
        return [{process["pid"]: process for process in device["processes"]} for device in devices]

    def busy(self):
        """Time in seconds that the devices worked for each process, by PID."""
        return {pid: process["busy_ns"] / 1e9 for device in self.truth() for pid, process in device.items()}

    def tenants(self):
        """The added tenants, by name."""
        return {tenant["name"]: tenant for tenant in self.vgpu_json("tenant", "list") if tenant["from"] == "command"}

    def end_processes(self):
        """Ends all processes of this node, and no others.

        They have the node's own directory in their environment, or are children of such processes. Ray's agents write
        their title over their environment.
        """
        mark = f"VGPU_RUNTIME_DIR={self.home}/run\0".encode()
        ours, parents = set(), {}
        for process in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit():
                    # After the name in parentheses: the state and the parent.
                    stat = (process / "stat").read_text(errors="replace")
                    parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
                    if mark in (process / "environ").read_bytes():
                        ours.add(int(process.name))
        while children := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= children
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.end_processes()
        for child in self.children:
            child.wait()
        self.log.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """The nodes of the cluster, and its address."""

    def __init__(self, home):
        self.home, self.port, self.nodes = home, free_port(), {}

    def add(self, name, gpus, cpus, **more):
        node = Node(self.home, name, gpus)
        self.nodes[name] = node
        where = ["--address", f"127.0.0.1:{self.port}"]
        if len(self.nodes) == 1:
            where = ["--head", f"--port={self.port}", f"--temp-dir={self.home}/ray", "--include-dashboard=false"]
        node.start(
            [
                str(pathlib.Path(sys.executable).parent / "ray"), "start", "--block", *where,
                "--node-ip-address=127.0.0.1",
                f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--resources={json.dumps({name: 1000})}",
                "--object-store-memory=80000000",
            ],
            **more,
        )  # fmt: skip
        return node


def wait_for_nodes(ray, names):
    """Waits until the cluster has a node with each of these resources."""

    def are_there():
        there = [name for node in ray.nodes() if node["Alive"] for name in node["Resources"]]
        return all(name in there for name in names)

    eventually(f"nodes {names}", are_there)


@pytest.fixture(scope="session")
def cluster():
    import ray

    for product in (BUILD / "vgpu", BUILD / "vgpud", LIBRARY, DRIVER / "libcuda.so.1"):
        assert product.exists(), f"{product} is missing: make build"
    # The sockets of Ray and vgpud have paths of at most 107 bytes.
    home = pathlib.Path(tempfile.mkdtemp(prefix="vr", dir="/tmp"))
    cluster = Cluster(home)
    try:
        held = cluster.add("held", gpus=2, cpus=8)
        directories = f'run_dir = "{held.home}/run"\nstate_dir = "{held.home}/kept"\n'
        (held.home / "vgpud.toml").write_text(f"[daemon]\n{directories}")
        held.start_daemon()
        eventually("Ray's port", lambda: socket.socket().connect_ex(("127.0.0.1", cluster.port)) == 0)
        cluster.add("alone", gpus=1, cpus=4)
        eventually("the cluster", lambda: connect(ray, cluster))
        wait_for_nodes(ray, cluster.nodes)
        yield cluster
    except BaseException:
        for node in cluster.nodes.values():
            sys.stderr.write(f"--- log of {node.name}\n{(node.home / 'log').read_text(errors='replace')[-4000:]}")
        raise
    finally:
        ray.shutdown()
        for node in reversed(list(cluster.nodes.values())):
            node.stop()
        shutil.rmtree(home, ignore_errors=True)


def connect(ray, cluster):
    try:
        ray.init(f"127.0.0.1:{cluster.port}", log_to_driver=False, logging_level="error")
        return True
    except ConnectionError:
        return False


@pytest.fixture
def held(cluster):
    """The node with vgpud. At the end its tenants must be gone."""
    node = cluster.nodes["held"]
    yield node
    eventually("the tenants end with their workers", lambda: not node.tenants())


@pytest.fixture
def alone(cluster):
    """The node without vgpud. At the end nobody may use its device."""
    node = cluster.nodes["alone"]
    yield node
    eventually("the workers end", lambda: not any(node.truth()))
