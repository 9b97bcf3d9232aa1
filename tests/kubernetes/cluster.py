#!/usr/bin/env python3
"""A Kubernetes cluster of one node on this machine, with a simulated GPU. Only the loopback device is used.

  cluster.py start [--profile PROFILE]   starts it, and prints variables for a shell: KUBECONFIG, PATH, ...
  cluster.py stop                        ends it, and removes everything that it left on the machine
  cluster.py import ARCHIVE              makes an image known to the node
  cluster.py restart PART                kills a part with SIGKILL, and starts it again: kubelet, containerd, ...

The programs come from tests/setup/kubernetes. It needs root, and refuses a machine that has a kubelet of its own. The
kubelet changes sysctls; `stop` restores them. A cluster whose owner was killed is removed too: by its keeper, which
waits for the owner's end, or else by the next start.

containerd gives every container the simulated driver, as NVIDIA's container runtime gives it the real one.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("VGPU_CACHE") or ROOT / ".cache")
PROGRAMS = CACHE / "kubernetes/bin"
TOOLS = CACHE / "kubernetes/tools"
CONTAINERD = CACHE / "containerd-1.7.24/usr/bin"
# The machine's own first, as in tests/setup/containerd.
RUNC = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin:{CACHE}/runc-1.1.5/usr/sbin")
BUILD = pathlib.Path(os.environ.get("VGPU_BUILD") or ROOT / "target/release")
DRIVER = pathlib.Path(os.environ.get("VGPU_SIM_LIB_DIR") or BUILD / "sim")
# One cluster a machine: the kubelet's directory of device plugins is a fixed path.
RECORD = pathlib.Path("/run/vgpu-test-kubernetes.json")
# A directory that always exists, so that the lock leaves no file.
LOCK = pathlib.Path("/run")
CGROUP = "vgpu-test-kubernetes"
BRIDGE = "vgpu-k8s0"
KUBELET_DIR = pathlib.Path("/var/lib/kubelet")
# The kubelet sets these.
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")
# Paths outside the cluster's own directory. Only those are removed that were absent before.
OUTSIDE = (
    "/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/run/containerd", "/run/vgpu", "/var/lib/vgpu",
    "/opt/vgpu", "/var/lib/cni", "/var/lib/dockershim", "/run/nri", "/var/run/nri", "/etc/nri", "/opt/nri",
)  # fmt: skip
# A bound for liveness on a busy host; nothing is measured by it.
PATIENCE_S = 180
NODE = "127.0.0.1"


def eventually(what, question, seconds=PATIENCE_S):
    """Waits until `question` answers with something true, and returns the answer."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def read_text(path):
    """The text of a file, or nothing."""
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def start_time(pid):
    """The start time of a process in clock ticks; with the pid it names a process for good."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def kill_processes(processes):
    """Kills processes, given as pairs of pid and start time, and waits for their end."""
    for pid, started in processes:
        if start_time(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for pid, started in processes:
        eventually(f"the end of process {pid}", lambda: start_time(pid) != started or reap(pid))


def reap(pid):
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return False


def free_ports(count):
    """Ports that are free now."""
    sockets = [socket.create_server((NODE, 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def cgroup_dirs():
    """The cluster's directories in all hierarchies, the deepest first."""
    tops = [pathlib.Path("/sys/fs/cgroup") / CGROUP]
    tops += [entry / CGROUP for entry in pathlib.Path("/sys/fs/cgroup").iterdir() if entry.is_dir()]
    found = [path for top in tops if top.is_dir() for path, _, _ in os.walk(top)]
    return sorted(set(found), key=lambda path: -path.count("/"))


def cgroup_processes():
    found = {int(pid) for path in cgroup_dirs() for pid in read_text(f"{path}/cgroup.procs").split()}
    return [(pid, start_time(pid)) for pid in found if start_time(pid)]


def shims(directory):
    """The processes of containerd that outlive it: one for each pod."""
    found = []
    for entry in os.listdir("/proc"):
        words = read_text(f"/proc/{entry}/cmdline") if entry.isdigit() else ""
        if "containerd-shim" in words and str(directory) in words and start_time(int(entry)):
            found.append((int(entry), start_time(int(entry))))
    return found


class Cluster:
    """The cluster of this machine. `directory` has all its files but those in OUTSIDE."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.kubeconfig = self.directory / "kubeconfig"
        self.record = {"directory": str(directory), "processes": {}, "sysctls": {}, "absent": []}
        self.keeper = None

    # Starting

    @classmethod
    def start(cls, profile="h200", with_keeper=True):
        """Starts a cluster and waits until its node is ready."""
        if os.geteuid() != 0:
            raise SystemExit("cluster.py: a node needs root")
        for program in (PROGRAMS / "kubelet", CONTAINERD / "containerd", CACHE / "kubernetes/cni/bridge"):
            if not program.exists():
                raise SystemExit(f"cluster.py: {program} is missing: run tests/setup/kubernetes")
        take_lock()
        if RECORD.exists():
            remove_leftovers(json.loads(RECORD.read_text()))
        if KUBELET_DIR.exists():
            raise SystemExit(f"cluster.py: {KUBELET_DIR} is there: this machine is a node of another cluster")
        directory = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / "vgpu-kubernetes"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o755)
        cluster = cls(directory)
        cluster.record["sysctls"] = {name: text for name in SYSCTLS if (text := read_text(f"/proc/sys/{name}"))}
        cluster.record["absent"] = [path for path in OUTSIDE if not os.path.lexists(path)]
        cluster.write_record()
        if with_keeper:
            cluster.start_keeper()
        try:
            cluster.write_files(profile)
            for part in ("etcd", "containerd", "apiserver", "controller-manager", "scheduler", "kubelet"):
                cluster.start_part(part)
            cluster.await_node()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def running(cls):
        """The cluster that another process started."""
        record = json.loads(RECORD.read_text())
        cluster = cls(record["directory"])
        cluster.record = record
        return cluster

    def write_record(self):
        fresh = RECORD.with_suffix(".new")
        with open(fresh, "w") as out:
            json.dump(self.record, out)
            out.flush()
            os.fsync(out.fileno())
        fresh.rename(RECORD)

    def start_keeper(self):
        """Starts the process that removes the cluster when this one has ended in any way."""
        words = [sys.executable, __file__, "keep"]
        self.keeper = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def write_files(self, profile):
        at = self.directory
        for part in ("etc", "log", "gpu", "lib", "etcd", "certificates", "opt", "cni", "cdi"):
            (at / part).mkdir()
        # Programs of every user load the driver and use the device.
        (at / "gpu").chmod(0o777)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(DRIVER / name, at / "lib" / name)
        # NVML's Rust wrapper opens the second name; NVIDIA's package installs the first.
        (at / "lib/libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
        # The first program that uses the machine makes it.
        sim = {**os.environ, "VGPU_SIM_DIR": str(at / "gpu"), "VGPU_SIM_PROFILE": profile}
        first = f"import ctypes; raise SystemExit(ctypes.CDLL({str(at / 'lib/libcuda.so.1')!r}).cuInit(0))"
        subprocess.run([sys.executable, "-c", first], env=sim, check=True)
        token = secrets.token_hex(16)
        (at / "etc/tokens").write_text(f"{token},admin,admin,system:masters\n")
        (at / "etc/tokens").chmod(0o600)
        names = ("etcd", "etcd-peer", "apiserver", "kubelet")
        self.record["ports"] = dict(zip(names, free_ports(len(names))))
        server = f"https://{NODE}:{self.record['ports']['apiserver']}"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }))  # fmt: skip
        self.kubeconfig.chmod(0o600)
        key = at / "etc/accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (at / "etc/kubelet.json").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": NODE, "port": self.record["ports"]["kubelet"], "readOnlyPort": 0, "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{CGROUP}", "failSwapOn": False, "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False, "nodeStatusUpdateFrequency": "1s", "syncFrequency": "2s",
            "clusterDNS": [NODE], "clusterDomain": "cluster.local", "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi"}, "volumePluginDir": str(at / "volume-plugins"),
        }))  # fmt: skip
        (at / "etc/cni").mkdir()
        (at / "etc/cni/10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "test",
            "plugins": [{
                "type": "bridge", "bridge": BRIDGE, "isGateway": False, "ipMasq": False,
                "ipam": {"type": "host-local", "subnet": "10.213.0.0/24", "dataDir": str(at / "cni")},
            }],
        }))  # fmt: skip
        self.write_containerd_files()
        # The kubelet's own directory of control groups must be there.
        for entry in pathlib.Path("/sys/fs/cgroup").iterdir():
            if entry.is_dir() and (entry / "cgroup.procs").exists():
                (entry / CGROUP).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            at_cpuset = pathlib.Path("/sys/fs/cgroup/cpuset")
            if (at_cpuset / name).exists():
                (at_cpuset / CGROUP / name).write_text((at_cpuset / name).read_text())

    def write_containerd_files(self):
        at = self.directory
        spec = json.loads(subprocess.run([CONTAINERD / "ctr", "oci", "spec"], check=True, capture_output=True).stdout)
        spec["process"].setdefault("env", []).extend([f"LD_LIBRARY_PATH={at}/lib", f"VGPU_SIM_DIR={at}/gpu"])
        for name, kind in (("lib", "ro"), ("gpu", "rw")):
            path = str(at / name)
            spec["mounts"].append({"destination": path, "source": path, "type": "bind", "options": ["rbind", kind]})
        (at / "etc/base.json").write_text(json.dumps(spec))
        (at / "etc/containerd.toml").write_text(f"""version = 2
root = "{at}/containerd/root"
state = "{at}/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.nri.v1.nri"]
[grpc]
address = "{self.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{at}/opt"
[plugins."io.containerd.grpc.v1.cri"]
# Without CAP_SYS_RESOURCE nobody may lower this score.
restrict_oom_score_adj = true
sandbox_image = "localhost/pause:1"
stream_server_address = "{NODE}"
netns_mounts_under_state_dir = true
enable_cdi = true
cdi_spec_dirs = ["{at}/cdi"]
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CACHE}/kubernetes/cni"
conf_dir = "{at}/etc/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{at}/etc/base.json"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{RUNC}"
Root = "{at}/runc"
""")

    @property
    def containerd_socket(self):
        return f"{self.directory}/containerd.sock"

    def command(self, part):
        """The words that start a part, and the variables that it needs."""
        at, ports = self.directory, self.record.get("ports", {})
        key = at / "etc/accounts.key"
        client = [f"--kubeconfig={self.kubeconfig}", f"--bind-address={NODE}", "--port=0", "--secure-port=0", "--leader-elect=false"]
        if part == "etcd":
            mine, peers = f"http://{NODE}:{ports['etcd']}", f"http://{NODE}:{ports['etcd-peer']}"
            return [
                PROGRAMS / "etcd", f"--data-dir={at}/etcd", f"--listen-client-urls={mine}", f"--advertise-client-urls={mine}",
                f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
            ]  # fmt: skip
        if part == "containerd":
            return [CONTAINERD / "containerd", "--config", at / "etc/containerd.toml"]
        if part == "apiserver":
            return [
                PROGRAMS / "kube-apiserver", f"--etcd-servers=http://{NODE}:{ports['etcd']}", f"--bind-address={NODE}",
                f"--secure-port={ports['apiserver']}", f"--advertise-address={NODE}", "--insecure-port=0",
                f"--cert-dir={at}/certificates", "--service-cluster-ip-range=10.214.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}", f"--token-auth-file={at}/etc/tokens",
                "--authorization-mode=RBAC", "--endpoint-reconciler-type=none", "--allow-privileged",
                "--storage-media-type=application/json",
            ]  # fmt: skip
        if part == "controller-manager":
            return [PROGRAMS / "kube-controller-manager", *client, f"--service-account-private-key-file={key}", "--controllers=*,-nodeipam,-cloud-node-lifecycle,-service,-route"]
        if part == "scheduler":
            return [PROGRAMS / "kube-scheduler", *client]
        if part == "kubelet":
            return [
                PROGRAMS / "kubelet", f"--config={at}/etc/kubelet.json", f"--kubeconfig={self.kubeconfig}",
                f"--hostname-override={NODE}", "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{self.containerd_socket}", f"--root-dir={KUBELET_DIR}",
                f"--cert-dir={at}/certificates", "--runtime-cgroups=/", "--kubelet-cgroups=/",
            ]  # fmt: skip
        raise SystemExit(f"cluster.py: {part} is no part of a cluster")

    def start_part(self, part):
        log = open(self.directory / "log" / part, "ab")
        environment = {
            "PATH": f"{CONTAINERD}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(self.directory),
            # The kubelet's cloud client asks 169.254.169.254 otherwise.
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        started = subprocess.Popen(
            [str(word) for word in self.command(part)], env=environment, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, cwd=self.directory,
        )  # fmt: skip
        self.record["processes"][part] = [started.pid, start_time(started.pid)]
        self.write_record()
        if part == "containerd":
            eventually("containerd answers", lambda: self.ctr("version", check=False).returncode == 0)
            if not (self.directory / "pause").exists():
                self.import_image(CACHE / "kubernetes/pause.tar")
                (self.directory / "pause").touch()
        if part == "apiserver":
            eventually("the API server is ready", lambda: self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0)
            eventually("there is a namespace", lambda: self.kubectl("get", "namespace", "default", check=False).returncode == 0)

    def await_node(self):
        def is_ready():
            node = self.kubectl("get", "node", NODE, "-o", "json", check=False).stdout
            if not node:
                return False
            node = json.loads(node)
            ready = any(it["type"] == "Ready" and it["status"] == "True" for it in node["status"]["conditions"])
            return ready and not node["spec"].get("taints")

        eventually("the node is ready", is_ready)
        accounts = lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0  # noqa: E731
        eventually("pods have an account", accounts)

    # Using

    def ctr(self, *words, check=True):
        words = [CONTAINERD / "ctr", "-a", self.containerd_socket, "-n", "k8s.io", *words]
        return subprocess.run(words, check=check, capture_output=True, text=True)

    def import_image(self, archive):
        self.ctr("images", "import", archive)

    def environment(self):
        """Variables for a shell that uses the cluster."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "VGPU_SIM_DIR": str(self.directory / "gpu"),
            # Nothing is kept in the user's home.
            "KUBECACHEDIR": str(self.directory / "kubectl"),
            **{f"HELM_{kind}_HOME": str(self.directory / "helm") for kind in ("CACHE", "CONFIG", "DATA")},
            "PATH": f"{TOOLS}:{PROGRAMS}:{BUILD}:{os.environ['PATH']}",
        }

    def kubectl(self, *words, check=True, text=None):
        done = subprocess.run(
            ["kubectl", *words], env={**os.environ, **self.environment(), "HOME": str(self.directory)}, input=text, capture_output=True, text=True,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done

    def kill_part(self, part):
        kill_processes([tuple(self.record["processes"].pop(part))])

    def restart_part(self, part):
        self.kill_part(part)
        self.start_part(part)

    # Ending

    def stop(self):
        """Ends the cluster and removes all traces of it. May be repeated."""
        remove_leftovers(self.record)
        if self.keeper:
            self.keeper.stdin.close()
            self.keeper.wait()
            self.keeper = None


def take_lock():
    """Takes the machine's lock for the life of this process: one cluster a machine."""
    global held
    held = os.open(LOCK, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit("cluster.py: another process starts a cluster on this machine, or has one") from None


def remove_leftovers(record):
    """Ends a cluster's processes, and removes everything that it left on the machine."""
    directory = pathlib.Path(record["directory"])
    # The kubelet first, so that it starts no container again.
    for part in sorted(record["processes"], key=lambda part: part != "kubelet"):
        kill_processes([tuple(record["processes"][part])])
    addresses = [read_text(path) for path in directory.glob("containerd/state/*/k8s.io/*/address")]
    while left := shims(directory) + cgroup_processes():
        kill_processes(left)
    for address in addresses:
        with contextlib.suppress(OSError):
            os.unlink(address.strip().removeprefix("unix://"))
    below = [str(directory), *record["absent"]]
    for line in reversed(read_text("/proc/self/mountinfo").splitlines()):
        path = line.split()[4].encode().decode("unicode_escape")
        if any(path == top or path.startswith(f"{top}/") for top in below):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
    for path in cgroup_dirs():
        eventually(f"{path} is removed", lambda: remove_directory(path))
    subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)
    for name, text in record["sysctls"].items():
        if read_text(f"/proc/sys/{name}") != text:
            pathlib.Path(f"/proc/sys/{name}").write_text(text)
    for path in [str(directory), *record["absent"]]:
        if os.path.lexists(path):
            shutil.rmtree(path, ignore_errors=True)
    RECORD.unlink(missing_ok=True)


def remove_directory(path):
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not os.path.isdir(path)


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    verbs = options.add_subparsers(dest="verb", required=True)
    verbs.add_parser("start").add_argument("--profile", default="h200")
    verbs.add_parser("stop")
    verbs.add_parser("import").add_argument("archive")
    verbs.add_parser("restart").add_argument("part")
    verbs.add_parser("keep")
    given = options.parse_args()
    if given.verb == "start":
        cluster = Cluster.start(given.profile, with_keeper=False)
        for name, value in cluster.environment().items():
            print(f"export {name}={shlex.quote(value)}")
    elif given.verb == "stop":
        if RECORD.exists():
            remove_leftovers(json.loads(RECORD.read_text()))
    elif given.verb == "import":
        Cluster.running().import_image(given.archive)
    elif given.verb == "restart":
        Cluster.running().restart_part(given.part)
    else:
        # The owner's end closes this pipe, also when it was killed.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdin.buffer.read()
        if RECORD.exists():
            remove_leftovers(json.loads(RECORD.read_text()))


if __name__ == "__main__":
    main()
