"""Follows docs/kubernetes.md, line by line: every block behind `<!-- cluster -->` is run, in one shell, as written."""

import os
import re
import subprocess
import sys

import cluster as machine
from cluster import BUILD, PROGRAMS, ROOT

import pytest

PAGE = ROOT / "docs/kubernetes.md"
# make did it before this test.
DONE_BEFORE = ("make image",)
LONGEST_S = 600


def steps(text):
    """Commands of the page with their expected output."""
    found = []
    for block in re.findall(r"^<!-- cluster -->\n```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith("> ") and not found[-1][1]:
                found[-1][0].append(line[2:])
            else:
                found[-1][1].append(line)
    return [("\n".join(command), shown) for command, shown in found]


def matches(shown, said):
    """True if the output is the one that the page shows: `...` stands for anything, alone on a line for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else r".*?".join(map(re.escape, line.split("..."))) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in said)) is not None


def test_the_comparison_of_outputs_can_fail():
    assert matches(["a", "...", "d ... f"], ["a", "b", "c", "d e f"]) and matches([], [])
    assert not matches(["a"], ["b"]) and not matches([], ["a"]) and not matches(["a", "..."], ["b", "c"])


def test_the_five_minutes_of_the_page_work_as_written(tmp_path):
    if not (PROGRAMS / "kubelet").exists():
        pytest.skip("run tests/setup/kubernetes")
    wanted = steps(PAGE.read_text())
    assert len(wanted) > 12
    mark = "-- the end of a command: "
    lines = ["set -u"]
    for command, _ in wanted:
        lines.append("true" if command in DONE_BEFORE else command)
        lines.append(f'echo; echo "{mark}$?"')
    environment = {**os.environ, "VGPU_BUILD": str(BUILD)}
    try:
        done = subprocess.run(
            ["bash"], input="\n".join(lines) + "\n", cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
            timeout=LONGEST_S,
        )  # fmt: skip
    finally:
        subprocess.run([sys.executable, machine.__file__, "stop"], check=True)
    parts = re.split(rf"\n{re.escape(mark)}(\d+)\n", done.stdout)
    assert len(parts) == 2 * len(wanted) + 1, done.stdout
    for (command, shown), said, code in zip(wanted, parts[0::2], parts[1::2]):
        assert code == "0", f"{command}\n{said}"
        if command not in DONE_BEFORE:
            assert matches(shown, said.splitlines()), f"{command}\nthe page shows {shown}\nit says {said}"
