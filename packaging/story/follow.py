#!/usr/bin/env python3
"""Follows README's story: its commands, in a shell on a terminal, and after each step a check of the promised result.

usage: follow.py README      in a directory with target/vgpu_*.deb, next to an engine that has the image:
packaging/story/run

Prints `ok   STEP` for each step. For the first step that fails it prints `BAD  STEP` with the expectation and the
terminal's content, and exits with code 1.
"""
import csv
import decimal
import json
import os
import subprocess
import sys

import readme
import shell

# Two tenants launch kernels of 1 ms all the time. Length in ns of a measurement of their shares.
LOOK = 4_000_000_000
# Percent that a share may be off. Other work on a busy host takes from both tenants, at times more from one. The value
# is still far below the distance to one half and to the share before.
BOUND = 15


def ask(*command):
    """Output of a command."""
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    shell.expect(out.returncode == 0, f"{' '.join(command)} to succeed, not code {out.returncode}: {out.stderr}")
    return out.stdout


def works(*command):
    """True if a command succeeds."""
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def busy():
    """Time of the simulated device's reading, and the device time of each program by the device's record, the oldest
    first."""
    truth = json.loads(ask("vgpu", "sim", "stat", "--json"))
    programs = [one for one in truth["devices"][0]["processes"] if one["busy_ns"]]
    return truth["at_ns"], [one["busy_ns"] for one in sorted(programs, key=lambda one: one["serial"])]


def share():
    """The first container's percent of the device time of both, measured for a while from now on."""
    shell.until("two programs use the device", lambda: len(busy()[1]) == 2)
    begin, before = busy()
    shell.until("time passes", lambda: busy()[0] - begin > LOOK)
    _, after = busy()
    shell.expect(len(after) == 2, f"both programs to run on, not {len(after)}")
    first, second = (late - early for late, early in zip(after, before))
    shell.expect(first + second > 0, "the device to work")
    return 100 * first / (first + second)


def totals(said):
    """Device memory in MiB as NVML reported it at each query."""
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("total: ")]


def installed(said, _):
    """The package is installed and started nothing."""
    shell.expect(works("dpkg", "--verify", "vgpu"), "what dpkg says of the package to be so")
    shell.expect(ask("vgpu", "--version").startswith("vgpu "), "vgpu to say its version")
    shell.expect(not works("vgpu", "status"), "no daemon to run yet")


def served(_, __):
    """The daemon has both tenants."""
    shell.until("the daemon answers", lambda: works("vgpu", "status"))
    names = [tenant["name"] for tenant in json.loads(ask("vgpu", "status", "--json"))["tenants"]]
    shell.expect(sorted(names) == ["chat", "train"], f"the tenants chat and train, not {names}")


def both_run(said, kept):
    """Each container sees a device with its own size, and gets its part of the time."""
    shell.expect(totals(said) == [4096, 8192], f"devices of 4096 and 8192 MiB, not {totals(said)}")
    kept["share"] = share()
    shell.expect(abs(kept["share"] - 30) < BOUND, f"30 % of what both get for chat, not {kept['share']:.1f} %")
    return f"4096 and 8192 MiB; chat has {kept['share']:.1f} % of what both get"


def changed(said, kept):
    """The container sees the change, and the device time shifts."""
    shell.expect(totals(said) == [6144], f"a device of 6144 MiB in chat, not {totals(said)}")
    now = share()
    shell.expect(abs(now - 50) < BOUND and now > kept["share"] + 5, f"half of what both get for chat, not {now:.1f} %")
    return f"6144 MiB; chat has {now:.1f} % of what both get"


def billed(said, _):
    """The bill contains both tenants and the unused time, and adds up."""
    with open("bill.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    used = {line["tenant"]: int(line["gpu_ns"]) for line in lines}
    shell.expect(used.get("chat", 0) > 0 and used.get("train", 0) > 0, f"device time of chat and train in {used}")
    percent = sum(decimal.Decimal(line["percent"]) for line in lines)
    shell.expect(percent == 100, f"parts that sum to 100, not {percent}")
    cost = sum(decimal.Decimal(line["cost"]) for line in lines)
    parts = sum(decimal.Decimal(line["gpu_cost"]) + decimal.Decimal(line["memory_cost"]) for line in lines)
    shell.expect(cost > 0 and cost == parts, f"a cost, and of its parts: {cost} of {parts}")
    shell.expect("chat" in said and "train" in said, "both tenants in what was shown")
    with open("bill.html", encoding="utf-8") as file:
        page = file.read()
    shell.expect("chat" in page and "train" in page and "100.0" in page, "both tenants and 100.0 % on the page")
    shell.expect("src=\"http" not in page and "href=\"http" not in page, "a page that needs nothing from elsewhere")
    return f"{len(lines)} lines, {percent} %, {cost} EUR"


def validated(_, __):
    """Three complete rounds of both programs, in three forms."""
    shell.expect(not ask("docker", "ps", "--quiet"), "no container to run any more")
    with open("validation/report.json", encoding="utf-8") as file:
        report = json.load(file)
    rounds = (report["complete"], report["rounds"], [one["name"] for one in report["programs"]])
    shell.expect(rounds == (True, 3, ["chat", "train"]), f"three whole rounds of chat and train, not {rounds}")
    for name in ("report.html", "report.md"):
        with open(f"validation/{name}", encoding="utf-8") as file:
            text = file.read()
        shell.expect("chat" in text and "INCOMPLETE" not in text, f"a whole report in {name}")
    changes = [one["result"]["throughput_change_percent"] for one in report["programs"]]
    return "throughput together: " + ", ".join(f"{change:+.1f} %" for change in changes)


def removed(_, __):
    """Nothing of the package is left; the state outside is checked by the caller."""
    shell.expect(not works("dpkg", "--status", "vgpu"), "dpkg to know no such package")
    shell.expect(not ask("docker", "ps", "--all", "--quiet"), "no container to be left")
    here = sorted(os.listdir("."))
    shell.expect(here == ["given", "target"], f"this directory to be as it was, not {here}")


def top(terminal, kept):
    """Both tenants are shown with their shares, until `q`."""
    def seen():
        rows = [line.split() for line in terminal.screen.lines() if line.startswith(("chat ", "train "))]
        # NAME CLASS WEIGHT FLOOR CEIL WANT GOT ...
        got = {row[0]: float(row[6].rstrip("%")) for row in rows if len(row) > 7 and row[6].endswith("%")}
        kept["got"] = got
        return set(got) == {"chat", "train"} and got["chat"] > 10 and got["train"] > got["chat"]
    terminal.until("rows of chat and train, each with its part of the device's time, the latter's the greater", seen)
    terminal.press("q")
    return "seen: " + ", ".join(f"{name} {got} %" for name, got in sorted(kept["got"].items()))


CHECKS = {1: installed, 2: served, 3: both_run, 5: changed, 6: billed, 7: validated, 8: removed}
MEANWHILE = {4: top}


def main(path):
    """Follows the story; returns the exit code."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    readme.same_on_a_real_gpu(text)
    print("ok   for a real GPU the same, but for the option", flush=True)
    found = readme.steps(text)
    if sorted(CHECKS | MEANWHILE) != sorted(found):
        raise readme.Wrong(f"it has the steps {list(found)}, and checks there are for {sorted(CHECKS | MEANWHILE)}")
    terminal, kept = shell.Shell(40, 130), {}
    for number, (words, commands) in found.items():
        try:
            told = terminal.run(commands, MEANWHILE.get(number), kept)
            if number in CHECKS:
                told = CHECKS[number](terminal.said(), kept)
        except (shell.NotSo, subprocess.TimeoutExpired, OSError, KeyError, ValueError, TypeError) as why:
            print(f"BAD  {number}. {words}\n     {type(why).__name__}: {why}\n{terminal.last()}", flush=True)
            for name in ("chat", "train"):
                subprocess.run(["docker", "logs", "--tail", "20", name], timeout=60, check=False)
            return 1
        print(f"ok   {number}. {words}" + (f" ({told})" if told else ""), flush=True)
    terminal.end()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except readme.Wrong as why:
        print(f"BAD  README: {why}")
        sys.exit(1)
