"""Follows the five minutes of docs/ray.md, line by line."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from conftest import ROOT, Node, free_port

PAGE = ROOT / "docs/ray.md"
# make/test-ray builds the wheel, and installs it and Ray, before this test.
DONE_BEFORE = ("make ray-wheel", "python3 -m venv ray-env", "pip install target/ray/")
# `ray stop` would end every Ray of the machine; the test ends its own processes, by their IDs.
SHELL = """
ray() {{ [ "$1" = stop ] || command ray "$@" --port={port} --temp-dir={home}/ray --num-cpus=4; }}
pidof() {{ [ "$1" = vgpud ] && cat {home}/vgpud.pid; }}
vgpud() {{ command vgpud "$@" & echo $! > {home}/vgpud.pid; wait; }}
"""
# Stands for NVIDIA's nvidia-smi where tests/setup did not bring it.
SMI = """#!/usr/bin/env python3
import ctypes
ml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
assert ml.nvmlInit_v2() == 0 and ml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert ml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(memory[0] >> 20, "MiB")
"""


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def put_nvidia_smi(path):
    if os.environ.get("VGPU_NVIDIA_SMI"):
        path.symlink_to(os.environ["VGPU_NVIDIA_SMI"])
    else:
        path.write_text(SMI)
        path.chmod(0o755)


def test_the_five_minutes_of_the_page_work_as_written():
    text = PAGE.read_text(encoding="utf-8").split("## In five minutes")[1].split("\n## ")[0]
    home = pathlib.Path(tempfile.mkdtemp(prefix="vp", dir="/tmp"))
    node = Node(home, "page", 1)
    try:
        (home / "bin").mkdir()
        put_nvidia_smi(home / "bin/nvidia-smi")
        (home / "quarters.py").write_text(blocks(text, "python")[0])
        lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
        followed = [line for line in lines if not line.startswith(DONE_BEFORE)]
        assert len(lines) - len(followed) == len(DONE_BEFORE) and len(followed) > 10
        port = free_port()
        (home / "page.sh").write_text(SHELL.format(home=home, port=port) + "\n".join(followed))
        environment = {
            **node.environment(RAY_ADDRESS=f"127.0.0.1:{port}"),
            "PATH": f"{home}/bin:{node.environment()['PATH']}",
        }
        for name in ("RAY_RUNTIME_ENV_PLUGINS", "VGPU_LIBRARY", "VGPU_STATE_DIR"):
            del environment[name]
        with open(home / "out", "w+", encoding="utf-8") as out:
            done = subprocess.run(
                ["bash", "-e", "page.sh"], cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                timeout=200,
            )  # fmt: skip
            out.seek(0)
            said = out.read()
        assert done.returncode == 0, said
        quarters = "['35791 MiB', '35791 MiB', '35791 MiB', '35791 MiB']"
        assert quarters in text and quarters in said, said
        assert len(re.findall(r"^ray-(\d+) +command +with process \1 ", said, re.MULTILINE)) == 4, said
    finally:
        node.end_processes()
        shutil.rmtree(home, ignore_errors=True)
