"""Stream captures with another thread at work meanwhile: the code of every call, so that two runs can be compared.

    captures.py steps               in every mode, one thing at a time: a line for each call
    captures.py storm SECONDS       in every mode, all at once: numbers of failed captures and calls, with their codes

The result is one line of JSON, without addresses and handles. The right codes are the subject of capture_rules.py.
"""
import ctypes
import queue
import sys
import threading
import time

from cuda import Cuda, libvgpu_mapped, pointer, size_t, tell, u64
from kernels import NON_BLOCKING, spin_function, stream

MODES = ("global", "thread-local", "relaxed")
MIB = 1 << 20
NO_TIMING = 2
SPIN_NS = 50_000
PATIENCE = 60


class Driver:
    """Calls by name that return the driver's code, and the objects that they use."""

    def __init__(self):
        self.cuda = Cuda()
        self.function, _ = spin_function(self.cuda)
        self.context = pointer()
        self.cuda.must("cuCtxGetCurrent", ctypes.byref(self.context))

    def code(self, name, *arguments):
        return self.cuda.code(name, *arguments)

    def launch(self, on, ns=SPIN_NS):
        values = [u64(ns), u64(0), u64(0)]
        parameters = (pointer * 3)(*[ctypes.addressof(value) for value in values])
        return self.code("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, on, parameters, None)

    def event(self):
        made = pointer()
        self.cuda.must("cuEventCreate", ctypes.byref(made), NO_TIMING)
        return made

    def memory(self):
        """An allocation and its release."""
        address = u64()
        code = self.code("cuMemAlloc_v2", ctypes.byref(address), size_t(MIB))
        return [code, self.code("cuMemFree_v2", address) if code == 0 else None]

    def in_order(self, on):
        address = u64()
        code = self.code("cuMemAllocAsync", ctypes.byref(address), size_t(MIB), on)
        return [code, self.code("cuMemFreeAsync", address, on) if code == 0 else None]

    def query(self, on):
        return [self.code("cuStreamSynchronize", on), self.code("cuStreamQuery", on)]

    def record(self, event, on):
        return [self.code("cuEventRecord", event, on), self.code("cuEventSynchronize", event), self.code("cuEventQuery", event)]

    def numbers(self):
        free, total = size_t(), size_t()
        return self.code("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def status(self, on):
        """(code, 0 none, 1 active, 2 invalidated)"""
        state = ctypes.c_int(-1)
        return [self.code("cuStreamIsCapturing", on, ctypes.byref(state)), state.value]

    def end(self, on):
        """(code, the graph)"""
        graph = pointer()
        return self.code("cuStreamEndCapture", on, ctypes.byref(graph)), graph


def wishes(driver, own, event):
    """Actions of the other thread, each with its codes."""
    return {
        "launch": lambda: driver.launch(own),
        "launch many": lambda: sorted({driver.launch(own) for _ in range(40)}),
        "wait": lambda: driver.code("cuStreamSynchronize", own),
        "record": lambda: driver.record(event, own),
        "query": lambda: driver.query(own),
        "memory": driver.memory,
        "in order": lambda: driver.in_order(own),
        "numbers": driver.numbers,
        "device": lambda: driver.code("cuCtxSynchronize"),
        "default": lambda: driver.launch(pointer()),
    }


class Other(threading.Thread):
    """Another thread that executes one action at a time while the first one waits."""

    def __init__(self, driver):
        super().__init__(daemon=True)
        self.driver, self.asked, self.answers = driver, queue.Queue(), queue.Queue()
        self.start()

    def run(self):
        self.driver.cuda.must("cuCtxSetCurrent", self.driver.context)
        can = wishes(self.driver, stream(self.driver.cuda), self.driver.event())
        for what in iter(self.asked.get, None):
            self.answers.put(can[what]())

    def let(self, what):
        self.asked.put(what)
        return self.answers.get(timeout=PATIENCE)


class Steps:
    def __init__(self):
        self.driver = Driver()
        self.lines = []
        self.other = Other(self.driver)
        self.idle = stream(self.driver.cuda)

    def say(self, *words):
        self.lines.append(" ".join(str(word) for word in words))

    def whole(self, mode, meanwhile):
        """Captures everything that captures allow, with fork and join, and runs the graph twice."""
        d, begin = self.driver, stream(self.driver.cuda)
        fork, join, memory = d.event(), d.event(), u64()
        code, kept = d.cuda.alloc(32)
        if code != 0:
            raise RuntimeError(f"cuMemAlloc answered {code}")
        who = f"{MODES[mode]}, whole, other: {meanwhile}:"
        self.say(who, "begin", d.code("cuStreamBeginCapture_v2", begin, mode))
        self.say(who, "launch", d.launch(begin))
        self.say(who, "fork", d.code("cuEventRecord", fork, begin), d.code("cuStreamWaitEvent", self.idle, fork, 0))
        self.say(who, "fill", d.code("cuMemsetD8Async", u64(kept), ctypes.c_ubyte(7), size_t(32), self.idle))
        self.say(who, "launch in the fork", d.launch(self.idle), d.status(self.idle))
        if meanwhile:
            self.say(who, "the other", self.other.let(meanwhile))
        self.say(who, "memory", d.code("cuMemAllocAsync", ctypes.byref(memory), size_t(3 * MIB), begin))
        if memory.value:
            self.say(who, "its release", d.code("cuMemFreeAsync", memory, begin))
        self.say(who, "join", d.code("cuEventRecord", join, self.idle), d.code("cuStreamWaitEvent", begin, join, 0))
        self.say(who, "launch many", sorted({d.launch(begin) for _ in range(30)}))
        code, graph = d.end(begin)
        self.say(who, "end", code, "a graph" if graph.value else "nothing")
        if graph.value:
            count, executable = size_t(), pointer()
            d.code("cuGraphGetNodes", graph, None, ctypes.byref(count))
            self.say(who, "nodes", count.value)
            self.say(who, "instantiate", d.code("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0)))
            for _ in range(2):
                held = (ctypes.c_ubyte * 32)()
                self.say(who, "run", d.code("cuGraphLaunch", executable, begin), d.code("cuStreamSynchronize", begin))
                d.cuda.must("cuMemcpyDtoH_v2", held, u64(kept), size_t(32))
                self.say(who, "content", sorted(set(held)))
            self.say(who, "destroy", d.code("cuGraphExecDestroy", executable), d.code("cuGraphDestroy", graph))
        # The streams must be usable again, whatever happened.
        self.say(who, "afterwards", d.launch(begin), d.code("cuStreamSynchronize", begin), d.launch(self.idle),
                 d.code("cuStreamSynchronize", self.idle))
        for event in (fork, join):
            d.code("cuEventDestroy_v2", event)
        d.cuda.free(kept)
        d.code("cuStreamDestroy_v2", begin)

    def asking(self, mode, flags):
        """Calls that a capture may forbid, made by the capturing thread itself, each in a capture of its own."""
        d = self.driver
        relaxed = ctypes.c_int(2)

        def exchanged():
            return [d.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(relaxed)), relaxed.value, d.memory(),
                    d.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(relaxed)), relaxed.value]

        calls = {
            "memory": lambda s, e: d.memory(),
            "its status": lambda s, e: d.code("cuStreamQuery", s),
            "its end": lambda s, e: d.code("cuStreamSynchronize", s),
            "an event of it": lambda s, e: [d.code("cuEventRecord", e, s), d.code("cuEventQuery", e)],
            "the end of an event of it": lambda s, e: [d.code("cuEventRecord", e, s), d.code("cuEventSynchronize", e)],
            "a launch in the default stream": lambda s, e: d.launch(pointer()),
            "the end of the device": lambda s, e: d.code("cuCtxSynchronize"),
            "the status of another": lambda s, e: d.code("cuStreamQuery", self.idle),
            "a launch elsewhere": lambda s, e: d.launch(self.idle),
            "a wait elsewhere for nothing": lambda s, e: d.code("cuStreamWaitEvent", self.idle, e, 0),
            "memory, relaxed": lambda s, e: exchanged(),
            "memory elsewhere, in order": lambda s, e: d.in_order(self.idle),
            "numbers": lambda s, e: d.numbers(),
        }
        for name, call in calls.items():
            own, event = stream(d.cuda, flags), d.event()
            who = f"{MODES[mode]}, {'non-blocking' if flags else 'blocking'}, {name}:"
            self.say(who, "begin", d.code("cuStreamBeginCapture_v2", own, mode), "launch", d.launch(own))
            self.say(who, call(own, event), "status", d.status(own))
            code, graph = d.end(own)
            self.say(who, "end", code, "a graph" if graph.value else "nothing")
            if graph.value:
                d.code("cuGraphDestroy", graph)
            self.say(who, "afterwards", d.launch(own), d.code("cuStreamSynchronize", own),
                     d.code("cuStreamSynchronize", self.idle))
            d.code("cuEventDestroy_v2", event)
            d.code("cuStreamDestroy_v2", own)

    def run(self):
        d = self.driver
        names = list(wishes(d, self.idle, None))
        for mode in range(len(MODES)):
            for meanwhile in [None, *names]:
                # The library can notice completed work.
                self.say("before", d.launch(self.idle), d.code("cuStreamSynchronize", self.idle))
                self.whole(mode, meanwhile)
            for flags in (NON_BLOCKING, 0):
                self.asking(mode, flags)
        self.say("at the end", d.code("cuCtxSynchronize"))
        return {"lines": self.lines}


def storm(seconds):
    """One thread captures and runs its graphs; another does everything that the mode allows it, without a pause."""
    d, found = Driver(), {}

    def other(mode, ended, counts):
        d.cuda.must("cuCtxSetCurrent", d.context)
        own, event = stream(d.cuda), d.event()
        can = wishes(d, own, event)
        # Calls that a global capture forbids every thread are left to the other modes.
        names = ["launch", "in order", "numbers"] if mode == 0 else ["launch", "record", "query", "memory", "in order", "numbers"]
        while not ended.is_set():
            for name in names:
                codes = can[name]()
                for code in codes if isinstance(codes, list) else [codes]:
                    if code not in (0, None):
                        counts[f"{name} {code}"] = counts.get(f"{name} {code}", 0) + 1
                counts["calls"] += 1
            if mode == 0:
                time.sleep(0.0002)
        counts["at the end"] = d.code("cuStreamSynchronize", own)

    for mode, name in enumerate(MODES):
        ended, counts, mine = threading.Event(), {"calls": 0}, {"captures": 0}
        thread = threading.Thread(target=other, args=(mode, ended, counts), daemon=True)
        own = stream(d.cuda)
        _, kept = d.cuda.alloc(32)
        thread.start()
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            codes = [d.code("cuStreamBeginCapture_v2", own, mode)]
            codes += [d.launch(own) for _ in range(3)]
            codes.append(d.code("cuMemsetD8Async", u64(kept), ctypes.c_ubyte(9), size_t(32), own))
            codes.append(d.status(own)[1] - 1)
            code, graph = d.end(own)
            codes.append(code)
            if graph.value:
                executable, held = pointer(), (ctypes.c_ubyte * 32)()
                codes.append(d.code("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0)))
                codes += [d.code("cuGraphLaunch", executable, own), d.code("cuStreamSynchronize", own)]
                d.cuda.must("cuMemcpyDtoH_v2", held, u64(kept), size_t(32))
                codes.append(0 if set(held) == {9} else -9)
                codes += [d.code("cuMemsetD8Async", u64(kept), ctypes.c_ubyte(0), size_t(32), own),
                          d.code("cuStreamSynchronize", own), d.code("cuGraphExecDestroy", executable),
                          d.code("cuGraphDestroy", graph)]
            for at, code in enumerate(codes):
                if code != 0:
                    mine[f"step {at}: {code}"] = mine.get(f"step {at}: {code}", 0) + 1
            mine["captures"] += 1
        ended.set()
        thread.join(PATIENCE)
        found[name] = {"capturing": mine, "other": counts}
    return {"modes": found}


def main(arguments):
    got = Steps().run() if arguments[0] == "steps" else storm(float(arguments[1]))
    tell({"libvgpu": libvgpu_mapped(), **got})


if __name__ == "__main__":
    main(sys.argv[1:])
