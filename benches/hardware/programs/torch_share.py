"""PyTorch's matrix products for some seconds, in the typical ways of launching, and the device time that they took.

    torch_share.py SECONDS [MODE...]        modes: sync, async, graph, streams; all without a name

The device time is known without any counter of the library that limits it: a graph contains a kernel that writes the
device's timer (kernels.py), some products, and the same kernel again. Work inside a graph cannot be held back, so the
two readings give the time of the products. A mode's device time is its number of products times that time; in mode
graph every replay is measured this way. The result is one line of JSON; a mode that fails is in it with its error.
"""
import sys
import time
import traceback

from cuda import Cuda, libvgpu_mapped, pointer, tell
from kernels import Launch, RECORD_WORDS, Recorder, spin_function

import torch

SIZE = 3072
IN_A_GRAPH = 10
STREAMS = 4
SETTLE = 0.4


class Work:
    def __init__(self):
        torch.cuda.init()
        self.a = torch.randn(SIZE, SIZE, device="cuda")
        self.b = torch.randn(SIZE, SIZE, device="cuda")
        self.out = [torch.empty(SIZE, SIZE, device="cuda") for _ in range(STREAMS)]
        self.streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        # In every stream the library of products takes its workspace and its code before anything counts.
        for at, stream in enumerate(self.streams):
            with torch.cuda.stream(stream):
                self.product(at)
        self.product()
        torch.cuda.synchronize()
        # PyTorch's own context is current. The program calls the driver in addition, as any extension does.
        self.cuda = Cuda()
        self.function, _ = spin_function(self.cuda)
        self.recorder = Recorder(self.cuda, 1 << 14)
        self.stamp(0)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.stamp()
            for _ in range(IN_A_GRAPH):
                self.product()
            self.stamp()
        torch.cuda.synchronize()

    def product(self, at=0):
        torch.mm(self.a, self.b, out=self.out[at])

    def stamp(self, out=None):
        stream = pointer(torch.cuda.current_stream().cuda_stream)
        Launch(self.cuda, self.function, stream, 0, self.recorder.at if out is None else out, self.recorder.room)()

    def stamped(self, since):
        """Nanoseconds of each replay after the given number of records, by the pair of readings around it."""
        words = self.recorder.records()
        pairs = [(words[at], words[at + 1]) for at in range(0, len(words), RECORD_WORDS)][since:]
        return [last[0] - first[1] for first, last in zip(pairs[0::2], pairs[1::2])]

    def product_ns(self):
        """Present time of one product; None if the device executes no code."""
        since = self.recorder.seen()
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()
        times = sorted(self.stamped(since))
        return times[len(times) // 2] / IN_A_GRAPH if times else None

    def round(self, mode):
        """One round of products with its wait; returns their number."""
        if mode == "graph":
            for _ in range(2):
                self.graph.replay()
            torch.cuda.synchronize()
            return 2 * IN_A_GRAPH
        if mode == "streams":
            for _ in range(5):
                for at, stream in enumerate(self.streams):
                    with torch.cuda.stream(stream):
                        self.product(at)
            torch.cuda.synchronize()
            return 5 * STREAMS
        count = 1 if mode == "sync" else 20
        for _ in range(count):
            self.product()
        torch.cuda.synchronize()
        return count

    def play(self, mode, seconds):
        begun, count = time.monotonic_ns(), 0
        while time.monotonic_ns() - begun < seconds * 1e9:
            count += self.round(mode)
        return count, time.monotonic_ns() - begun

    def measured(self, mode, seconds):
        before = self.product_ns()
        self.play(mode, SETTLE)
        since = self.recorder.seen()
        begun = time.monotonic()
        count, wall_ns = self.play(mode, seconds)
        window = [begun, time.monotonic()]
        replays = self.stamped(since)
        after = self.product_ns()
        found = {"products": count, "window_ns": wall_ns, "window": window, "product_ns": [before, after]}
        if before is None or after is None:
            return {**found, "truth": None, "share": None}
        busy = sum(replays) if mode == "graph" else count * (before + after) / 2
        truth = "the replays' clocks" if mode == "graph" else "products counted, each as long as in a clocked graph"
        return {**found, "truth": truth, "busy_ns": round(busy), "share": busy / wall_ns}


def main(arguments):
    seconds, modes = float(arguments[0]), arguments[1:] or ["sync", "async", "graph", "streams"]
    work = Work()
    found = {}
    for mode in modes:
        try:
            found[mode] = work.measured(mode, seconds)
        except Exception:  # noqa: BLE001  (one mode's fault is its own)
            found[mode] = {"error": traceback.format_exc(limit=3)[-500:]}
    tell({"libvgpu": libvgpu_mapped(), "torch": torch.__version__, "size": SIZE, "modes": found})


if __name__ == "__main__":
    main(sys.argv[1:])
