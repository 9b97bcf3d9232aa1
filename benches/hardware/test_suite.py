"""Tests of the suite's own parts: verdicts, limits of time, arithmetic, the report. Run: python3 -m unittest -v"""
import json
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from suite import bundle, numbers, report  # noqa: E402
from suite.runner import Claims, Finished, NotPossible, Suite, verdict  # noqa: E402


def suite(budget=60, out=None):
    return Suite(bundle.Bundle("probe", "/nonexistent/libvgpu.so"), out or tempfile.gettempdir(), "state", budget=budget)


class Verdicts(unittest.TestCase):
    def test_a_check_without_a_claim_is_never_passed(self):
        self.assertEqual(verdict(Claims(), None), "ERROR")

    def test_one_claim_that_does_not_hold_fails_the_check(self):
        claims = Claims()
        claims.that("a", True, 1)
        self.assertEqual(verdict(claims, None), "PASS")
        claims.that("b", False, 2)
        self.assertEqual(verdict(claims, None), "FAIL")

    def test_a_check_that_could_not_be_carried_out_is_an_error_whatever_it_claimed(self):
        claims = Claims()
        claims.that("a", True, 1)
        self.assertEqual(verdict(claims, "no device"), "ERROR")

    def test_a_fault_in_one_check_does_not_stop_the_next(self):
        s = suite()
        self.assertEqual(s.check("x", "p", lambda s, c: 1 / 0)["verdict"], "ERROR")
        self.assertEqual(s.check("y", "p", lambda s, c: c.that("a", True, 1))["verdict"], "PASS")

    def test_without_time_a_check_is_an_error_and_not_left_out(self):
        s = suite(budget=0)
        got = s.check("x", "p", lambda s, c: c.that("a", True, 1))
        self.assertEqual(got["verdict"], "ERROR")
        self.assertIn("no time left", got["error"])


class Programs(unittest.TestCase):
    def test_a_program_that_hangs_is_ended_with_its_children(self):
        started = time.monotonic()
        got = suite().run(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], dict(os.environ), limit=1.5)
        self.assertTrue(got.timed_out)
        self.assertLess(time.monotonic() - started, 30)
        child = int(got.out.strip())
        for _ in range(500):
            try:
                with open(f"/proc/{child}/stat", encoding="utf-8") as stat:
                    if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except (FileNotFoundError, ProcessLookupError):
                return
            time.sleep(0.01)
        self.fail("the child of the program lives on")

    def test_the_line_of_json_is_found_among_others(self):
        self.assertEqual(Finished(0, 'warning\n{"a": 1}\nbye\n', "", False, 0).json(), {"a": 1})

    def test_a_program_without_a_result_is_an_error_with_its_words(self):
        with self.assertRaisesRegex(NotPossible, "exit 3.*no such module"):
            Finished(3, "", "no such module torch", False, 0).json()

    def test_limits_from_outside_do_not_leak_into_a_program(self):
        os.environ["VGPU_MEMORY_LIMIT"] = "1GiB"
        os.environ["LD_PRELOAD_X"] = "x"
        try:
            env = suite().environment()
        finally:
            del os.environ["VGPU_MEMORY_LIMIT"], os.environ["LD_PRELOAD_X"]
        self.assertNotIn("VGPU_MEMORY_LIMIT", env)
        self.assertNotIn("LD_PRELOAD", env)


class Arithmetic(unittest.TestCase):
    def test_the_added_cost_is_the_median_of_differences_within_a_round(self):
        got = numbers.judge([100, 200, 300], [100, 200, 300], [104, 206, 305], 10)
        self.assertEqual((got["added_ns"], got["noise_ns"], got["within"]), (5, 0, True))

    def test_more_than_budget_and_noise_is_not_within(self):
        self.assertFalse(numbers.judge([100, 100, 100], [101, 99, 100], [112, 112, 112], 10)["within"])
        self.assertTrue(numbers.judge([100, 100, 100], [102, 99, 100], [112, 112, 112], 10)["within"])


class Report(unittest.TestCase):
    def test_an_error_makes_the_run_not_passed_and_is_told(self):
        with tempfile.TemporaryDirectory() as out:
            s = suite(out=out)
            s.check("good", "p", lambda s, c: c.that("a", True, 1))
            s.check("bad", "p", lambda s, c: c.that("b", False, {"seen": 2}))
            document = report.write(s, time.time(), [], 2)
            self.assertFalse(document["all_passed"])
            with open(os.path.join(out, "results.json"), encoding="utf-8") as text:
                self.assertEqual(json.load(text)["counts"], {"PASS": 1, "FAIL": 1, "ERROR": 0})
            with open(os.path.join(out, "summary.md"), encoding="utf-8") as text:
                self.assertIn("not so: b", text.read())

    def test_a_run_of_no_check_is_not_passed(self):
        with tempfile.TemporaryDirectory() as out:
            self.assertFalse(report.write(suite(out=out), time.time(), [], 0)["all_passed"])

    def test_a_run_that_was_stopped_half_way_is_not_passed(self):
        with tempfile.TemporaryDirectory() as out:
            s = suite(out=out)
            s.check("good", "p", lambda s, c: c.that("a", True, 1))
            self.assertTrue(report.write(s, time.time(), [], 1)["all_passed"])
            self.assertFalse(report.write(s, time.time(), [], 2)["all_passed"])
            with open(os.path.join(out, "summary.md"), encoding="utf-8") as text:
                self.assertIn("1 of 2 were not reached", text.read())


if __name__ == "__main__":
    unittest.main()
