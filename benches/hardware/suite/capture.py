"""Stream captures: the library disturbs none, and the driver's answers to each rule are recorded.

Judged by comparison: the same program bare, bare again (the control) and under the library, line by line. The driver
alone decides the right answers. They are stored next to those of the simulated device (model/*.json), so that the model
can be corrected.
"""
import json
import os

from .memory import limited
from .report import readable
from .runner import NotPossible
from .share import ceiling

MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "model")
# If a rule crashes its process, the crash is recorded and the other rules are asked in a new process.
RESTARTS = 4
# Driver whose answers the model's files contain. Hardware will have a newer one.
SIMULATED_DRIVER = "580"
STORM_SECONDS = 0.8


def variants(suite):
    return {
        "no limit": suite.environment(preload=True, VGPU_TENANT=suite.tenant()),
        "memory limit": limited(suite),
        "SM limit 30": ceiling(suite, 30),
    }


def different(first, second):
    """Differences of two lists of lines as [(position, first, second)]."""
    found = [(at, a, b) for at, (a, b) in enumerate(zip(first, second)) if a != b]
    if len(first) != len(second):
        found.append((min(len(first), len(second)), f"{len(first)} lines", f"{len(second)} lines"))
    return found


def undisturbed(suite, claims):
    argv = suite.python("captures.py", "steps")
    bare = suite.run(argv, suite.environment()).json()
    again = suite.run(argv, suite.environment()).json()
    claims.keep("lines", len(bare["lines"]))
    claims.that("captures came to their end (control)", sum("nodes" in line for line in bare["lines"]) >= 20,
                bare["lines"][:20])
    noise = different(bare["lines"], again["lines"])
    claims.that("bare twice gives the same lines (control)", not bare["libvgpu"] and not noise, noise[:5])
    for name, env in variants(suite).items():
        got = suite.run(argv, env).json()
        changed = different(bare["lines"], got["lines"])
        claims.that(f"{name}: every call of both threads answers as without the library", got["libvgpu"] and not changed,
                    changed[:5])


def failures(modes):
    """The failures of a storm, without their counts."""
    return {mode: sorted(key for part in one.values() for key in part if key not in ("calls", "captures", "at the end"))
            for mode, one in modes.items()}


def storm(suite, claims):
    argv = suite.python("captures.py", "storm", STORM_SECONDS / (4 if suite.sim else 1))
    bare = suite.run(argv, suite.environment()).json()
    claims.keep("bare", bare["modes"])
    before = failures(bare["modes"])
    for name, env in (("no limit", ceiling(suite, None)), ("SM limit 30", ceiling(suite, 30))):
        got = suite.run(argv, env).json()
        claims.keep(name, got["modes"])
        claims.that(f"{name}: the library is in the process", got["libvgpu"], got["libvgpu"])
        for mode, one in got["modes"].items():
            more = sorted(set(failures(got["modes"])[mode]) - set(before[mode]))
            claims.that(f"{name}, {mode}: nothing fails that does not without the library", not more, more)
            claims.that(f"{name}, {mode}: both threads came along", one["capturing"]["captures"] > 0 and one["other"]["calls"] > 0,
                        one)
            claims.that(f"{name}, {mode}: the other's stream ended well", one["other"].get("at the end") == 0, one["other"])


def asked(suite, env):
    """{rule: result} of the present driver, continued after crashes."""
    seen, names, restarts = {}, [], 0
    while True:
        finished = suite.run(suite.python("capture_rules.py", *names), env, 40)
        lines = []
        for line in finished.out.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                pass
        begun = [line["begun"] for line in lines if "begun" in line]
        seen.update({line["rule"]: line["seen"] for line in lines if "rule" in line})
        if any("rules" in line for line in lines):
            return seen
        if not begun:
            raise NotPossible(f"no rule was asked: exit {finished.rc}: {finished.err[-500:]}")
        seen.setdefault(begun[-1], {"error": f"exit {finished.rc}{', out of time' if finished.timed_out else ''}: "
                                             f"{finished.err[-300:]}"})
        names = [name for name in model("capture-rules.json") if name not in seen]
        restarts += 1
        if not names or restarts > RESTARTS:
            return seen


def model(name):
    with open(os.path.join(MODEL, name), encoding="utf-8") as text:
        return json.load(text)["answers"]


def flat(value, path=""):
    """{path: leaf} for comparison, in a form that is readable in a report."""
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in flat(part, f"{path} / {name}" if path else name).items()}


def apart(first, second, names):
    """Differences of several tables: {path: {name: value}}."""
    one, two = flat(first), flat(second)
    return {path: {names[0]: one.get(path, "absent"), names[1]: two.get(path, "absent")}
            for path in sorted({*one, *two}) if one.get(path, "absent") != two.get(path, "absent")}


def driver_of(suite):
    return {"VGPU_SIM_DRIVER": SIMULATED_DRIVER} if suite.sim else {}


def compared(suite, claims, file, ask):
    """Asks without and with the library, stores the answers, and compares them with the model's."""
    bare = ask(suite.environment(**driver_of(suite)))
    loaded = ask(ceiling(suite, 30, **driver_of(suite)))
    if suite.sim and suite.keep_model:
        with open(os.path.join(MODEL, file), "w", encoding="utf-8") as out:
            out.write(readable({"what": f"what the simulated device answers ({suite.about.get('gpu')}, driver "
                                        f"{SIMULATED_DRIVER}); run --sim DIR --keep-model --only capture writes it",
                                "answers": bare}) + "\n")
    simulated = model(file)
    unlike = apart(simulated, bare, ("model", "device"))
    changed = apart(bare, loaded, ("bare", "library"))
    suite.write(file, {"answers": bare, "with_the_library": loaded if changed else "the same", "unlike_the_model": unlike})
    claims.keep("answers", len(flat(bare)))
    claims.that("with the library every answer is the same", not changed, dict(list(changed.items())[:10]))
    claims.that("every question could be asked", not any("error" in path.split(" / ") for path in flat(bare)),
                [path for path in flat(bare) if "error" in path.split(" / ")][:5])
    claims.that("the simulated device answers as this one", not unlike, dict(list(unlike.items())[:20]))


def rules(suite, claims):
    compared(suite, claims, "capture-rules.json", lambda env: asked(suite, env))


def calls(suite, claims):
    def ask(env):
        path = os.path.join(suite.out, "capture-probe.json")
        suite.run([suite.bundle.probe, "--only", "capture", "--out", path], env, 60)
        with open(path, encoding="utf-8") as text:
            step = json.load(text)["steps"]["capture"]
        os.unlink(path)
        found = dict(step["data"].get("rules") or {})
        if step["status"] != "ok":
            found["error"] = [step["status"], step["errors"][:3]]
        return found
    compared(suite, claims, "capture-calls.json", ask)


CHECKS = [
    ("capture undisturbed", "one step at a time: no code, state, graph or result differs with the library", undisturbed),
    ("capture storm", "a thread captures, another launches, waits, allocates: nothing fails with the library", storm),
    ("capture rules", "each rule that the simulated device claims, asked of the driver; the library changes none", rules),
    ("capture calls", "thirty calls in each mode, stream and thread; the library changes none", calls),
]
