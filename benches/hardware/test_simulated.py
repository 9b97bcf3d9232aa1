"""Every part of the suite on a simulated device, as far as possible. The programs run, they detect a library which
enforces nothing or disturbs captures, and the model's answers are still right. Run: python3 -m unittest -v
test_simulated

VGPU_BUILD names the directory of the products (default: target/release of this tree), VGPU_PROBE the probe. The
precision of shares is not judged here, because windows are short and the machine may be busy; tests/ judges it by the
device's record.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from suite import bundle, share, torch_capture, torch_share  # noqa: E402
from suite.runner import Suite  # noqa: E402

BUILD = os.path.abspath(os.environ.get("VGPU_BUILD") or os.path.join(HERE, "..", "..", "target", "release"))
SIM = os.path.join(BUILD, "sim")
LIBRARY = os.path.join(os.environ.get("VGPU_LIB_DIR") or BUILD, "libvgpu.so")
PROBE = os.path.abspath(os.environ.get("VGPU_PROBE") or os.path.join(BUILD, "gpu-probe"))
PATIENCE = 180


def missing():
    for path in (os.path.join(SIM, "libcuda.so.1"), os.path.join(SIM, "libnvidia-ml.so.1"), LIBRARY, PROBE):
        if not os.path.exists(path):
            return f"{path} (make build, and VGPU_BUILD and VGPU_PROBE say where)"
    return None


def setUpModule():
    what = missing()
    if what and os.environ.get("VGPU_REQUIRE_ALL") == "1":
        raise AssertionError(f"missing: {what}")
    if what:
        print(f"SKIPPED: the suite on a simulated device: {what}", file=sys.stderr)
        raise unittest.SkipTest(what)


def carried_out(only, library=LIBRARY, extra=()):
    """{name: result} of a run on a simulated device of its own, and the files that it wrote."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "run"), out, "--sim", SIM, "--library", library, "--probe",
                               PROBE, "--only", only, *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE,
                              check=False, text=True)
        results = os.path.join(out, "results.json")
        if not os.path.exists(results):
            raise AssertionError(f"exit {done.returncode}: {done.stderr[-2000:]}")
        files = {}
        for name in os.listdir(out):
            with open(os.path.join(out, name), encoding="utf-8") as text:
                files[name] = text.read()
    return {check["name"]: check for check in json.loads(files["results.json"])["checks"]}, files


class Shares(unittest.TestCase):
    def test_every_kind_of_point_is_carried_out_and_judged(self):
        checks, files = carried_out(
            "share control,share async 50 us 30,share sync 1 ms,share graph 5 ms,share streams 1 ms 30,share two processes 1 ms,"
            "share two tenants")
        self.assertEqual(len(checks), 8, list(checks))
        for name, check in checks.items():
            self.assertNotEqual(check["verdict"], "ERROR", [name, check["error"]])
            shares = [value for value in check["evidence"].values() if value.get("share") is not None]
            self.assertTrue(shares and all(0 < value["share"] < 1.2 for value in shares), [name, shares])
            self.assertTrue(all(claim["holds"] for claim in check["claims"] if "the library is" in claim["claim"]), [name, check["claims"]])
        audits = [value["nvml"] for check in checks.values() for value in check["evidence"].values() if value.get("nvml")]
        self.assertTrue(any(audit.get("mean_percent", 0) > 0 for audit in audits), audits)
        self.assertLess(checks["share async 50 us 30 %"]["evidence"]["share"]["share"], 0.6)
        about = json.loads(files["results.json"])["about"]
        self.assertEqual((about["gpu"], about["simulated"]), ("NVIDIA H200", True))
        self.assertTrue(about["driver"] and about["version"] and about["command"].startswith("run "))
        self.assertIn("| share async 50 us 30 % | 30 |", files["summary.md"])

    def test_without_a_compiler_its_point_is_not_carried_out_and_says_why(self):
        check = carried_out("share NVRTC")[0]["share NVRTC 1 ms 30 %"]
        if check["verdict"] == "ERROR":
            self.assertIn("no NVRTC", check["error"])
        else:
            self.assertIn("NVRTC", check["evidence"]["share"]["code"])


class Libraries(unittest.TestCase):
    """A check that passes with these checks nothing."""

    def meddler(self, place):
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.assertTrue(compiler, "no C compiler")
        made = os.path.join(place, "libvgpu.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, os.path.join(HERE, "stand_in", "meddler.c"), "-ldl"],
                       check=True, timeout=60)
        return made

    def test_a_library_that_disturbs_captures_and_holds_nobody_is_found(self):
        with tempfile.TemporaryDirectory() as place:
            checks, files = carried_out("share async 1 ms 30,share two processes 1 ms,capture undisturbed,capture rules,capture storm",
                                        self.meddler(place))
        self.assertEqual({name: check["verdict"] for name, check in checks.items()}, dict.fromkeys(checks, "FAIL"))
        self.assertEqual(len(checks), 5)
        self.assertGreater(checks["share async 1 ms 30 %"]["evidence"]["share"]["share"], 0.5)
        rules = json.loads(files["capture-rules.json"])
        self.assertNotEqual(rules["with_the_library"], "the same")
        self.assertEqual(rules["unlike_the_model"], {}, "without it nothing is wrong")


class Captures(unittest.TestCase):
    def test_our_library_disturbs_none_and_the_model_s_answers_are_the_ones_kept(self):
        checks, files = carried_out("capture")
        for name, check in checks.items():
            self.assertEqual(check["verdict"], "PASS", [name, check["error"], [c for c in check["claims"] if not c["holds"]]])
        self.assertEqual(len(checks), 4, list(checks))
        for name in ("capture-rules.json", "capture-calls.json"):
            document = json.loads(files[name])
            self.assertEqual((document["unlike_the_model"], document["with_the_library"]), ({}, "the same"))
            self.assertEqual(document["about"]["gpu"], "NVIDIA H200")


class CommandLine(unittest.TestCase):
    def test_vgpu_beside_the_library_puts_a_program_under_a_limit_and_finds_nothing_wrong(self):
        checks, files = carried_out("command line")
        self.assertEqual({name: check["verdict"] for name, check in checks.items()},
                         {"command line run": "PASS", "command line doctor": "PASS"}, files["summary.md"])


class Costs(unittest.TestCase):
    def test_markers_are_measured_bare_and_under_a_limit(self):
        check = carried_out("cost of markers, queued")[0]["cost of markers, queued"]
        self.assertNotEqual(check["verdict"], "ERROR", check["error"])
        for name in ("library, no limit", "library, SM limit 100"):
            self.assertIn("added_ns", check["evidence"][name])


class WithPyTorch(unittest.TestCase):
    """The course of the programs, with a stand-in; only the real device can show their measurements."""

    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        state = os.path.join(self.place.name, "state")
        machine = os.path.join(self.place.name, "sim")
        os.mkdir(state), os.mkdir(machine)
        here = {"VGPU_SIM_DIR": machine, "VGPU_SIM_PROFILE": "h200", "PYTHONPATH": os.path.join(HERE, "stand_in")}
        for key, value in here.items():
            before = os.environ.get(key)
            os.environ[key] = value
            self.addCleanup(os.environ.__setitem__ if before is not None else os.environ.pop, key, before)
        self.suite = Suite(bundle.find(HERE, PROBE, LIBRARY), self.place.name, state, sim=SIM, budget=PATIENCE)

    def test_every_way_to_launch_comes_to_its_end(self):
        name, promise, body = torch_share.checks(share.Table())[0]
        got = self.suite.check(name, promise, body)
        self.assertIsNone(got["error"])
        for mode in torch_share.MODES:
            self.assertNotIn("error", got["evidence"][mode])
            self.assertGreater(got["evidence"][mode]["products"], 0)
            # No device code was executed: the result says so and contains no invented share.
            self.assertIsNone(got["evidence"][mode]["share"])
        self.assertEqual(got["verdict"], "FAIL")

    def test_captures_in_every_mode_come_to_their_end(self):
        name, promise, body = torch_capture.CHECKS[0]
        got = self.suite.check(name, promise, body)
        self.assertEqual(got["verdict"], "PASS", [got["error"], got["claims"], got["evidence"]])


if __name__ == "__main__":
    unittest.main()
