//! The helper thread, the only thread that this library starts. It sees work complete while the program makes no
//! call, and passes the turn on to other members of the tenant.
//!
//! It starts when a launch finds the turn contended, outside all our locks, and ends by itself 1 s after the last
//! contention. Under a daemon it starts with the first context and stays. Otherwise a process that holds memory and
//! makes no call would not notice a restarted daemon and would be unknown to it. While idle it checks the daemon's
//! heartbeat once a second.
//!
//! All signals are blocked before the thread exists, and it holds no lock across a driver call. It calls the driver
//! only while an event marker is in flight, so not at the exit of a program that has waited for its work. A forked
//! child has no helper thread, and records that ([`reset_after_fork`]). If it cannot be started, only time is lost: a
//! waiting launch polls every 10 ms and takes the turn after the drain deadline.

use crate::ffi::clock;
use crate::ffi::search_order::next_after_us;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use shim_sys::futex;

/// Time until the next try after a failed start.
const START_RETRY_NS: u64 = 1_000_000_000;
/// Stack size: the driver's queries need some tens of KiB. The program's thread-local data on the stack come on top.
const STACK_BYTES: usize = 256 << 10;
/// How late the thread's timers may fire.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// State of the helper thread: 0 (none), `HELPER_AWAKE` or `HELPER_DOZES`.
static HELPER_STATE: AtomicU32 = AtomicU32::new(0);
/// The helper thread is awake and watches devices.
const HELPER_AWAKE: u32 = 1;
/// The thread exists only to search for the daemon, and sleeps until the next try or until it is started.
const HELPER_DOZES: u32 = 2;
/// After a failed creation of the helper thread: earliest time of the next try, in ns; 0: any time.
static START_NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Whether the helper thread is awake and need not be started.
///
/// # Cost
/// One load.
#[inline]
pub fn is_running() -> bool {
    HELPER_STATE.load(Relaxed) == HELPER_AWAKE
}

/// Whether the helper thread exists, awake or dozing, so that searches for the daemon are done.
///
/// # Cost
/// One load.
#[inline]
pub fn is_there() -> bool {
    HELPER_STATE.load(Relaxed) != 0
}

/// Records in a forked child that it has no helper thread.
pub fn reset_after_fork() {
    HELPER_STATE.store(0, Relaxed);
    START_NOT_BEFORE.store(0, Relaxed);
}

/// One look of the thread, and its wait for the next; it is given the time of the last contention. False: the thread
/// ends.
pub type Look = fn(&mut u64) -> bool;

/// Starts or wakes the thread, which repeats `look`, if it is not awake.
///
/// # Cost
/// One load if it is awake; some tens of microseconds if not.
pub fn start(look: Look) {
    if is_running() {
        return;
    }
    if HELPER_STATE.compare_exchange(HELPER_DOZES, HELPER_AWAKE, AcqRel, Relaxed).is_ok() {
        return futex::wake(&HELPER_STATE, u32::MAX);
    }
    if clock::now() < START_NOT_BEFORE.load(Relaxed)
        || HELPER_STATE.compare_exchange(0, HELPER_AWAKE, AcqRel, Relaxed).is_err()
    {
        return;
    }
    if create_thread(look).is_none() {
        START_NOT_BEFORE.store(clock::now() + START_RETRY_NS, Relaxed);
        HELPER_STATE.store(0, Release);
    }
}

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;
type AttributeInit = unsafe extern "C" fn(*mut libc::pthread_attr_t) -> c_int;
type SetDetachState = unsafe extern "C" fn(*mut libc::pthread_attr_t, c_int) -> c_int;
type SetStackSize = unsafe extern "C" fn(*mut libc::pthread_attr_t, usize) -> c_int;
type MinimumStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;

/// A function of the C library's threads. Looked up by name: before glibc 2.34 these are in libpthread, which this
/// library must not depend on and which every driver has loaded.
fn find(name: &CStr) -> Option<*mut c_void> {
    Some(next_after_us(name)).filter(|at| !at.is_null())
}

fn create_thread(look: Look) -> Option<()> {
    let (create, init) = (find(c"pthread_create")?, find(c"pthread_attr_init")?);
    let (state, size) = (find(c"pthread_attr_setdetachstate")?, find(c"pthread_attr_setstacksize")?);
    // Bytes that glibc takes from a thread's stack before it begins, mostly the thread-local data of all libraries.
    let least = find(c"__pthread_get_minstack");
    // SAFETY: the C library's own functions of these names, with these signatures; locals that it initialises. The
    // signal mask is this thread's and is restored; the C library keeps its own signals out of it.
    unsafe {
        let create = core::mem::transmute::<*mut c_void, PthreadCreate>(create);
        let init = core::mem::transmute::<*mut c_void, AttributeInit>(init);
        let state = core::mem::transmute::<*mut c_void, SetDetachState>(state);
        let size = core::mem::transmute::<*mut c_void, SetStackSize>(size);
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        if init(&raw mut attributes) != 0 {
            return None;
        }
        let taken =
            least.map_or(0, |least| core::mem::transmute::<*mut c_void, MinimumStack>(least)(&raw const attributes));
        let stack = STACK_BYTES.saturating_add(taken).next_multiple_of(4096);
        if state(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED) != 0 || size(&raw mut attributes, stack) != 0 {
            return None;
        }
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) != 0 {
            return None;
        }
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let made = create(&raw mut thread, &raw const attributes, run_helper, look as *mut c_void);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        (made == 0).then_some(())
    }
}

extern "C" fn run_helper(look: *mut c_void) -> *mut c_void {
    // SAFETY: `create_thread` passed a function of this type.
    let look = unsafe { core::mem::transmute::<*mut c_void, Look>(look) };
    // A panic ends here, as in every hook: none is expected, and none may unwind into the C library.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: both affect this thread only.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS);
            libc::prctl(libc::PR_SET_NAME, c"vgpu-turn".as_ptr());
        }
        let mut last = clock::now();
        while look(&mut last) {}
    });
    HELPER_STATE.store(0, Release);
    core::ptr::null_mut()
}

/// Sleeps until that time or until the helper thread is started. True: it was started.
pub fn doze_until(moment: u64) -> bool {
    if HELPER_STATE.compare_exchange(HELPER_AWAKE, HELPER_DOZES, AcqRel, Relaxed).is_ok() {
        futex::wait(&HELPER_STATE, HELPER_DOZES, moment, u32::MAX);
    }
    HELPER_STATE.compare_exchange(HELPER_DOZES, HELPER_AWAKE, AcqRel, Relaxed).is_err()
}
