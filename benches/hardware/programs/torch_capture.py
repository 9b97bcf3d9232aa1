"""PyTorch captures graphs while another thread works: in every mode the graph is complete and computes the right
result.

    torch_capture.py ROUNDS

The result is one line of JSON.
"""
import sys
import threading
import time
import traceback

from cuda import libvgpu_mapped, tell

import torch

MODES = ("global", "thread_local", "relaxed")
SIZE = 1 << 20
PATIENCE = 60


def busy(mode, ended, counts):
    """Actions of another thread during a capture of that mode; none of them allocates new memory."""
    try:
        own = torch.cuda.Stream()
        with torch.cuda.stream(own):
            kept = torch.zeros(SIZE, device="cuda")
            kept.add_(1)
            own.synchronize()
            counts["ready"].set()
            while not ended.is_set():
                kept.add_(1)
                counts["launches"] += 1
                if mode != "global":
                    own.synchronize()
                else:
                    time.sleep(0.0005)
            counts["ended"].wait(PATIENCE)
            own.synchronize()
            counts["right"] = bool((kept == counts["launches"] + 1).all().item())
    except Exception:  # noqa: BLE001
        counts["error"] = traceback.format_exc(limit=2)[-300:]
        counts["ready"].set()


def captured(mode, rounds):
    source = torch.arange(SIZE, device="cuda", dtype=torch.float32)
    out = torch.zeros(SIZE, device="cuda")
    wrong = 0
    for _ in range(rounds):
        out.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            out.copy_(source)
            for _ in range(20):
                out.add_(1)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        wrong += int(not torch.equal(out, source + 20))
        del graph
    return wrong


def one(mode, rounds):
    ended, counts = threading.Event(), {"launches": 0, "ready": threading.Event(), "ended": threading.Event()}
    # Everything lazy is done: code is loaded, memory is cached.
    captured(mode, 1)
    thread = threading.Thread(target=busy, args=(mode, ended, counts), daemon=True)
    thread.start()
    counts["ready"].wait(PATIENCE)
    found = {"rounds": rounds}
    try:
        found["wrong"] = captured(mode, rounds)
    except Exception:  # noqa: BLE001
        found["error"] = traceback.format_exc(limit=2)[-400:]
    ended.set()
    counts["ended"].set()
    thread.join(PATIENCE)
    found["other"] = {key: counts[key] for key in ("launches", "right", "error") if key in counts}
    return found


def main(arguments):
    rounds = int(arguments[0])
    torch.cuda.init()
    tell({"libvgpu": libvgpu_mapped(), "torch": torch.__version__, "modes": {mode: one(mode, rounds) for mode in MODES}})


if __name__ == "__main__":
    main(sys.argv[1:])
