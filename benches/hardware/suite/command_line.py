"""The command line, as a person would use it to put a program under a limit."""
import os

from .memory import LIMIT
from .runner import NotPossible


def program(suite):
    if not suite.bundle.vgpu:
        raise NotPossible("vgpu is not beside the library")
    return suite.bundle.vgpu


def run_under_a_limit(suite, claims):
    """`vgpu run` brings the library and the limit into a program; without it the program has neither."""
    argv = suite.python("quota.py", "facts")
    env = suite.environment(VGPU_STATE_DIR=suite.state, VGPU_LIBRARY=suite.bundle.library)
    bare = claims.keep("bare", suite.run(argv, env).json())
    claims.that("without vgpu run: no library, more memory (control)",
                not bare["libvgpu"] and bare["cuda_total"] > LIMIT, [bare["libvgpu"], bare["cuda_total"]])
    got = claims.keep("limited", suite.run([program(suite), "run", "--memory-limit", "4GiB", "--", *argv], env).json())
    claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
    claims.that("the total is the limit", got["cuda_total"] == LIMIT, got["cuda_total"])


def doctor(suite, claims):
    """`vgpu doctor` knows this driver; its output is stored."""
    # Under a limit, as a program would be: without the library in its child processes the doctor would rightly
    # complain.
    env = suite.environment(VGPU_STATE_DIR=suite.state, VGPU_LIBRARY=suite.bundle.library)
    finished = suite.run([program(suite), "run", "--memory-limit", "4GiB", "--", program(suite), "doctor"], env)
    with open(os.path.join(suite.out, "doctor.txt"), "w", encoding="utf-8") as out:
        out.write(finished.out + finished.err)
    claims.keep("said", (finished.out + finished.err)[-3000:])
    claims.that("it finds nothing wrong", finished.rc == 0, finished.rc)
    claims.that("it names the driver", "libcuda.so.1" in finished.out, finished.out[-500:])


CHECKS = [
    ("command line run", "vgpu run puts a program under a limit", run_under_a_limit),
    ("command line doctor", "vgpu doctor finds nothing wrong here", doctor),
]
