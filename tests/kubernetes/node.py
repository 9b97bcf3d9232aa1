"""What a test does on the cluster: the node's agent as plain processes, pods, and programs in pods that obey commands."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import cluster as machine
from cluster import BUILD, ROOT, eventually, read_text, start_time

LIBRARY = pathlib.Path(os.environ.get("VGPU_LIB_DIR") or BUILD) / "libvgpu.so"
AGENT = pathlib.Path(os.environ.get("VGPU_K8S") or BUILD.parent / "kubernetes/release/vgpu-k8s")
IMAGE = "localhost/vgpu-test:1"
GIB = 1 << 30
OUT_OF_MEMORY = 2
DEFAULTS = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
FILE = """[[device]]
id = 0
[[tenant]]
name = "small"
memory_limit = "4GiB"
sm_request = 30
labels = { kubernetes = "small" }
[[tenant]]
name = "big"
memory_limit = "8GiB"
sm_request = 70
labels = { kubernetes = "big" }
"""


def compile_member(directory):
    """The program that obeys commands; the same that the other tests use."""
    program = directory / "member"
    subprocess.run(["cc", "-O1", "-o", program, ROOT / "tests/programs/member.c", "-ldl"], check=True)
    return program


def make_image(directory):
    """An image with a shell and glibc. The pods of the tests bring their program in a volume."""
    root, archive = directory / "root", directory / "image.tar"
    for name in ("sh", "cat", "sleep", "cp", "env"):
        program = os.path.realpath(shutil.which(name))
        copies = [(program, f"/bin/{name}")]
        found = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
        copies += [(word, word) for word in found if word.startswith("/")]
        for source, to in copies:
            at = root / to.lstrip("/")
            at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(source), at)
    for name in ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"):
        for at in pathlib.Path("/lib").glob(f"*-linux-gnu/{name}"):
            shutil.copy(os.path.realpath(at), root / at.relative_to("/"))
    for name in ("etc", "proc", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    subprocess.run([ROOT / "packaging/image/archive", archive, IMAGE, root, "/bin/sh"], check=True)
    return archive


class Agent:
    """vgpud and vgpu-k8s as processes of the host."""

    def __init__(self, cluster, text=FILE):
        self.cluster = cluster
        self.home = cluster.directory / "node"
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        self.processes = {}
        (self.home / "vgpud.toml").write_text(text)
        self.admin = self.home / "run/admin.sock"
        subprocess.run([AGENT, "install-library", "--from", LIBRARY, "--to", self.home / "library"], check=True, capture_output=True)
        self.start("vgpud")
        self.start("agent")

    def command(self, part):
        if part == "vgpud":
            return [
                BUILD / "vgpud", "--config", self.home / "vgpud.toml", "--runtime-dir", self.home / "run", "--state-dir",
                self.home / "state",
            ]  # fmt: skip
        return [
            AGENT, "device-plugin", "--socket", self.admin, "--library", self.home / "library/current/libvgpu.so",
            "--state-dir", self.home / "k8s",
        ]  # fmt: skip

    def start(self, part):
        log = open(self.home / f"{part}.log", "ab")
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.cluster.directory / "lib"), "VGPU_SIM_DIR": str(self.cluster.directory / "gpu")}
        self.processes[part] = subprocess.Popen(
            [str(word) for word in self.command(part)], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        # For the case that the tests are killed.
        process = self.processes[part]
        self.cluster.record["processes"][part] = [process.pid, start_time(process.pid)]
        self.cluster.write_record()

    def kill(self, part, how=signal.SIGKILL):
        process = self.processes.pop(part)
        process.send_signal(how)
        process.wait()
        self.cluster.record["processes"].pop(part, None)

    def restart(self, part):
        self.kill(part)
        self.start(part)

    def stop(self):
        for part in list(self.processes):
            self.kill(part, signal.SIGTERM)

    def status(self):
        words = [BUILD / "vgpu", "status", "--json", "--socket", self.admin]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    def tenant(self, name):
        return next(tenant for tenant in self.status()["tenants"] if tenant["name"] == name)

    def log(self, part="agent"):
        return read_text(self.home / f"{part}.log")


class Node:
    """The cluster's node with an agent, and its pods."""

    def __init__(self, cluster, member, agent=None):
        self.cluster, self.member, self.agent = cluster, member, agent
        self.talk = cluster.directory / "talk"
        self.talk.mkdir(exist_ok=True)
        self.pods = set()

    def kubectl(self, *words, **more):
        return self.cluster.kubectl(*words, **more)

    def allocatable(self, resource):
        node = json.loads(self.kubectl("get", "node", machine.NODE, "-o", "json").stdout)
        return int(node["status"]["allocatable"].get(f"vgpu.internal/{resource}", "0"))

    def await_allocatable(self, resource, count):
        eventually(f"{count} of {resource} can be allocated", lambda: self.allocatable(resource) == count)

    def create(self, name, resource=None, script=None, env=None, volumes=None, count=1, **spec):
        """Makes a pod whose program obeys commands, or runs the script."""
        at = self.talk / name
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir()
        shutil.copy(self.member, at / f"member-{name}")
        os.mkfifo(at / "in")
        # Programs of every user talk here.
        at.chmod(0o777)
        (at / "in").chmod(0o666)
        # Opened for both, so that the program's input does not end with the first writer.
        script = script or f"exec /talk/member-{name} dlsym 0<>/talk/in >>/talk/out 2>>/talk/err"
        container = {
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "talk", "mountPath": "/talk"}],
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        }  # fmt: skip
        if resource:
            container["resources"] = {"limits": {f"vgpu.internal/{resource}": count}}
        mounts = [{"name": "talk", "hostPath": {"path": str(at)}}]
        for path, to in (volumes or {}).items():
            mounts.append({"name": f"v{len(mounts)}", "hostPath": {"path": str(path)}})
            container["volumeMounts"].append({"name": f"v{len(mounts) - 1}", "mountPath": to})
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {**DEFAULTS, "containers": [container], "volumes": mounts, **spec},
        }  # fmt: skip
        self.pods.add(name)
        self.kubectl("apply", "-f", "-", text=json.dumps(pod))
        return Program(self, name)

    def create_until_admitted(self, name, resource):
        """Makes a pod as a controller does: a kubelet that has just started fails pods until the plugin is known again."""
        for _ in range(60):
            program = self.create(name, resource)
            eventually(f"{name} is started or refused", lambda: self.phase(name) in ("Running", "Failed"))
            if self.phase(name) == "Running":
                return program
            assert program.lines() == [], "it ran without its slice"
            self.delete(name)
        raise TimeoutError(f"{name} is refused again and again")

    def pod(self, name):
        done = self.kubectl("get", "pod", name, "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def phase(self, name):
        pod = self.pod(name)
        return pod["status"].get("phase") if pod else "gone"

    def await_phase(self, name, phase):
        def has_phase():
            now = self.phase(name)
            if now in ("Succeeded", "Failed") and now != phase:
                raise TimeoutError(f"pod {name} is {now}")
            return now == phase

        try:
            eventually(f"pod {name} is {phase}", has_phase)
        except TimeoutError as why:
            raise TimeoutError(f"{why}: {self.kubectl('describe', 'pod', name, check=False).stdout}") from None

    def events(self, name):
        found = self.kubectl("get", "events", "-o", "json", f"--field-selector=involvedObject.name={name}").stdout
        return [event.get("message", "") for event in json.loads(found)["items"]]

    def delete(self, name):
        self.kubectl("delete", "pod", name, "--ignore-not-found", "--wait=true")
        self.pods.discard(name)

    def truth(self, name):
        """The simulated device's own record of a pod's living program; None: it is not on the device."""
        words = [BUILD / "vgpu", "sim", "stat", "--json"]
        environment = {**os.environ, "VGPU_SIM_DIR": str(self.cluster.directory / "gpu")}
        told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        processes = json.loads(told.stdout)["devices"][0]["processes"]
        return next((it for it in processes if it["name"].endswith(f"member-{name}")), None)

    def clear(self):
        if self.pods:
            self.kubectl("delete", "pod", *self.pods, "--ignore-not-found", "--grace-period=1", "--wait=true")
        self.pods.clear()


class Program:
    """The program of a pod."""

    def __init__(self, node, name):
        self.node, self.name, self.at = node, name, node.talk / name
        self.read = 0

    def lines(self):
        return [line for line in read_text(self.at / "out").splitlines(keepends=True) if line.endswith("\n")]

    def errors(self):
        return read_text(self.at / "err")

    def answer(self):
        """The next answer: numbers, the driver's code first."""
        def next_line():
            lines = self.lines()
            return lines[self.read] if len(lines) > self.read else None

        try:
            line = eventually(f"{self.name} answers", next_line)
        except TimeoutError as why:
            described = self.node.kubectl("describe", "pod", self.name, check=False).stdout
            raise TimeoutError(f"{why}: {self.errors()} {described}") from None
        self.read += 1
        return [int(word) for word in line.split() if word.isdigit()]

    def tell(self, command):
        with open(self.at / "in", "w") as pipe:
            pipe.write(command + "\n")

    def ask(self, command):
        self.tell(command)
        return self.answer()

    def begin(self):
        """Waits for its start, and makes a context with a kernel."""
        self.node.await_phase(self.name, "Running")
        self.answer()
        for command in ("init 0", "retain 0", "launch 1000"):
            answer = self.ask(command)
            assert answer[0] == 0, f"{command}: {answer} {self.errors()}"
        return self

    def memory(self):
        """What it sees: free and total bytes."""
        code, free, total = self.ask("info")
        assert code == 0
        return free, total


def temporary_directory():
    return pathlib.Path(tempfile.mkdtemp(prefix="vgpu-kubernetes-"))


def pause(seconds):
    time.sleep(seconds)
