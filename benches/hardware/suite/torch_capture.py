"""PyTorch's graphs, captured in every mode while another thread works; real hardware only."""
from .share import ceiling
from .torch_memory import FIRST

ROUNDS = 10


def failed(one):
    """Faults in a mode, as texts that can be compared."""
    other = one["other"]
    return [word for word, so in (("an exception", "error" in one), ("a wrong result", one.get("wrong", 0) != 0),
                                  ("the other's exception", "error" in other),
                                  ("the other's wrong result", other.get("right") is False)) if so]


def graphs(suite, claims):
    argv = suite.python("torch_capture.py", ROUNDS)
    bare = claims.keep("bare", suite.run(argv, suite.environment(), FIRST).json())
    claims.that("without the library captures succeed in some mode (control)",
                not bare["libvgpu"] and any(not failed(one) for one in bare["modes"].values()), bare["modes"])
    for name, env in (("no limit", ceiling(suite, None)), ("SM limit 30", ceiling(suite, 30))):
        got = claims.keep(name, suite.run(argv, env, FIRST).json())
        claims.that(f"{name}: the library is in the process", got["libvgpu"], got["libvgpu"])
        for mode, one in got["modes"].items():
            more = sorted(set(failed(one)) - set(failed(bare["modes"][mode])))
            claims.that(f"{name}, {mode}: nothing fails that does not without the library", not more, [more, one])


CHECKS = [("capture torch", "torch.cuda.graph in every mode while another thread launches: whole, with right results", graphs)]
