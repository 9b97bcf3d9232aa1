"""README's story as written: numbered steps of commands, and their differences on a real GPU."""
import re


class Wrong(Exception):
    """README lacks something that the story needs; the message names it."""


def block(text, mark):
    """Lines of the fenced block after `<!-- story: MARK ... -->`."""
    found = re.search(r"<!-- story: " + re.escape(mark) + r"\b[^>]*-->\n```sh\n(.*?)```\n", text, re.S)
    if found is None:
        raise Wrong(f"there is no fenced block of sh behind <!-- story: {mark} -->")
    return found.group(1)


def steps(text):
    """Pairs of a step's purpose and its commands, by number. `# 1. Purpose` begins a step."""
    parts = re.split(r"^# (\d+)\. (.*)\n", block(text, "simulated"), flags=re.M)
    if parts[0].strip():
        raise Wrong(f"before the first numbered step stands {parts[0].strip()!r}")
    found = {int(number): (words, commands) for number, words, commands in zip(parts[1::3], parts[2::3], parts[3::3])}
    if list(found) != list(range(1, len(found) + 1)):
        raise Wrong(f"its steps are {list(found)}, and not 1, 2, 3, ...")
    return found


def same_on_a_real_gpu(text):
    """Checks that the commands for a real GPU equal those for the simulated one, except for the option that selects
    it."""
    simulated = [line for line in block(text, "simulated").splitlines() if " --sim " in line]
    wanted = [line.replace(" --sim ", " ").replace(" -- -d ", " -- -d --gpus all ") for line in simulated]
    there = [line for line in block(text, "real").splitlines() if line and not line.startswith("#")]
    if not wanted or there != wanted:
        raise Wrong(f"for a real GPU it has {there}; with --gpus all for --sim these would be {wanted}")
