"""Tests of the suite's own parts: verdicts, time limits, arithmetic, the report. Their behaviour on a simulated
device: test_simulated.py. Run: python3 -m unittest -v"""
import json
import os
import sys
import tempfile
import time
import unittest
from array import array

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from suite import about, bundle, capture, numbers, report, share, stamps  # noqa: E402
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


class Parts(unittest.TestCase):
    def test_the_programs_are_found_beside_a_library_and_in_the_bin_of_its_installation(self):
        for where in ("build", "bin"):
            with tempfile.TemporaryDirectory() as place:
                library = os.path.join(place, *([] if where == "build" else ["lib", "vgpu"]), "libvgpu.so")
                program = os.path.join(place, *([] if where == "build" else ["bin"]), "vgpud")
                for path in (library, program):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w", encoding="utf-8"):
                        pass
                self.assertEqual(bundle.find("/nonexistent/a/b", "probe", library).vgpud, program)


class Arithmetic(unittest.TestCase):
    def test_the_added_cost_is_the_median_of_differences_within_a_round(self):
        got = numbers.judge([100, 200, 300], [100, 200, 300], [104, 206, 305], 10)
        self.assertEqual((got["added_ns"], got["noise_ns"], got["within"]), (5, 0, True))

    def test_more_than_budget_and_noise_is_not_within(self):
        self.assertFalse(numbers.judge([100, 100, 100], [101, 99, 100], [112, 112, 112], 10)["within"])
        self.assertTrue(numbers.judge([100, 100, 100], [102, 99, 100], [112, 112, 112], 10)["within"])


def kernels(*spans):
    return [(begin, end, end - begin) for begin, end in spans]


class Stamps(unittest.TestCase):
    def test_a_share_is_over_whole_cycles_of_kernel_and_pause(self):
        # 3 of 10, regardless of the last kernel's length.
        found = stamps.alone(kernels((0, 3), (10, 13), (20, 23), (30, 99)), 0)
        self.assertEqual((found["share"], found["kernels"], found["window_ns"]), (0.3, 3, 30))
        self.assertEqual(found["gap_ns"], {"median": 7, "p99": 7, "max": 7})

    def test_kernels_of_several_streams_that_overlap_count_once(self):
        self.assertEqual(stamps.union_ns(kernels((0, 10), (2, 6), (8, 14), (20, 25)), 0, 100), 19)
        self.assertEqual(stamps.union_ns(kernels((0, 10), (2, 6), (8, 14), (20, 25)), 5, 22), 11)

    def test_what_ran_before_the_window_is_left_out(self):
        found = stamps.alone(kernels((0, 9), (10, 13), (20, 23)), 1)
        self.assertEqual(found["share"], 0.3)

    def test_too_few_kernels_are_no_share(self):
        self.assertIsNone(stamps.alone(kernels((0, 9), (10, 13)), 1))
        self.assertIsNone(stamps.alone([], 0))

    def test_beside_others_only_its_own_time_counts(self):
        # Both are on the device for the whole time; each had it for half of it.
        one = [(0, 100, 50), (100, 200, 50), (200, 210, 5)]
        two = [(0, 80, 40), (80, 200, 60), (200, 210, 5)]
        found = stamps.together([one, two], 0)
        self.assertEqual((found["shares"], found["share"], found["window_ns"]), ([0.5, 0.5], 1.0, 200))

    def test_only_the_time_in_which_all_ran_counts(self):
        found = stamps.together([kernels((0, 10), (20, 30), (40, 50), (60, 70)), kernels((20, 40), (60, 90))], 0)
        self.assertEqual((found["window_ns"], found["shares"]), (40, [0.5, 0.5]))
        self.assertIsNone(stamps.together([kernels((0, 10), (20, 30)), kernels((50, 60), (70, 80))], 0))
        self.assertIsNone(stamps.together([kernels((0, 10)), []], 0))

    def test_a_file_of_records_is_read_in_the_order_of_begins(self):
        with tempfile.NamedTemporaryFile() as file:
            array("Q", [20, 30, 10, 0, 5, 9, 4, 0]).tofile(file)
            file.flush()
            self.assertEqual(stamps.read(file.name), [(5, 9, 4), (20, 30, 10)])


class Shares(unittest.TestCase):
    def test_a_share_that_is_off_by_more_than_its_tolerance_fails(self):
        for seen, holds in ((0.30, True), (0.285, True), (0.27, False), (0.33, False)):
            claims = Claims()
            found = {"share": seen, "window_ns": 2_000_000_000}
            share.around(claims, found, 30, 1_000_000)
            self.assertEqual(claims.made[0]["holds"], holds, [seen, found])
            self.assertEqual(found["tolerance_points"], 1.8)

    def test_where_only_the_ceiling_is_promised_less_is_no_failure_and_more_is(self):
        for seen, holds in ((0.10, True), (0.33, False)):
            claims = Claims()
            share.around(claims, {"share": seen, "window_ns": 2_000_000_000}, 30, 1_000_000, above_only=True)
            self.assertEqual(claims.made[0]["holds"], holds)

    def test_a_real_device_whose_kernels_left_no_record_is_no_result(self):
        got = {"recorded": 0, "room": 10, "settled": 0, "counted": 5, "kernel_ns": 10, "wall_ns": 100}
        with self.assertRaisesRegex(NotPossible, "no record"):
            share.judged(got, [], suite())

    def test_the_table_has_its_own_time_and_says_so_when_it_is_over(self):
        table, s = share.Table(seconds=5), suite()
        first = s.check("a", "p", table.point(lambda s, c: c.that("x", True, 1), 4))
        table.left = 3
        second = s.check("b", "p", table.point(lambda s, c: c.that("x", True, 1), 4))
        self.assertEqual((first["verdict"], second["verdict"]), ("PASS", "ERROR"))
        self.assertIn("used up", second["error"])

    def test_every_point_can_find_its_time_within_the_table(self):
        # Seconds that the points request, plus a second of start for each.
        seconds = sum(point[3] + point[4] + 1.3 for point in share.POINTS)
        self.assertLess(seconds, share.TABLE_SECONDS)
        for mode in ("sync", "async", "graph", "streams"):
            self.assertTrue({50_000, 1_000_000, 5_000_000} <= {ns for m, ns, *_ in share.POINTS if m == mode}, mode)
        self.assertEqual({ns for _, ns, *_ in share.POINTS},
                         {50_000, 1_000_000, 5_000_000, 20_000_000, 200_000_000, 1_000_000_000})
        self.assertEqual({percent for _, _, percent, *_ in share.POINTS}, {10, 30, 50, 80})

    def test_names_of_checks_are_their_own(self):
        rows = [name for name, _, _ in share.checks(share.Table())]
        self.assertEqual(len(rows), len(set(rows)))


class Kernels(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs"))
        try:
            import kernels
        finally:
            del sys.path[0]
        self.kernels = kernels

    def test_both_texts_put_their_records_where_they_are_looked_for(self):
        k = self.kernels
        self.assertEqual(k.RECORD_WORDS, stamps.RECORD_WORDS)
        self.assertEqual(8 * k.RECORD_WORDS, 1 << 5)
        self.assertIn("shl.b64         %at, %slot, 5;", k.PTX)
        for place, what in enumerate(("%first", "%last", "%spent")):
            self.assertIn(f"[%at+{8 * (k.HEAD_WORDS + place)}], {what};", k.PTX)
        self.assertIn(f"out + {k.HEAD_WORDS} + {k.RECORD_WORDS} * slot", k.SOURCE)

    def test_both_texts_have_the_kernel_with_its_three_parameters_and_an_end_of_their_own(self):
        k = self.kernels
        self.assertEqual(k.PTX.count(".param .u64 vgpu_spin_ns_param_"), 3)
        self.assertIn(".visible .entry vgpu_spin_ns(", k.PTX)
        self.assertIn("sub.u64         %left, %left, 1;", k.PTX)
        self.assertIn("vgpu_spin_ns(unsigned long long want, unsigned long long *out, unsigned long long room)", k.SOURCE)
        self.assertIn("left != 0; left--", k.SOURCE)
        self.assertNotIn("\0", k.PTX)


class Torch(unittest.TestCase):
    def test_a_replay_s_time_is_from_the_end_of_the_first_reading_to_the_begin_of_the_second(self):
        places = [os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("stand_in", "programs")]
        sys.path[:0] = places
        try:
            import torch_share
        finally:
            del sys.path[:2]
        work = torch_share.Work.__new__(torch_share.Work)
        # Two replays of 70 and 50 ns after one record that existed before.
        spans = [(1, 2), (10, 15), (85, 90), (100, 105), (155, 160)]
        words = [word for begin, end in spans for word in (begin, end, 0, 0)]
        work.recorder = type("Recorder", (), {"records": lambda _: array("Q", words)})()
        self.assertEqual(work.stamped(1), [70, 50])


class Captures(unittest.TestCase):
    def test_tables_are_compared_leaf_by_leaf(self):
        first, second = {"a": {"b": [1, 2], "c": 3}, "d": 4}, {"a": {"b": [1, 2], "c": 5}}
        self.assertEqual(capture.apart(first, second, ("model", "device")),
                         {"a / c": {"model": 3, "device": 5}, "d": {"model": 4, "device": "absent"}})
        self.assertEqual(capture.apart(first, first, ("model", "device")), {})

    def test_a_line_that_differs_or_is_missing_is_found(self):
        self.assertEqual(capture.different(["a", "b"], ["a", "c"]), [(1, "b", "c")])
        self.assertEqual(len(capture.different(["a", "b"], ["a"])), 1)

    def test_a_storm_is_judged_by_what_failed_and_not_by_how_often(self):
        modes = {"global": {"capturing": {"captures": 5, "step 3: 901": 2}, "other": {"calls": 9, "at the end": 0, "query 900": 1}}}
        self.assertEqual(capture.failures(modes), {"global": ["query 900", "step 3: 901"]})


class Report(unittest.TestCase):
    def test_raw_files_say_what_they_are_of(self):
        with tempfile.TemporaryDirectory() as out:
            s = suite(out=out)
            s.about = {"gpu": "X", "driver": "1", "version": "v", "command": "run", "date_utc": "now"}
            s.write("raw.json", {"answers": {"a": [1, [2, 3]], "b": {}}})
            with open(os.path.join(out, "raw.json"), encoding="utf-8") as text:
                document = json.load(text)
            self.assertEqual(document, {"about": s.about, "answers": {"a": [1, [2, 3]], "b": {}}})
            s.check("good", "p", lambda s, c: c.that("a", True, 1))
            self.assertEqual(report.write(s, time.time(), [], 1)["about"], s.about)
            with open(os.path.join(out, "summary.md"), encoding="utf-8") as text:
                self.assertIn("Device: X; driver 1; vgpu v; `run`", text.read())

    def test_the_version_is_the_bundle_s_if_it_has_one(self):
        with tempfile.TemporaryDirectory() as here:
            with open(os.path.join(here, "VERSION"), "w", encoding="utf-8") as out:
                out.write("abc123\n")
            self.assertEqual(about.version(here), "abc123")

    def test_a_machine_without_a_driver_still_says_what_it_can(self):
        os.environ["LD_LIBRARY_PATH"], before = "/nonexistent", os.environ.get("LD_LIBRARY_PATH")
        try:
            got = about.gather(suite(), tempfile.gettempdir(), 0)
        finally:
            if before is None:
                del os.environ["LD_LIBRARY_PATH"]
            else:
                os.environ["LD_LIBRARY_PATH"] = before
        self.assertEqual(got["date_utc"], "1970-01-01T00:00:00Z")
        self.assertTrue(got["gpu"] or got["device_error"])

    def test_shares_are_told_in_percent_with_what_was_asked(self):
        row = report.share("x", {"share": 0.3, "asked_percent": 30, "error_points": 0.0, "tolerance_points": 1.8,
                                 "window_ns": 2e9, "truth": "t", "nvml": {"mean_percent": 31.0}})
        self.assertEqual(row, "| x | 30 | 30.00 | 0.0 | 1.8 | 2.0 | t | 31.0 |")

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
