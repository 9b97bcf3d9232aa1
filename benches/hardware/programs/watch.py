"""NVML's utilisation of the device until the input ends: a late and coarse cross-check of the kernels' own clock.

    watch.py        {"watching": true} when it begins, one line with the samples when its input ends:
                    pairs of this machine's monotonic clock in seconds, and percent
"""
import ctypes
import sys
import threading
import time

from cuda import Nvml, Refused, libvgpu_mapped, tell


class Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def main():
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    nvml = Nvml()
    seen, errors = [], []
    tell({"watching": True})
    while not ended.wait(0.1):
        one = Utilisation()
        try:
            nvml.must("nvmlDeviceGetUtilizationRates", nvml.device, ctypes.byref(one))
            seen.append((round(time.monotonic(), 2), one.gpu))
        except Refused as error:
            errors.append(str(error))
    tell({"libvgpu": libvgpu_mapped(), "samples": seen, "errors": errors[:1]})


if __name__ == "__main__":
    main()
