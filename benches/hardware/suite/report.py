"""Output files: results.json with every claim and its evidence, summary.md for a person."""
import json
import os
import platform
import time


def write(suite, started, arguments, planned):
    results = suite.results
    counted = {word: sum(r["verdict"] == word for r in results) for word in ("PASS", "FAIL", "ERROR")}
    document = {
        "schema": "vgpu-hardware-results", "schema_version": 1, "about": suite.about,
        "date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "simulated": bool(suite.sim), "machine": platform.platform(), "python": platform.python_version(),
        "arguments": arguments, "seconds": round(time.time() - started, 1), "counts": counted, "planned": planned,
        "all_passed": planned > 0 and counted["PASS"] == planned, "checks": results,
    }
    with open(os.path.join(suite.out, "results.json"), "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1)
        out.write("\n")
    with open(os.path.join(suite.out, "summary.md"), "w", encoding="utf-8") as out:
        out.write(summary(document))
    return document


def readable(value, depth=0):
    """JSON with a line for each leaf. Lists stay on one line, so that two files can be compared by eye and by diff."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(key)}: {readable(part, depth + 1)}" for key, part in value.items())
    return "{\n" + inner + "\n" + " " * depth + "}"


def numbers_of(document):
    for check in document["checks"]:
        if check["name"] == "gpu-probe":
            return check["evidence"].get("numbers") or {}
    return {}


def summary(document):
    counts = document["counts"]
    undone = document["planned"] - len(document["checks"])
    numbers, about = numbers_of(document), document["about"]
    lines = [
        f"# Hardware run, {document['date_utc']}", "",
        f"Device: {about.get('gpu') or numbers.get('name') or 'unknown'}; "
        f"driver {about.get('driver') or numbers.get('driver') or 'unknown'}; vgpu {about.get('version') or 'unknown'}; "
        f"`{about.get('command') or 'run'}`"
        + (" (simulated; the checks with PyTorch are not part of this run)" if document["simulated"] else "") + ".",
        f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['ERROR']} could not be carried out, "
        f"in {document['seconds']} s." + (f" **{undone} of {document['planned']} were not reached.**" if undone else ""), "",
        "| check | verdict | s | promise |", "|---|---|---|---|",
    ]
    for check in document["checks"]:
        lines.append(f"| {check['name']} | {check['verdict']} | {check['seconds']} | {check['promise']} |")
    for check in document["checks"]:
        if check["verdict"] == "PASS":
            continue
        lines += ["", f"## {check['name']}: {check['verdict']}", ""]
        if check["error"]:
            lines += ["```", check["error"].strip()[-1500:], "```"]
        for claim in check["claims"]:
            if not claim["holds"]:
                lines.append(f"- not so: {claim['claim']}; seen: `{json.dumps(claim['seen'])[:500]}`")
    lines += ["", "## Costs", "", "| what | added ns | noise ns | budget ns | bare ns |", "|---|---|---|---|---|"]
    for check in document["checks"]:
        for name, value in check["evidence"].items():
            if isinstance(value, dict) and "added_ns" in value:
                lines.append(f"| {check['name']}: {name} | {value['added_ns']} | {value['noise_ns']} | "
                             f"{value['budget_ns']} | {value['bare_ns']} |")
    lines += ["", "## Shares of device time", "",
              "In percent of the device; *within* is the tolerance in points; NVML's mean is an audit, late and coarse.", "",
              "| what | asked | got | off by | within | window s | truth | NVML |", "|---|---|---|---|---|---|---|---|"]
    for check in document["checks"]:
        lines += [share(check["name"] + ("" if name == "share" else f": {name}"), value)
                  for name, value in check["evidence"].items() if isinstance(value, dict) and value.get("share") is not None]
    lines += ["", "## The device, by gpu-probe", "", "| number | value |", "|---|---|"]
    lines += [f"| {name} | {'not measured' if value is None else value} |" for name, value in numbers.items()]
    return "\n".join(lines) + "\n"


def share(name, value):
    """A row of the table of shares; values that were not requested or not seen stay empty."""
    window = value.get("window_ns") or value.get("wall_ns")
    cells = [name, value.get("asked_percent", ""), f"{100 * value['share']:.2f}", value.get("error_points", ""),
             value.get("tolerance_points", ""), f"{window / 1e9:.1f}" if window else "", value.get("truth", ""),
             (value.get("nvml") or {}).get("mean_percent", "")]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
