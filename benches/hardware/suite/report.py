"""What is written: results.json with every claim and its evidence, summary.md for a person."""
import json
import os
import platform
import time


def write(suite, started, arguments, planned):
    results = suite.results
    counted = {word: sum(r["verdict"] == word for r in results) for word in ("PASS", "FAIL", "ERROR")}
    document = {
        "schema": "vgpu-hardware-results", "schema_version": 1,
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


def numbers_of(document):
    for check in document["checks"]:
        if check["name"] == "gpu-probe":
            return check["evidence"].get("numbers") or {}
    return {}


def summary(document):
    counts = document["counts"]
    undone = document["planned"] - len(document["checks"])
    numbers = numbers_of(document)
    lines = [
        f"# Hardware run, {document['date_utc']}", "",
        f"Device: {numbers.get('name') or 'unknown'}; driver {numbers.get('driver') or 'unknown'}"
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
    lines += ["", "## Shares of device time", "", "| what | share |", "|---|---|"]
    for check in document["checks"]:
        for name, value in check["evidence"].items():
            if isinstance(value, dict) and "share" in value:
                lines.append(f"| {check['name']}: {name} | {value['share']:.4f} |")
    lines += ["", "## The device, by gpu-probe", "", "| number | value |", "|---|---|"]
    lines += [f"| {name} | {'not measured' if value is None else value} |" for name, value in numbers.items()]
    return "\n".join(lines) + "\n"
