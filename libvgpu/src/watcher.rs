//! The one thread of ours, while members of a tenant wait for each other: it sees work complete when the program makes no
//! call, and passes the turn on.
//!
//! It begins when a launch finds the turn contended, outside every lock of ours, and ends by itself a second after the
//! last contention. Beside a daemon it begins with the first context and stays: a process that holds memory and makes no call
//! would not notice that another daemon runs, and would be unknown to it. It then looks at the beat once a second. It takes no signal (all are blocked before it exists), holds no lock across a call of the driver, and
//! asks the driver only while something of ours is in flight: nothing, when a program that has waited for its work ends.
//! A forked child has none, and knows it ([`reborn`]). Where it cannot be started, nothing is lost but time: who waits
//! looks by itself every 10 ms, and takes the turn after the drain's allowance.

use crate::clock;
use crate::daemon::renew;
use crate::device;
use crate::lookup::next_after_us;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use shim_sys::futex;

/// So long after the last contention it ends.
const LINGER_NS: u64 = 1_000_000_000;
/// After a failure to start it, the next try.
const RETRY_NS: u64 = 1_000_000_000;
/// Its stack: the driver's queries need some tens of KiB. Beside what the program's thread-local data take of it.
const STACK: usize = 256 << 10;
/// With several devices it can wait at one bell only: the others are looked at so often.
const SEVERAL_NS: u64 = 1_000_000;
/// And so often while there is nothing to look at but gates that are open.
const OPEN_NS: u64 = 10_000_000;
/// Its timers may be so late.
const SLACK_NS: libc::c_ulong = 1_000;

/// One of the three below.
static RUNS: AtomicU32 = AtomicU32::new(0);
const AWAKE: u32 = 1;
/// It is there for what is looked for only, and sleeps until that is due or until it is started.
const DOZES: u32 = 2;
/// Not to be started before this moment.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Whether it runs, and need not be started now.
///
/// # Cost
/// One load.
#[inline]
pub fn runs() -> bool {
    RUNS.load(Relaxed) == AWAKE
}

/// Whether there is one, that looks for what is looked for.
///
/// # Cost
/// One load.
#[inline]
pub fn is_there() -> bool {
    RUNS.load(Relaxed) != 0
}

/// In a forked child there is none.
pub fn reborn() {
    RUNS.store(0, Relaxed);
    NOT_BEFORE.store(0, Relaxed);
}

/// Starts it, if it does not run.
///
/// # Cost
/// One load if it runs; some tens of microseconds if not.
pub fn start() {
    if runs() {
        return;
    }
    if RUNS.compare_exchange(DOZES, AWAKE, AcqRel, Relaxed).is_ok() {
        return futex::wake(&RUNS, u32::MAX);
    }
    if clock::now() < NOT_BEFORE.load(Relaxed) || RUNS.compare_exchange(0, AWAKE, AcqRel, Relaxed).is_err() {
        return;
    }
    if create().is_none() {
        NOT_BEFORE.store(clock::now() + RETRY_NS, Relaxed);
        RUNS.store(0, Release);
    }
}

/// Starts it where a daemon speaks for this process, which holds memory from now on.
#[cold]
pub fn start_beside_daemon() {
    if renew::due().is_some() && !is_there() {
        start();
    }
}

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;
type Init = unsafe extern "C" fn(*mut libc::pthread_attr_t) -> c_int;
type SetState = unsafe extern "C" fn(*mut libc::pthread_attr_t, c_int) -> c_int;
type SetSize = unsafe extern "C" fn(*mut libc::pthread_attr_t, usize) -> c_int;
type Least = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;

/// A function of the C library's threads. By name, since before glibc 2.34 they are in a library that this one must not
/// need, and that every driver has loaded.
fn find(name: &CStr) -> Option<*mut c_void> {
    Some(next_after_us(name)).filter(|at| !at.is_null())
}

fn create() -> Option<()> {
    let (create, init) = (find(c"pthread_create")?, find(c"pthread_attr_init")?);
    let (state, size) = (find(c"pthread_attr_setdetachstate")?, find(c"pthread_attr_setstacksize")?);
    // What a stack holds before the thread begins, thread-local data of all libraries above all: glibc puts them there.
    let least = find(c"__pthread_get_minstack");
    // SAFETY: the C library's own functions of these names, with these signatures; locals that it initialises. The mask is
    // this thread's, and what it was comes back; the C library keeps its own signals out of it.
    unsafe {
        let create = core::mem::transmute::<*mut c_void, Create>(create);
        let init = core::mem::transmute::<*mut c_void, Init>(init);
        let state = core::mem::transmute::<*mut c_void, SetState>(state);
        let size = core::mem::transmute::<*mut c_void, SetSize>(size);
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        if init(&raw mut attributes) != 0 {
            return None;
        }
        let taken = least.map_or(0, |least| core::mem::transmute::<*mut c_void, Least>(least)(&raw const attributes));
        let stack = STACK.saturating_add(taken).next_multiple_of(4096);
        if state(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED) != 0 || size(&raw mut attributes, stack) != 0 {
            return None;
        }
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) != 0 {
            return None;
        }
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let made = create(&raw mut thread, &raw const attributes, watch, core::ptr::null_mut());
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        (made == 0).then_some(())
    }
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    // A panic ends here, as in every hook: there is no path to one, and none may cross the C library.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: both concern this thread alone.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS);
            libc::prctl(libc::PR_SET_NAME, c"vgpu-turn".as_ptr());
        }
        let mut last = clock::now();
        while look(&mut last) {}
    });
    RUNS.store(0, Release);
    core::ptr::null_mut()
}

/// One look at every device, and a wait. False: the turn has not been contended for long.
fn look(last: &mut u64) -> bool {
    let now = clock::now();
    let (mut next, mut bells, mut bell) = (now.saturating_add(LINGER_NS), 0, None);
    // All that is looked at is a gate that is open, which is no hurry: those looks are far off.
    let mut is_open = false;
    renew::tend();
    for device in device::all() {
        let Some(governor) = &device.governor else { continue };
        let Ok(joined) = device.ledger.joined() else { continue };
        let turn = joined.member().turn();
        let heard = turn.bell().load(SeqCst);
        bells += 1;
        let look = governor.attend(joined);
        let (word, heard, bits) = match governor.daemon_word() {
            Some((word, sequence)) => (word, sequence, u32::MAX),
            None => (turn.bell(), heard, turn.bit()),
        };
        if let Some(look) = look {
            (*last, is_open) = (now, true);
            next = next.min(look);
            bell = Some((word, heard, bits));
        } else if bell.is_none() {
            bell = Some((word, heard, bits));
        }
    }
    let end = last.saturating_add(LINGER_NS);
    let Some((word, heard, bits)) = bell else { return false };
    if now >= end {
        loop {
            let Some(due) = renew::due() else { return false };
            let now = clock::now();
            let is_started = doze(due.clamp(now.saturating_add(OPEN_NS), now.saturating_add(LINGER_NS)));
            if is_started || renew::notices_loss() {
                return true;
            }
        }
    }
    let several = if is_open && next > now.saturating_add(LINGER_NS / 2) { OPEN_NS } else { SEVERAL_NS };
    let most = if bells > 1 { now.saturating_add(several) } else { end };
    futex::wait(word, heard, next.min(end).min(most), bits);
    true
}

/// Sleeps until that moment, or until it is started. True: it was started.
fn doze(moment: u64) -> bool {
    if RUNS.compare_exchange(AWAKE, DOZES, AcqRel, Relaxed).is_ok() {
        futex::wait(&RUNS, DOZES, moment, u32::MAX);
    }
    RUNS.compare_exchange(DOZES, AWAKE, AcqRel, Relaxed).is_err()
}
