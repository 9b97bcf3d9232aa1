//! One program that starts in every way that languages offer: 64 threads at once, Python's subinterpreters, a child
//! forked before the first call and one forked after it.
//!
//! Not here: trees of processes, and forks while threads allocate (concurrency.rs).

use vgpu_tests::lab::{charged, short};
use vgpu_tests::{GIB, Lab, MIB, Member};

/// Each beginner opens the driver, initialises and allocates by itself, as libraries do that do not know each other.
const BEGINNERS_PROGRAM: &str = r#"
import ctypes, os, sys, threading
try: import _interpreters as inner
except ImportError: import _xxsubinterpreters as inner
BEGIN = '''
import ctypes
def begin():
    cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
    codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
    if any(codes): raise SystemExit(codes)
    return cuda
def allocate(cuda):
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)), pointer
'''
exec(BEGIN)
def in_child(work):
    child = os.fork()
    if child == 0: os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print('before', in_child(lambda: allocate(begin())[0]), flush=True)
together, granted, strange = threading.Barrier(64), [], []
def run():
    together.wait()
    cuda = begin()
    while True:
        code, pointer = allocate(cuda)
        if code: break
        granted.append(pointer)
    if code != 2: strange.append(code)
threads = [threading.Thread(target=run) for _ in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('threads', len(granted), len(strange), flush=True)
sys.stdin.readline()
SCRIPT = BEGIN + 'print(WORD, allocate(begin())[0], flush=True)'
one, two = inner.create(), inner.create()
inner.run_string(one, 'WORD = "full"' + SCRIPT)
begin().cuMemFree_v2(granted.pop())
inner.run_string(two, 'WORD = "one"' + SCRIPT)
inner.run_string(one, 'WORD = "two"' + SCRIPT)
for interpreter in one, two: inner.destroy(interpreter)
print('after', in_child(lambda: allocate(ctypes.CDLL('libcuda.so.1'))[0]), flush=True)
sys.stdin.readline()
"#;

/// Client: CPython
#[test]
fn sixty_four_threads_subinterpreters_and_forks_of_one_program_share_one_limit() {
    const SHARED_LIMIT: u64 = 8 * GIB;
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let mut program = Member::start_silent(lab.command("python3").args(["-c", BEGINNERS_PROGRAM]));
    assert_eq!(program.line(), "before 0", "a child that was forked before the first call; {}", program.errors());
    let line = program.line();
    let numbers: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let device = lab.device(0);
    assert_eq!(numbers, [lab.process(0, program.pid).allocations, 0], "{line}; {}", short(&device));
    assert!(charged(&device) <= SHARED_LIMIT && charged(&device) > SHARED_LIMIT - 64 * MIB, "{}", short(&device));
    let mut observer = lab.member();
    observer.ok("nvinit");
    assert_eq!(observer.ok("nvmem 0").number(2), charged(&device), "in the ledger too");
    program.tell("");
    let said: Vec<String> = (0..4).map(|_| program.line()).collect();
    // The driver gives nothing to a child that was forked after its first call.
    assert_eq!(said[..3], ["full 2", "one 0", "two 2"], "{}", program.errors());
    assert_eq!(said[3], "after 3");
    assert_eq!(observer.ok("nvmem 0").number(2), charged(&lab.device(0)), "the child changed nothing");
    assert!(program.finish().success());
}
