"""The chart on a real cluster: installed, upgraded while pods run, and removed."""

import json
import os
import pathlib
import subprocess

import pytest

from cluster import CACHE, NODE, ROOT, eventually, read_text
from node import AGENT, FILE, GIB, LIBRARY, OUT_OF_MEMORY, Node, pause

CHART = ROOT / "integrations/kubernetes/chart"
MANIFESTS = ROOT / "integrations/kubernetes/manifests/vgpu.yaml"
HELM = CACHE / "kubernetes/tools/helm"
IMAGE = pathlib.Path(os.environ.get("VGPU_IMAGE") or ROOT / "target/vgpu-image.tar")
SPACE = "vgpu-system"
LIBRARY_DIR = pathlib.Path("/opt/vgpu")


@pytest.fixture(scope="module")
def helm(cluster):
    if not IMAGE.exists():
        pytest.skip("run make image")
    cluster.import_image(IMAGE)

    def run(*words, check=True):
        environment = {**os.environ, **cluster.environment()}
        done = subprocess.run([HELM, *words, "--namespace", SPACE], env=environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def installed(helm, cluster, member, tmp_path):
    """The chart with the slices `small` and `big`, on the labelled node."""
    node = Node(cluster, member)
    values = tmp_path / "vgpud.toml"
    # A file stands for that of a GPU.
    values.write_text(f'{FILE}[proof]\ndevices = ["/talk/nvidia0"]\n')
    helm("install", "vgpu", CHART, "--create-namespace", "--set-file", f"config={values}")
    node.kubectl("label", "node", NODE, "vgpu.internal/node=true", "--overwrite")
    try:
        node.await_allocatable("small", 1)
        node.await_allocatable("big", 1)
        yield node
    finally:
        node.clear()
        helm("uninstall", "vgpu", "--wait", check=False)
        node.kubectl("label", "node", NODE, "vgpu.internal/node-")
        eventually("the agent's pod is gone", lambda: not agents(node))
        node.await_allocatable("small", 0)


def agents(node):
    words = ("get", "pods", "--namespace", SPACE, "-l", "app.kubernetes.io/name=vgpu", "-o", "name")
    return node.kubectl(*words).stdout.split()


def in_vgpud(node, *words, check=True):
    return node.kubectl("--namespace", SPACE, "exec", "daemonset/vgpu", "--container", "vgpud", "--", *words, check=check)


def process_of(program):
    """The host's number of the process of a pod."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and read_text(f"/proc/{entry}/cmdline").startswith(f"/talk/member-{program.name}"):
            return int(entry)
    raise AssertionError(f"{program.name} does not run")


def library_of(program):
    """The library that a pod's process has mapped: device and inode."""
    maps = read_text(f"/proc/{process_of(program)}/maps").splitlines()
    return next((line.split()[3], int(line.split()[4])) for line in maps if line.endswith("/vgpu/libvgpu.so"))


def inode(path):
    return os.stat(path).st_ino


@pytest.mark.parametrize("how", [(), ("--server-side",)])
def test_an_api_server_of_1_20_accepts_every_object(helm, cluster, how):
    apply = ("apply", "--dry-run=server", *how, "-f", "-")
    cluster.kubectl("create", "namespace", SPACE, check=False)
    chart = helm("template", "vgpu", CHART, "--set", "grafana.enabled=true").stdout
    for text, count in ((chart, 6), (MANIFESTS.read_text(), 6)):
        said = cluster.kubectl(*apply, text=text).stdout
        assert said.count("(server dry run)") == count, said
    wrong = chart.replace("hostPID: true", "hostPID: 7")
    assert wrong != chart
    assert cluster.kubectl(*apply, text=wrong, check=False).returncode != 0


# Engine: kubelet with the device plugin, ours: enforced
def test_pods_get_their_limits_from_the_charts_agent_which_has_no_right_but_those_of_the_page(installed):
    node = installed
    small, big = node.create("small", "small").begin(), node.create("big", "big").begin()
    for program, limit in ((small, 4 * GIB), (big, 8 * GIB)):
        free, total = program.memory()
        assert total == limit
        assert program.ask(f"alloc {free}")[0] == 0 and program.ask("alloc 1")[0] == OUT_OF_MEMORY
    # vgpud sees the members by their numbers on the host.
    said = in_vgpud(node, "vgpu", "ps").stdout
    for program in (small, big):
        assert str(process_of(program)) in said, said
    rights = {}
    for entry in os.listdir("/proc"):
        words = read_text(f"/proc/{entry}/cmdline").split("\0") if entry.isdigit() else [""]
        if words[0] in ("vgpud", "vgpu-k8s"):
            status = dict(line.split(":\t", 1) for line in read_text(f"/proc/{entry}/status").splitlines())
            rights[words[0]] = (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"])
    read_search, kill, ptrace = 2, 5, 19
    assert rights == {"vgpud": (1 << read_search | 1 << kill | 1 << ptrace, "1", "2"), "vgpu-k8s": (0, "1", "2")}


def test_vgpud_in_its_pod_sees_reads_and_ends_processes_of_other_users(installed):
    node = installed
    # A tenant that a command adds is a slice too.
    in_vgpud(node, "vgpu", "tenant", "add", "guest", "--memory-limit", "1GiB", "--label", "kubernetes=guest")
    node.await_allocatable("guest", 1)
    program = node.create("nobody", "guest", securityContext={"runAsUser": 65534}).begin()
    free, total = program.memory()
    assert total == GIB and program.ask(f"alloc {free}")[0] == 0

    def looked_at():
        status = json.loads(in_vgpud(node, "vgpu", "status", "--json").stdout)
        guest = next(tenant for tenant in status["tenants"] if tenant["name"] == "guest")
        return guest, status["findings"]

    guest, _ = looked_at()
    assert [member["pid"] for member in guest["members"]] == [process_of(program)]
    # Longer than a daemon looks away after its start.
    pause(5)
    guest, findings = looked_at()
    assert guest["devices"][0]["memory_used"] >= free
    # The simulated NVML names processes by their numbers in the container, of which 1 is another one here.
    assert not [finding for finding in findings if finding["pid"] == process_of(program)], findings
    in_vgpud(node, "vgpu", "tenant", "remove", "guest", "--kill")
    node.await_phase("nobody", "Failed")
    logs = node.kubectl("--namespace", SPACE, "logs", "daemonset/vgpu", "--container", "vgpud").stdout
    assert "denied" not in logs and "not permitted" not in logs, logs


def test_vgpud_in_its_pod_finds_a_process_that_uses_a_device_without_a_slice_and_names_its_pod_and_its_missing_limit(installed):
    node = installed
    # A scheduler's variable, in a pod whose library nobody mounted.
    limit = {"CUDA_DEVICE_MEMORY_LIMIT": "3000m"}
    script = "exec sleep 1000 9<>/talk/nvidia0"
    node.create("stray", script=script, env=limit, securityContext={"runAsUser": 65534})
    node.await_phase("stray", "Running")

    def is_found():
        status = json.loads(in_vgpud(node, "vgpu", "status", "--json").stdout)
        return any(finding["name"] == "sleep" and finding["contained"] for finding in status["findings"])

    eventually("vgpud finds it", is_found)
    uid = node.pod("stray")["metadata"]["uid"]
    asks = f"its container of pod {uid} ask for CUDA_DEVICE_MEMORY_LIMIT=3000m, which nothing keeps"
    said = in_vgpud(node, "vgpu", "doctor", check=False).stdout
    assert asks in said, said


def test_an_upgrade_replaces_the_agent_and_changes_no_limit_of_a_running_pod(installed, helm, tmp_path):
    node = installed
    program = node.create("old", "small", securityContext={"runAsUser": 65534}).begin()
    assert program.ask(f"alloc {GIB}")[0] == 0
    memory, before = program.memory(), agents(node)
    values = tmp_path / "other.toml"
    values.write_text(FILE.replace('memory_limit = "8GiB"', 'memory_limit = "9GiB"'))
    helm("upgrade", "vgpu", CHART, "--set-file", f"config={values}")
    eventually("another pod runs", lambda: len(now := agents(node)) == 1 and now != before)
    node.kubectl("--namespace", SPACE, "rollout", "status", "daemonset/vgpu", "--timeout=120s")
    assert program.memory() == memory
    assert program.ask(f"alloc {memory[1]}")[0] == OUT_OF_MEMORY
    known = lambda: str(process_of(program)) in in_vgpud(node, "vgpu", "ps", check=False).stdout  # noqa: E731
    eventually("the new vgpud knows the old pod's process", known)
    # Its charges too.
    small = json.loads(in_vgpud(node, "vgpu", "status", "--json").stdout)["tenants"][0]
    assert small["name"] == "small" and small["devices"][0]["memory_used"] >= GIB
    node.await_allocatable("big", 1)
    assert node.create("new", "big").begin().memory()[1] == 9 * GIB


def test_a_new_library_is_for_pods_that_start_and_running_ones_keep_theirs(installed, tmp_path):
    node = installed
    old = node.create("old", "small").begin()
    first = inode(LIBRARY_DIR / "current/libvgpu.so")
    assert library_of(old)[1] == first
    another = tmp_path / "libvgpu.so"
    # Another file with the same effect: a loader does not read behind the last section.
    another.write_bytes(LIBRARY.read_bytes() + b"\0")
    subprocess.run([AGENT, "install-library", "--from", another, "--to", LIBRARY_DIR], check=True, capture_output=True)
    second = inode(LIBRARY_DIR / "current/libvgpu.so")
    assert second != first
    new = node.create("new", "big").begin()
    assert library_of(new)[1] == second and new.memory()[1] == 8 * GIB
    assert library_of(old)[1] == first and old.memory()[1] == 4 * GIB
    # A program that the old container starts gets the version that its directory had.
    container = pathlib.Path("/proc", str(process_of(old)), "root")
    assert inode(container / "vgpu/libvgpu.so") == first


def test_a_removed_chart_offers_nothing_and_leaves_running_pods_their_limits(installed, helm):
    node = installed
    program = node.create("old", "small").begin()
    memory = program.memory()
    helm("uninstall", "vgpu", "--wait")
    eventually("the agent's pod is gone", lambda: not agents(node))
    node.await_allocatable("small", 0)
    assert program.memory() == memory
    assert program.ask(f"alloc {memory[1]}")[0] == OUT_OF_MEMORY
    for kind in ("daemonset", "configmap", "service", "networkpolicy"):
        left = node.kubectl("get", kind, "--namespace", SPACE, "-o", "name").stdout
        assert "vgpu" not in left, left
