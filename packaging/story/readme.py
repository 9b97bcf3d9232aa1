"""README's story as it stands there: numbered steps of commands, and how they differ on a real GPU."""
import re


class Wrong(Exception):
    """README is not what this needs, in words."""


def block(text, mark):
    """The lines of the fenced block behind `<!-- story: MARK ... -->`."""
    found = re.search(r"<!-- story: " + re.escape(mark) + r"\b[^>]*-->\n```sh\n(.*?)```\n", text, re.S)
    if found is None:
        raise Wrong(f"there is no fenced block of sh behind <!-- story: {mark} -->")
    return found.group(1)


def steps(text):
    """Pairs of what a step is for and its commands, by its number; `# 1. What it is for` begins one."""
    parts = re.split(r"^# (\d+)\. (.*)\n", block(text, "simulated"), flags=re.M)
    if parts[0].strip():
        raise Wrong(f"before the first numbered step stands {parts[0].strip()!r}")
    found = {int(number): (words, commands) for number, words, commands in zip(parts[1::3], parts[2::3], parts[3::3])}
    if list(found) != list(range(1, len(found) + 1)):
        raise Wrong(f"its steps are {list(found)}, and not 1, 2, 3, ...")
    return found


def same_on_a_real_gpu(text):
    """Says whether the commands for a real GPU are those for the simulated one but for the option that brings it."""
    simulated = [line for line in block(text, "simulated").splitlines() if " --sim " in line]
    wanted = [line.replace(" --sim ", " ").replace(" -- -d ", " -- -d --gpus all ") for line in simulated]
    there = [line for line in block(text, "real").splitlines() if line and not line.startswith("#")]
    if not wanted or there != wanted:
        raise Wrong(f"for a real GPU it has {there}; with --gpus all for --sim these would be {wanted}")
