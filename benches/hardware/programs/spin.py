"""Kernels of a known length for some seconds, in one of the ways in which programs launch; every one writes down when it ran.

    spin.py MODE KERNEL_NS SECONDS [--settle S] [--stamps FILE] [--source ptx|nvrtc] [--batch N] [--wait]

MODE: sync (each is waited for), async (batches in one stream), graph (a graph of them, again and again), streams (four
streams). The first --settle seconds do not count. --wait: says when it is ready and waits for a line. FILE gets the
records (kernels.py); the result is one line of JSON.
"""
import argparse
import sys
import time

from cuda import Cuda, libvgpu_mapped, tell
from kernels import Launch, NoCompiler, RECORD_WORDS, Recorder, captured, spin_function, stream

# Room for the records of four streams of the shortest kernels for some seconds: 8 MiB.
ROOM = 1 << 18
STREAMS = 4


def between(least, value, most):
    return max(least, min(value, most))


def rounds(cuda, function, mode, ns, out, batch):
    """(one round of launches with its wait, kernels in a round)"""
    if mode == "streams":
        launches = [Launch(cuda, function, stream(cuda), ns, out, ROOM) for _ in range(STREAMS)]
        each = batch or between(1, 20_000_000 // ns, 64)

        def streams():
            for _ in range(each):
                for launch in launches:
                    launch()
            cuda.sync()

        return streams, each * STREAMS
    own = stream(cuda)
    launch = Launch(cuda, function, own, ns, out, ROOM)
    if mode == "sync":
        def sync():
            launch()
            cuda.must("cuStreamSynchronize", own)

        return sync, 1
    if mode == "async":
        count = batch or between(2, 40_000_000 // ns, 256)

        def asynchronous():
            for _ in range(count):
                launch()
            cuda.must("cuStreamSynchronize", own)

        return asynchronous, count
    nodes = between(2, 5_000_000 // ns, 20)
    graph = captured(cuda, own, lambda: [launch() for _ in range(nodes)])

    def replay():
        for _ in range(2):
            cuda.must("cuGraphLaunch", graph, own)
        cuda.must("cuStreamSynchronize", own)

    return replay, 2 * nodes


def play(round_, kernels, seconds):
    """(kernels, wall nanoseconds) of complete rounds until the time is over; at least one round unless the time is
    zero."""
    begun, count = time.monotonic_ns(), 0
    while time.monotonic_ns() - begun < seconds * 1e9:
        round_()
        count += kernels
    return count, time.monotonic_ns() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("sync", "async", "graph", "streams"))
    parser.add_argument("ns", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--settle", type=float, default=0.5)
    parser.add_argument("--stamps")
    parser.add_argument("--source", choices=("ptx", "nvrtc"), default="ptx")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    cuda = Cuda()
    try:
        function, made = spin_function(cuda, arguments.source)
    except NoCompiler as reason:
        tell({"not_possible": str(reason)})
        return
    recorder = Recorder(cuda, ROOM)
    round_, kernels = rounds(cuda, function, arguments.mode, arguments.ns, recorder.at, arguments.batch)
    # The lazy part of a first launch is done before anything counts; it leaves no record.
    Launch(cuda, function, stream(cuda), 1_000_000, 0, 0)()
    cuda.sync()
    if arguments.wait:
        tell({"ready": True})
        sys.stdin.readline()
    settled, _ = play(round_, kernels, arguments.settle)
    begun = time.monotonic()
    counted, wall_ns = play(round_, kernels, arguments.seconds)
    window = [begun, time.monotonic()]
    records = recorder.records()
    if arguments.stamps:
        with open(arguments.stamps, "wb") as out:
            records.tofile(out)
    tell({"libvgpu": libvgpu_mapped(), "mode": arguments.mode, "kernel_ns": arguments.ns, "code": made,
          "in_a_round": kernels, "settled": settled, "counted": counted, "wall_ns": wall_ns, "window": window,
          "recorded": len(records) // RECORD_WORDS, "room": ROOM})


if __name__ == "__main__":
    main()
