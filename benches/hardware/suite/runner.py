"""Runs programs under time limits and judges their output.

A check makes claims. It is PASS if it made at least one and all hold, FAIL if one does not hold, ERROR if it could not
be carried out. A check that was not carried out never counts as passed.
"""
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

from .report import readable

PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs")
MIB = 1 << 20
GIB = 1 << 30

# Variables that can set a limit: the check's own environment must not bring limits in from outside.
OURS = ("VGPU_", "CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_", "LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class NotPossible(Exception):
    """The check could not be carried out; the message gives the reason."""


class Finished:
    """Output and exit status of a program that ended."""

    def __init__(self, rc, out, err, timed_out, seconds):
        self.rc, self.out, self.err, self.timed_out, self.seconds = rc, out, err, timed_out, seconds

    def json(self):
        """The program's line of JSON. A program without one is an error of the check, with the program's output in
        the message."""
        for line in reversed(self.out.splitlines()):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except ValueError:
                    break
        raise NotPossible(f"no result (exit {self.rc}{', out of time' if self.timed_out else ''}): "
                          f"{(self.err or self.out).strip()[-600:]}")


class Held:
    """A program that continues until its input ends. It is ended in any case at the end of the check."""

    def __init__(self, process, lines, words):
        self.process, self.lines, self.words = process, lines, words

    def said(self):
        return "".join(self.words)[-600:].strip()

    def line(self, patience):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.lines:
                return json.loads(self.lines.pop(0))
            if self.process.poll() is not None and not self.lines:
                time.sleep(0.2)
                if self.lines:
                    continue
                raise NotPossible(f"{self.name()} ended with {self.process.returncode}: {self.said()}")
            time.sleep(0.01)
        raise NotPossible(f"{self.name()} said nothing for {patience:.0f} s: {self.said()}")

    def name(self):
        return " ".join(os.path.basename(str(word)) for word in self.process.args[:3])

    def until(self, condition, patience, what):
        """Waits for an effect of the program outside its output."""
        deadline = time.monotonic() + patience
        while not condition():
            if self.process.poll() is not None:
                raise NotPossible(f"{self.name()} ended with {self.process.returncode} before {what}: {self.said()}")
            if time.monotonic() > deadline:
                raise NotPossible(f"{self.name()} did not make {what} in {patience:.0f} s: {self.said()}")
            time.sleep(0.01)

    def kill(self):
        end(self.process)

    def finish(self):
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        end(self.process)


def end(process):
    """Ends a program and everything that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass


class Suite:
    """Paths, remaining time, and results of the run."""

    def __init__(self, bundle, out, state, sim=None, budget=480, now=time.monotonic, keep_model=False):
        self.bundle, self.out, self.state, self.sim, self.now = bundle, out, state, sim, now
        # True if the simulated device's answers become the model with which hardware is compared.
        self.keep_model = keep_model
        self.deadline = now() + budget
        self.results = []
        # Device, driver, our version, date and command: the head of every file of results.
        self.about = {}
        self.count = 0
        self.held = []

    def left(self):
        return self.deadline - self.now()

    def write(self, name, value):
        """Writes a file of raw results, with the identification of the run at its head."""
        with open(os.path.join(self.out, name), "w", encoding="utf-8") as out:
            out.write(readable({"about": self.about, **value}) + "\n")

    def environment(self, preload=False, **extra):
        """Environment of a program: our variables removed, the simulated driver added if requested, the limits as
        given."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(OURS) or k.startswith("VGPU_SIM_")}
        env["PYTHONUNBUFFERED"] = "1"
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.sim:
            env["LD_LIBRARY_PATH"] = self.sim
        if preload:
            env["LD_PRELOAD"] = self.bundle.library
            env["VGPU_STATE_DIR"] = self.state
        env.update({k: str(v) for k, v in extra.items()})
        return env

    def tenant(self):
        """A name that no other check uses, so that each check has its own quota."""
        self.count += 1
        return f"hw-{os.getpid()}-{self.count}"

    def run(self, argv, env, limit=60):
        """Runs a program to its end, or ends it at the limit."""
        limit = min(limit, self.left())
        if limit <= 1:
            raise NotPossible("no time left within the budget")
        started = time.monotonic()
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        timed_out = False
        try:
            out, err = process.communicate(timeout=limit)
        except (KeyboardInterrupt, SystemExit):
            end(process)
            raise
        except subprocess.TimeoutExpired:
            timed_out = True
            end(process)
            try:
                out, err = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                out, err = "", "the killed program did not disappear"
        return Finished(process.returncode, out, err, timed_out, time.monotonic() - started)

    def keep(self, argv, env):
        """Starts a program that outlives the checks; the caller ends it."""
        held = self.hold(argv, env)
        self.held.remove(held)
        return held

    def hold(self, argv, env):
        """Starts a program that prints one line and waits. It ends with the check that started it."""
        if self.left() <= 1:
            raise NotPossible("no time left within the budget")
        process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        lines, words = [], []

        def read():
            for line in process.stdout:
                if line.startswith("{"):
                    lines.append(line)

        def listen():
            for line in process.stderr:
                words.append(line)

        for reader in (read, listen):
            threading.Thread(target=reader, daemon=True).start()
        held = Held(process, lines, words)
        self.held.append(held)
        return held

    def python(self, program, *arguments):
        return [sys.executable, os.path.join(PROGRAMS, program), *map(str, arguments)]

    def check(self, name, promise, body):
        """Carries out one check and stores its verdict."""
        claims = Claims()
        started = self.now()
        error = None
        try:
            if self.left() <= 2:
                raise NotPossible("no time left within the budget")
            body(self, claims)
        except NotPossible as reason:
            error = str(reason)
        except Exception:  # noqa: BLE001  (a fault of the check is an ERROR of this check, not the end of the others)
            error = traceback.format_exc(limit=4)
        finally:
            for held in self.held:
                held.kill()
            self.held = []
        result = {"name": name, "promise": promise, "verdict": verdict(claims, error),
                  "seconds": round(self.now() - started, 2), "claims": claims.made, "evidence": claims.evidence,
                  "error": error}
        self.results.append(result)
        print(f"{result['verdict']:<5} {name:<34} {result['seconds']:7.1f} s", file=sys.stderr, flush=True)
        for claim in claims.made:
            if not claim["holds"]:
                print(f"      not so: {claim['claim']}: {claim['seen']}", file=sys.stderr, flush=True)
        if error:
            print(f"      {error.strip().splitlines()[-1][:300]}", file=sys.stderr, flush=True)
        return result


class Claims:
    """Claims and evidence of a check."""

    def __init__(self):
        self.made, self.evidence = [], {}

    def that(self, claim, holds, seen):
        self.made.append({"claim": claim, "holds": bool(holds), "seen": seen})
        return bool(holds)

    def keep(self, name, value):
        self.evidence[name] = value
        return value


def verdict(claims, error):
    """ERROR before FAIL before PASS; a check without a claim proves nothing."""
    if error is not None or not claims.made:
        return "ERROR"
    return "PASS" if all(claim["holds"] for claim in claims.made) else "FAIL"
