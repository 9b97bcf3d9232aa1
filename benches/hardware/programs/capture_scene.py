"""Objects with which a rule of stream capture is tried: streams, events and memory of its own, destroyed afterwards.
Also the list of rules, which capture_rules.py and capture_calls.py fill."""
import ctypes
import threading

from cuda import pointer, u64
from kernels import NON_BLOCKING

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}
LEGACY = pointer(1)
PER_THREAD = pointer(2)
SIZE = 4096
RULES = {}


def rule(name):
    def keep(body):
        RULES[name] = body
        return body
    return keep


class Scene:
    """Objects of one rule; `over` destroys those that are left."""

    def __init__(self, driver):
        self.d, self.streams, self.events, self.left = driver, [], [], []

    def code(self, name, *arguments):
        try:
            return self.d.code(name, *arguments)
        except AttributeError:
            return "missing"

    def stream(self, flags=NON_BLOCKING):
        made = pointer()
        self.d.cuda.must("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(flags))
        self.streams.append(made)
        return made

    def event(self, flags=2):
        made = pointer()
        self.d.cuda.must("cuEventCreate", ctypes.byref(made), ctypes.c_uint(flags))
        self.events.append(made)
        return made

    def memory(self, size=SIZE):
        code, address = self.d.cuda.alloc(size)
        if code != 0:
            raise RuntimeError(f"cuMemAlloc answered {code}")
        self.left.append(lambda: self.d.cuda.free(address))
        return u64(address)

    def begin(self, on, mode):
        return self.code("cuStreamBeginCapture_v2", on, mode)

    def begun(self, on, mode):
        code = self.begin(on, mode)
        if code != 0:
            raise RuntimeError(f"cuStreamBeginCapture answered {code}")

    def end(self, on):
        code, graph = self.d.end(on)
        if graph.value:
            self.left.append(lambda: self.code("cuGraphDestroy", graph))
        return [code, bool(graph.value)]

    def state(self, on):
        return self.d.status(on)

    def record(self, event, on):
        return self.code("cuEventRecord", event, on)

    def wait(self, on, event, flags=0):
        return self.code("cuStreamWaitEvent", on, event, ctypes.c_uint(flags))

    def launch(self, on):
        return self.d.launch(on, 1000)

    def elsewhere(self, body):
        """Runs on another thread, in the same context."""
        found = []

        def run():
            self.d.cuda.must("cuCtxSetCurrent", self.d.context)
            found.append(body())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        return found[0] if found else "no answer"

    def over(self):
        for on in [*self.streams, PER_THREAD]:
            if self.d.status(on)[1] not in (0, -1):
                self.d.end(on)
        self.code("cuCtxSynchronize")
        for body in reversed(self.left):
            body()
        for event in self.events:
            self.code("cuEventDestroy_v2", event)
        for on in self.streams:
            self.code("cuStreamDestroy_v2", on)
