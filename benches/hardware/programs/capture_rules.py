"""The rules of stream capture, tried on the present driver: the codes and states for each rule.

    capture_rules.py [RULE...]      all rules, or these: {"begun": RULE} and {"rule": RULE, "seen": ...} for each, a line each

The rules are those that the simulated device claims (docs/simulated-device.md, "Stream capture"). Its own answers are
in model/capture-rules.json. A state is 0 none, 1 active, 2 invalidated; an end is its code and whether there was a
graph. Every rule has streams of its own, and ends its captures.
"""
import ctypes
import sys

import capture_calls  # noqa: F401  (its rules join the list)
from capture_scene import GLOBAL, LEGACY, MODES, PER_THREAD, RELAXED, RULES, SIZE, Scene, rule
from captures import Driver
from cuda import pointer, size_t, tell, u64

CALLBACK = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, pointer)


@rule("the legacy stream does not capture")
def _(s):
    return [s.begin(pointer(), GLOBAL), s.begin(LEGACY, GLOBAL), s.begin(LEGACY, RELAXED)]


@rule("a mode that is none")
def _(s):
    return s.begin(s.stream(), 3)


@rule("the per-thread stream captures")
def _(s):
    return [s.begin(PER_THREAD, GLOBAL), s.state(PER_THREAD), s.end(PER_THREAD)]


@rule("an end without a begin")
def _(s):
    return s.end(s.stream())


@rule("a second begin")
def _(s):
    on = s.stream()
    s.begun(on, GLOBAL)
    return [s.begin(on, GLOBAL), s.begin(on, RELAXED), s.state(on), s.end(on)]


@rule("an end without a place for the graph")
def _(s):
    on = s.stream()
    s.begun(on, GLOBAL)
    return [s.code("cuStreamEndCapture", on, None), s.state(on), s.end(on)]


@rule("an end in a forked stream, then in the right one")
def _(s):
    on, fork, event = s.stream(), s.stream(), s.event()
    s.begun(on, GLOBAL)
    return [s.record(event, on), s.wait(fork, event), s.end(fork), s.state(on), s.end(on)]


for _name, _mode in MODES.items():
    @rule(f"an end by another thread, then by the right one, {_name}")
    def _(s, mode=_mode):
        on = s.stream()
        s.begun(on, mode)
        return [s.elsewhere(lambda: s.end(on)), s.state(on), s.end(on)]


@rule("a fork that comes back")
def _(s):
    on, fork, out, back = s.stream(), s.stream(), s.event(), s.event()
    s.begun(on, GLOBAL)
    return [s.record(out, on), s.wait(fork, out), s.launch(fork), s.state(fork), s.record(back, fork), s.wait(on, back), s.end(on)]


@rule("a fork that does not come back")
def _(s):
    on, fork, out = s.stream(), s.stream(), s.event()
    s.begun(on, GLOBAL)
    return [s.record(out, on), s.wait(fork, out), s.launch(fork), s.end(on), s.state(fork)]


@rule("a fork without work that does not come back")
def _(s):
    on, fork, out = s.stream(), s.stream(), s.event()
    s.begun(on, GLOBAL)
    return [s.record(out, on), s.wait(fork, out), s.end(on), s.state(fork)]


@rule("work after the way back")
def _(s):
    on, fork, out, back = s.stream(), s.stream(), s.event(), s.event()
    s.begun(on, GLOBAL)
    return [s.record(out, on), s.wait(fork, out), s.launch(fork), s.record(back, fork), s.wait(on, back), s.launch(fork), s.end(on)]


@rule("a fork to the legacy stream")
def _(s):
    on, out = s.stream(), s.event()
    s.begun(on, RELAXED)
    return [s.record(out, on), s.wait(pointer(), out), s.state(on), s.end(on)]


@rule("two captures do not become one")
def _(s):
    one, two, event = s.stream(), s.stream(), s.event()
    s.begun(one, RELAXED)
    s.begun(two, RELAXED)
    return [s.record(event, one), s.wait(two, event), s.state(one), s.state(two), s.end(one), s.end(two)]


@rule("a wait in a capture for an event from before it")
def _(s):
    on, event = s.stream(), s.event()
    return [s.record(event, on), s.begin(on, RELAXED), s.wait(on, event), s.state(on), s.end(on)]


@rule("a wait in a capture for an event of one that is over")
def _(s):
    one, two, event = s.stream(), s.stream(), s.event()
    s.begun(one, RELAXED)
    return [s.record(event, one), s.end(one), s.begin(two, RELAXED), s.wait(two, event), s.state(two), s.end(two)]


@rule("an event of a capture that is over, outside")
def _(s):
    on, event = s.stream(), s.event()
    s.begun(on, RELAXED)
    return [s.record(event, on), s.end(on), s.code("cuEventQuery", event), s.wait(on, event), s.record(event, on),
            s.code("cuEventSynchronize", event), s.wait(on, event)]


@rule("work from before a begin")
def _(s):
    on, count = s.stream(), size_t()
    launched = s.d.launch(on, 5_000_000)
    s.begun(on, GLOBAL)
    code, graph = s.d.end(on)
    got = [launched, code, s.code("cuGraphGetNodes", graph, None, ctypes.byref(count)), count.value]
    s.code("cuGraphDestroy", graph)
    return got


QUESTIONS = ("the status of its stream", "the end of its stream", "the status of its event", "the end of its event",
             "the time to its event", "the end of its context")


def asked(s):
    """Queries that are forbidden on a capturing stream or a captured event."""
    other, ms = s.event(0), ctypes.c_float()
    timed = s.event(0)
    s.record(other, s.stream())
    s.code("cuCtxSynchronize")
    return dict(zip(QUESTIONS, (
        lambda on: s.code("cuStreamQuery", on),
        lambda on: s.code("cuStreamSynchronize", on),
        lambda on: [s.record(timed, on), s.code("cuEventQuery", timed)],
        lambda on: [s.record(timed, on), s.code("cuEventSynchronize", timed)],
        lambda on: [s.record(timed, on), s.code("cuEventElapsedTime", ctypes.byref(ms), other, timed)],
        lambda on: s.code("cuCtxSynchronize"),
    )))


for _name, _mode in MODES.items():
    @rule(f"what a capture is not asked, {_name}")
    def _(s, mode=_mode):
        found = {}
        for name in QUESTIONS:
            # New events for each question, created before the capture: an event stays captured until it is recorded
            # again.
            on, ask = s.stream(), asked(s)[name]
            s.begun(on, mode)
            found[name] = [ask(on), s.state(on), s.end(on)]
        return found

    @rule(f"the same with the thread relaxed, {_name}")
    def _(s, mode=_mode):
        found = {}
        for name in QUESTIONS:
            on, own, ask = s.stream(), ctypes.c_int(RELAXED), asked(s)[name]
            s.begun(on, mode)
            s.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(own))
            found[name] = [ask(on), s.state(on)]
            s.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(own))
            found[name].append(s.end(on))
        return found

    @rule(f"the legacy stream beside a blocking capture, {_name}")
    def _(s, mode=_mode):
        event, at, word = s.event(), s.memory(), u64()
        uses = {
            "a launch": lambda: s.launch(pointer()),
            "a copy to the host": lambda: s.code("cuMemcpyDtoH_v2", ctypes.byref(word), at, size_t(8)),
            "a fill": lambda: s.code("cuMemsetD8_v2", at, ctypes.c_ubyte(0), size_t(8)),
            "a record": lambda: s.record(event, LEGACY),
            "its status": lambda: s.code("cuStreamQuery", pointer()),
            "its end": lambda: s.code("cuStreamSynchronize", pointer()),
            "a wait": lambda: s.wait(pointer(), event),
            "whether it captures": lambda: s.state(pointer()),
            "a launch elsewhere": lambda: s.launch(free),
        }
        free, found = s.stream(), {}
        for name, use in uses.items():
            on = s.stream(0)
            s.begun(on, mode)
            found[name] = [use(), s.state(on), s.end(on)]
        return found


@rule("the legacy stream beside a capture that does not block")
def _(s):
    on, at, word = s.stream(), s.memory(), u64()
    s.begun(on, RELAXED)
    return [s.launch(pointer()), s.code("cuMemcpyDtoH_v2", ctypes.byref(word), at, size_t(8)), s.state(pointer()),
            s.state(on), s.end(on)]


@rule("external records and waits")
def _(s):
    on, one, two = s.stream(), s.event(), s.event()
    outside = [s.code("cuEventRecordWithFlags", one, on, 1), s.wait(on, one, 1)]
    s.begun(on, RELAXED)
    return outside + [s.wait(on, one, 1), s.code("cuEventRecordWithFlags", two, on, 1), s.code("cuEventQuery", two), s.end(on)]


@rule("what is invalid stays so until its end")
def _(s):
    on, fork, third, event, at = s.stream(), s.stream(), s.stream(), s.event(), s.memory()
    s.begun(on, RELAXED)
    found = [s.record(event, on), s.wait(fork, event), s.code("cuStreamQuery", fork)]
    for each in (on, fork):
        found.append([s.launch(each), s.code("cuMemsetD8Async", at, ctypes.c_ubyte(0), size_t(4), each),
                      s.record(event, each), s.code("cuStreamQuery", each), s.state(each)])
    return found + [s.wait(third, event), s.state(third), s.end(on), s.launch(on), s.launch(fork)]


@rule("what is not captured")
def _(s):
    managed, never = u64(), CALLBACK(lambda *_: None)
    s.d.cuda.must("cuMemAllocManaged", ctypes.byref(managed), size_t(SIZE), ctypes.c_uint(1))
    s.left.append(lambda: s.d.cuda.free(managed.value))
    graph, executable = pointer(), pointer()
    s.d.cuda.must("cuGraphCreate", ctypes.byref(graph), 0)
    s.d.cuda.must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0))
    s.left.append(lambda: (s.code("cuGraphExecDestroy", executable), s.code("cuGraphDestroy", graph)))
    s.left.append(lambda: never)
    uses = {
        "a callback": lambda on: s.code("cuStreamAddCallback", on, never, None, ctypes.c_uint(0)),
        "the attachment of managed memory": lambda on: s.code("cuStreamAttachMemAsync", on, managed, size_t(0), ctypes.c_uint(1)),
        "a prefetch": lambda on: s.code("cuMemPrefetchAsync", managed, size_t(SIZE), ctypes.c_int(s.d.cuda.device), on),
        "the launch of a graph": lambda on: s.code("cuGraphLaunch", executable, on),
    }
    found = {}
    for name, use in uses.items():
        on = s.stream()
        s.begun(on, RELAXED)
        found[name] = [use(on), s.state(on), s.end(on)]
    return found


@rule("memory in stream order")
def _(s):
    on, plain, one, two = s.stream(), s.memory(), u64(), u64()
    s.begun(on, GLOBAL)
    return [s.code("cuMemAllocAsync", ctypes.byref(one), size_t(1 << 20), on), s.code("cuMemFreeAsync", one, on),
            s.code("cuMemAllocAsync", ctypes.byref(two), size_t(1 << 20), on), one.value == two.value,
            s.code("cuMemFreeAsync", plain, on), s.state(on), s.end(on)]


@rule("a forked stream that is destroyed")
def _(s):
    on, fork, event = s.stream(), s.stream(), s.event()
    s.begun(on, GLOBAL)
    found = [s.record(event, on), s.wait(fork, event), s.code("cuStreamDestroy_v2", fork)]
    s.streams.remove(fork)
    return found + [s.state(on), s.end(on)]


@rule("a capturing stream that is destroyed")
def _(s):
    on = s.stream()
    s.begun(on, GLOBAL)
    code = s.code("cuStreamDestroy_v2", on)
    s.streams.remove(on)
    return [code, s.d.memory()]


@rule("a graph that is being captured is made executable")
def _(s):
    if not hasattr(s.d.cuda.lib, "cuStreamBeginCaptureToGraph"):
        return "missing"
    on, graph, executable = s.stream(), pointer(), pointer()
    s.d.cuda.must("cuGraphCreate", ctypes.byref(graph), 0)
    s.left.append(lambda: s.code("cuGraphDestroy", graph))
    begun = s.code("cuStreamBeginCaptureToGraph", on, graph, None, None, size_t(0), GLOBAL)
    made = s.code("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0))
    code, _ = s.d.end(on)
    if executable.value:
        s.code("cuGraphExecDestroy", executable)
    return [begun, made, code]


def main(wanted):
    driver = Driver()
    for name, body in RULES.items():
        if wanted and name not in wanted:
            continue
        tell({"begun": name})
        scene = Scene(driver)
        try:
            seen = body(scene)
        except Exception as error:  # noqa: BLE001  (a rule that cannot be asked is told, and the next is asked)
            seen = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        scene.over()
        tell({"rule": name, "seen": seen})
    tell({"rules": len(RULES), "end": driver.code("cuCtxSynchronize")})


if __name__ == "__main__":
    main(sys.argv[1:])
