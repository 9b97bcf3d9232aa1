"""A stand-in for PyTorch over the driver's interface, for the suite's own tests: the real one does not run on a
simulated device.

It has the calls that programs/torch_*.py make, with PyTorch's names and shapes, so that those programs can be tried. It
computes nothing: a product takes PRODUCT_NS of the device, an operation OPERATION_NS, and comparisons return true. The
bundle does not contain it.
"""
import contextlib
import ctypes
import os
import sys
import threading
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs"))
import kernels  # noqa: E402
from cuda import Cuda, pointer  # noqa: E402

__version__ = "stand-in"
float32 = "float32"
PRODUCT_NS = 300_000
OPERATION_NS = 5_000
MODES = {"global": 0, "thread_local": 1, "relaxed": 2}

_local = threading.local()


class _Driver:
    one = None

    def __init__(self):
        self.cuda = Cuda()
        self.function, _ = kernels.spin_function(self.cuda)
        self.context = pointer()
        self.cuda.must("cuCtxGetCurrent", ctypes.byref(self.context))


def _driver():
    if _Driver.one is None:
        _Driver.one = _Driver()
    # As in the real runtime, every thread has the device's context.
    _Driver.one.cuda.must("cuCtxSetCurrent", _Driver.one.context)
    return _Driver.one


def _run(ns):
    d = _driver()
    kernels.Launch(d.cuda, d.function, _now(), ns, 0, 0)()


def _now():
    return getattr(_local, "stream", None) or pointer()


class Tensor:
    def _operation(self, *_):
        _run(OPERATION_NS)
        return self

    fill_ = zero_ = add_ = copy_ = all = __add__ = __eq__ = _operation
    __hash__ = None

    def item(self):
        return True


def _tensor(*_, **options):
    assert options.get("device") == "cuda", options
    return Tensor()


empty = zeros = randn = arange = _tensor


def mm(_first, _second, out):
    assert isinstance(out, Tensor)
    _run(PRODUCT_NS)
    return out


def equal(*_):
    return True


class Stream:
    def __init__(self, made=None):
        self.made = made or kernels.stream(_driver().cuda)
        self.cuda_stream = self.made.value or 0

    def synchronize(self):
        _driver().cuda.must("cuStreamSynchronize", self.made)


@contextlib.contextmanager
def _within(stream):
    before, _local.stream = getattr(_local, "stream", None), stream.made
    try:
        yield
    finally:
        _local.stream = before


class CUDAGraph:
    executable = None

    def replay(self):
        _driver().cuda.must("cuGraphLaunch", self.executable, _now())


@contextlib.contextmanager
def _graph(graph, capture_error_mode="global"):
    d, own, made = _driver(), Stream(), pointer()
    d.cuda.sync()
    with _within(own):
        d.cuda.must("cuStreamBeginCapture_v2", own.made, MODES[capture_error_mode])
        yield
        d.cuda.must("cuStreamEndCapture", own.made, ctypes.byref(made))
    graph.executable = pointer()
    d.cuda.must("cuGraphInstantiateWithFlags", ctypes.byref(graph.executable), made, ctypes.c_ulonglong(0))


cuda = types.SimpleNamespace(
    init=_driver, synchronize=lambda: _driver().cuda.sync(), Stream=Stream, stream=_within, CUDAGraph=CUDAGraph, graph=_graph,
    current_stream=lambda: Stream(_now()))
