//! The order in which a stream-ordered call takes effect: its stream, told from others, and a mark of ours in it.

use crate::context;
use crate::driver::own;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::pool::{NOBODY, Stream};

/// What an event that was recorded into a capture answers.
const CAPTURED_EVENT: CUresult = CUresult(907);
/// An event without a time.
const NO_TIME: u32 = 2;

/// A stream of a context: default streams are one for each context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// [`Order::key`].
    pub key: Stream,
    /// The context, as a word; 0: it is not known.
    pub context: usize,
}

impl Place {
    /// In the same context, of a stream that no call can name any more.
    pub fn nobodys(self) -> Self {
        Self { key: NOBODY, ..self }
    }
}

/// A stream, as a call names it.
#[derive(Clone, Copy)]
pub struct Order {
    /// The stream.
    pub stream: CUstream,
    /// Whether the default stream means the thread's own.
    pub per_thread: bool,
}

/// Whether this process has ever begun a capture.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Calls of ours under way that are made without regard to captures, since there had been none, or must not meet the
/// beginning of one.
static UNGUARDED: AtomicUsize = AtomicUsize::new(0);

/// Calls of the program's under way that begin a capture.
static BEGINNING: AtomicUsize = AtomicUsize::new(0);

/// As long as this is kept, a capture may begin.
pub struct Beginning(());

impl Drop for Beginning {
    fn drop(&mut self) {
        BEGINNING.fetch_sub(1, SeqCst);
    }
}

/// A capture is about to begin, and does when no call of ours is under way any more that was made without regard to
/// captures.
#[must_use]
pub fn expect_captures() -> Beginning {
    // In this order: of a call of ours and a beginning that meet, one sees the other.
    BEGINNING.fetch_add(1, SeqCst);
    CAPTURES.store(true, SeqCst);
    if UNGUARDED.load(SeqCst) > 0 {
        context::wait_until(|| UNGUARDED.load(SeqCst) == 0);
    }
    Beginning(())
}

/// Forgets the parent's calls under way, in a forked child.
pub fn reborn() {
    UNGUARDED.store(0, SeqCst);
    BEGINNING.store(0, SeqCst);
}

/// Whether there may be a capture.
///
/// # Cost
/// One load.
#[inline]
pub fn may_capture() -> bool {
    CAPTURES.load(SeqCst)
}

/// Does `work` with this thread in relaxed capture mode, so that our own driver calls do not disturb a capture of the
/// program's. Every driver call of ours that is not known to be safe beside captures is made so.
///
/// # Cost
/// Two atomic additions as long as the program has begun no capture; then two driver calls.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    if !may_capture() {
        UNGUARDED.fetch_add(1, SeqCst);
        let result = if may_capture() { Err(work) } else { Ok(work()) };
        UNGUARDED.fetch_sub(1, SeqCst);
        return match result {
            Ok(result) => result,
            Err(work) => in_relaxed_mode(work),
        };
    }
    in_relaxed_mode(work)
}

/// As [`quietly`], and no capture begins meanwhile: a stream that does not capture can be asked. `None`: one begins.
///
/// # Cost
/// As [`quietly`]; whoever begins a capture waits for it.
pub fn between_captures<T>(work: impl FnOnce() -> T) -> Option<T> {
    UNGUARDED.fetch_add(1, SeqCst);
    let result = match (BEGINNING.load(SeqCst), may_capture()) {
        (0, true) => Some(in_relaxed_mode(work)),
        (0, false) => Some(work()),
        _ => None,
    };
    UNGUARDED.fetch_sub(1, SeqCst);
    result
}

fn in_relaxed_mode<T>(work: impl FnOnce() -> T) -> T {
    let Some(exchange) = own::cuThreadExchangeStreamCaptureMode() else { return work() };
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a pointer to a local; the mode that was there comes back in it.
    let changed = unsafe { exchange(&raw mut mode) }.ok();
    let result = work();
    if changed {
        // SAFETY: as above.
        let _ = unsafe { exchange(&raw mut mode) };
    }
    result
}

/// The current context; null: none.
#[inline]
pub fn current() -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: a pointer to a local.
    let known = own::cuCtxGetCurrent().is_some_and(|ask| unsafe { ask(&raw mut context) }.ok());
    if known { context } else { CUcontext::NULL }
}

/// A number of this thread's that no other thread gets, even when this one has ended.
fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: AtomicU64 = const { AtomicU64::new(0) });
    NUMBER.with(|number| match number.load(Relaxed) {
        0 => {
            let new = THREADS.fetch_add(1, Relaxed) + 1;
            number.store(new, Relaxed);
            new
        }
        known => known,
    })
}

impl Order {
    /// A number that tells the stream from others of the process.
    pub fn key(self) -> Stream {
        let own = self.stream == CU_STREAM_PER_THREAD || (self.per_thread && self.stream.is_null());
        if own {
            return this_thread() | 1 << 63;
        }
        if self.stream == CU_STREAM_LEGACY { 0 } else { self.stream.0 as u64 }
    }

    /// Whether it is a default stream, whose context is the current one.
    pub fn is_special(self) -> bool {
        self.stream.is_null() || self.stream == CU_STREAM_LEGACY || self.stream == CU_STREAM_PER_THREAD
    }

    /// The stream and its context.
    pub fn place(self) -> Place {
        let mut context = CUcontext::NULL;
        // SAFETY: the stream of a call that has just used it; a pointer to a local.
        let mut ask = |stream| own::cuStreamGetCtx().is_some_and(|ask| unsafe { ask(stream, &raw mut context) }.ok());
        let known = !self.is_special() && ask(self.stream);
        Place { key: self.key(), context: if known { context } else { current() }.0 as usize }
    }

    /// Whether calls in this stream become nodes of a graph.
    pub fn is_captured(self) -> bool {
        self.captures() == Some(true)
    }

    /// As [`Order::is_captured`]; `None`: it cannot be told now, as for the legacy stream while a stream captures that
    /// waits for it, and nothing may be asked of that stream.
    pub fn captures(self) -> Option<bool> {
        if !may_capture() {
            return Some(false);
        }
        let mut status = 0;
        // SAFETY: the program's own stream, for a call that uses it; a pointer to a local.
        let answer = unsafe {
            if self.per_thread {
                own::cuStreamIsCapturing_ptsz().map(|ask| ask(self.stream, &raw mut status))
            } else {
                own::cuStreamIsCapturing().map(|ask| ask(self.stream, &raw mut status))
            }
        };
        match answer {
            None => Some(false), // older than captures
            Some(answer) => answer.ok().then_some(status != 0),
        }
    }

    /// Whether the device has passed everything in the stream.
    fn is_idle(self) -> bool {
        // SAFETY: the stream of a call that has just used it.
        let answer = unsafe {
            if self.per_thread {
                own::cuStreamQuery_ptsz().map(|ask| ask(self.stream))
            } else {
                own::cuStreamQuery().map(|ask| ask(self.stream))
            }
        };
        answer.is_some_and(CUresult::ok)
    }

    /// Where everything that is in the stream now ends. The stream is at `place`.
    pub fn end(self, place: Place) -> End {
        quietly(|| {
            if self.captures() != Some(false) {
                return End::Unknown;
            }
            if self.is_idle() {
                return End::Passed;
            }
            self.mark_in(place.context).map_or(End::Unknown, End::Marked)
        })
    }

    /// As [`Order::mark`]: an event can be recorded in streams of its own context only.
    fn mark_in(self, context: usize) -> Option<Mark> {
        if context == current().0 as usize {
            return self.mark();
        }
        let mut before = CUcontext::NULL;
        // SAFETY: a context that the driver has just named; what was current comes back.
        unsafe {
            if !own::cuCtxPushCurrent_v2()?(CUcontext(context as *mut c_void)).ok() {
                return None;
            }
            let mark = self.mark();
            let _ = own::cuCtxPopCurrent_v2()?(&raw mut before);
            mark
        }
    }

    /// An event of ours after everything that is in the stream now; `None`: it cannot be had.
    fn mark(self) -> Option<Mark> {
        let mut event = CUevent(core::ptr::null_mut());
        // SAFETY: a pointer to a local.
        if !unsafe { own::cuEventCreate()?(&raw mut event, NO_TIME) }.ok() {
            return None;
        }
        let mark = Mark(event.0 as usize);
        // SAFETY: the event of a moment ago, and the stream of a call that has just used it.
        let recorded = unsafe {
            if self.per_thread {
                own::cuEventRecord_ptsz()?(event, self.stream)
            } else {
                own::cuEventRecord()?(event, self.stream)
            }
        };
        if recorded.ok() {
            Some(mark)
        } else {
            mark.end();
            None
        }
    }
}

/// Where a stream's work of now ends.
pub enum End {
    /// The device has passed it.
    Passed,
    /// At this mark.
    Marked(Mark),
    /// No mark can be had.
    Unknown,
}

/// An event that was recorded in a stream. It dies with its context, or by [`Mark::end`].
pub struct Mark(usize);

impl Mark {
    /// Whether the stream has come to it.
    pub fn is_passed(&self) -> bool {
        let Some(ask) = own::cuEventQuery() else { return true };
        // SAFETY: an event of ours that lives: `departing` asks nothing of contexts that end.
        let answer = quietly(|| unsafe { ask(CUevent(self.0 as *mut c_void)) });
        // An event that came into a capture after all says so, and tells nothing of the stream.
        answer != CUresult::NOT_READY && answer != CAPTURED_EVENT
    }

    /// It is not needed any more.
    pub fn end(&self) {
        if let Some(destroy) = own::cuEventDestroy_v2() {
            // SAFETY: as above, and nobody else knows it.
            let _ = unsafe { destroy(CUevent(self.0 as *mut c_void)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_while_a_capture_begins_and_none_begins_while_it_is() {
        assert_eq!(between_captures(|| 1), Some(1));
        let begins = expect_captures();
        assert_eq!(between_captures(|| 1), None);
        drop(begins);
        let asking = between_captures(|| UNGUARDED.load(SeqCst));
        assert!(asking > Some(0), "whoever begins one waits: {asking:?}");
    }

    #[test]
    fn no_thread_has_the_default_stream_of_one_that_has_ended() {
        let key = || Order { stream: CU_STREAM_PER_THREAD, per_thread: false }.key();
        let own = key();
        assert_eq!(own, Order { stream: CUstream(core::ptr::null_mut()), per_thread: true }.key());
        let one = || std::thread::scope(|scope| scope.spawn(key).join().unwrap());
        let others: Vec<Stream> = (0..8).map(|_| one()).collect();
        let all: std::collections::BTreeSet<Stream> = others.iter().copied().chain([own]).collect();
        assert_eq!(all.len(), 9, "{others:?}");
        assert!(all.iter().all(|key| *key >> 63 == 1 && *key != NOBODY));
    }
}
