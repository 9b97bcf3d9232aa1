"""Runs gpu-probe; its document goes to the output directory unchanged."""
import json
import os

# Steps that need executed device code: a simulated device computes its time instead.
NOT_ON_THE_SIMULATED = {"timer", "slices", "inflation", "capture"}


def whole(suite, claims):
    path = os.path.join(suite.out, "gpu-probe.json")
    finished = suite.run([suite.bundle.probe, "--out", path, "--budget", "130"] + (["--quick"] if suite.sim else []),
                         suite.environment(), 150)
    with open(os.path.join(suite.out, "gpu-probe.txt"), "w", encoding="utf-8") as text:
        text.write(finished.err)
    with open(path, encoding="utf-8") as text:
        document = json.load(text)
    # The run's identification, as in every file of results; readers of the profile ignore it.
    document["about"] = suite.about
    with open(path, "w", encoding="utf-8") as text:
        json.dump(document, text, indent=1)
        text.write("\n")
    steps = document["steps"]
    claims.keep("numbers", document["numbers"])
    claims.keep("errors", {name: step["errors"] for name, step in steps.items() if step["errors"]})
    claims.that("the probe ran without the library", not steps["host"]["data"].get("libvgpu_mapped", True),
                steps["host"]["data"].get("libvgpu_mapped"))
    for name, step in steps.items():
        if suite.sim and name in NOT_ON_THE_SIMULATED:
            claims.that(f"{name} came to an end", step["status"] in ("ok", "partial", "failed"), step["status"])
        else:
            claims.that(f"{name} gave its result", step["status"] == "ok", [step["status"], step["errors"][:2]])


CHECKS = [("gpu-probe", "every step of the probe gives its result", whole)]
