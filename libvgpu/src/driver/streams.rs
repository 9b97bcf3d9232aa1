//! The stream of a stream-ordered call: its identity among other streams, and event markers recorded in it.

use crate::driver::contexts;
use crate::driver::own;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::pool::{NO_STREAM, StreamKey};

/// The error of querying an event that was recorded into a capture.
const CAPTURED_EVENT_ERROR: CUresult = CUresult(907);
/// Flag for an event without timestamps.
const EVENT_WITHOUT_TIME: u32 = 2;

/// A stream of a context: each context has its own default streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamLocation {
    /// The stream's key: [`StreamId::stream_key`].
    pub key: StreamKey,
    /// The context, as an integer; 0: unknown.
    pub context: usize,
}

impl StreamLocation {
    /// The key, in the same context, of a stream that no call can name any more.
    pub fn without_stream(self) -> Self {
        Self { key: NO_STREAM, ..self }
    }
}

/// A stream, as a call names it.
#[derive(Clone, Copy)]
pub struct StreamId {
    /// The stream's handle in the call.
    pub stream: CUstream,
    /// Whether the default stream means the thread's own.
    pub per_thread: bool,
}

/// Whether this process has ever begun a capture.
static HAS_CAPTURED: AtomicBool = AtomicBool::new(false);

/// Our own driver calls in flight that would disturb a capture, or that no capture may overlap.
static UNGUARDED_CALLS: AtomicUsize = AtomicUsize::new(0);

/// Program calls in flight that begin a capture.
static BEGINNING_CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Guard of a call that begins a capture.
pub struct CaptureBeginning(());

impl Drop for CaptureBeginning {
    fn drop(&mut self) {
        BEGINNING_CAPTURES.fetch_sub(1, SeqCst);
    }
}

/// Announces a capture that is about to begin. First waits until no driver call of ours is in flight that could
/// disturb it.
#[must_use]
pub fn expect_captures() -> CaptureBeginning {
    // In this order: if a call of ours and a beginning overlap, at least one sees the other.
    BEGINNING_CAPTURES.fetch_add(1, SeqCst);
    HAS_CAPTURED.store(true, SeqCst);
    if UNGUARDED_CALLS.load(SeqCst) > 0 {
        contexts::wait_until(|| UNGUARDED_CALLS.load(SeqCst) == 0);
    }
    CaptureBeginning(())
}

/// Clears the parent's calls in flight in a forked child.
pub fn reset_after_fork() {
    UNGUARDED_CALLS.store(0, SeqCst);
    BEGINNING_CAPTURES.store(0, SeqCst);
}

/// Whether there may be a capture.
///
/// # Cost
/// One load.
#[inline]
pub fn may_capture() -> bool {
    HAS_CAPTURED.load(SeqCst)
}

/// Runs `work` with this thread in relaxed capture mode, so that our own driver calls do not disturb a capture by the
/// program. Every driver call of ours that is not known to be safe during captures is made this way.
///
/// # Cost
/// Two atomic additions until the program begins its first capture; from then on two driver calls.
pub fn without_captures<T>(work: impl FnOnce() -> T) -> T {
    if !may_capture() {
        UNGUARDED_CALLS.fetch_add(1, SeqCst);
        let result = if may_capture() { Err(work) } else { Ok(work()) };
        UNGUARDED_CALLS.fetch_sub(1, SeqCst);
        return match result {
            Ok(result) => result,
            Err(work) => in_relaxed_mode(work),
        };
    }
    in_relaxed_mode(work)
}

/// As [`without_captures`], while no capture can begin, so that a stream that does not capture can be queried.
/// `None`: one is about to begin.
///
/// # Cost
/// As [`without_captures`]; a call that begins a capture waits for `work`.
pub fn between_captures<T>(work: impl FnOnce() -> T) -> Option<T> {
    UNGUARDED_CALLS.fetch_add(1, SeqCst);
    let result = match (BEGINNING_CAPTURES.load(SeqCst), may_capture()) {
        (0, true) => Some(in_relaxed_mode(work)),
        (0, false) => Some(work()),
        _ => None,
    };
    UNGUARDED_CALLS.fetch_sub(1, SeqCst);
    result
}

fn in_relaxed_mode<T>(work: impl FnOnce() -> T) -> T {
    let Some(exchange) = own::cuThreadExchangeStreamCaptureMode() else { return work() };
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a pointer to a local, which receives the previous mode.
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

/// A number for this thread that no other thread gets, even after this one has ended.
fn this_thread() -> u64 {
    static THREAD_NUMBERS: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: AtomicU64 = const { AtomicU64::new(0) });
    NUMBER.with(|number| match number.load(Relaxed) {
        0 => {
            let new = THREAD_NUMBERS.fetch_add(1, Relaxed) + 1;
            number.store(new, Relaxed);
            new
        }
        known => known,
    })
}

impl StreamId {
    /// A number that identifies the stream within the process.
    pub fn stream_key(self) -> StreamKey {
        let own = self.stream == CU_STREAM_PER_THREAD || (self.per_thread && self.stream.is_null());
        if own {
            return this_thread() | 1 << 63;
        }
        if self.stream == CU_STREAM_LEGACY { 0 } else { self.stream.0 as u64 }
    }

    /// Whether it is a default stream, which belongs to the current context.
    pub fn is_special(self) -> bool {
        self.stream.is_null() || self.stream == CU_STREAM_LEGACY || self.stream == CU_STREAM_PER_THREAD
    }

    /// The stream and its context.
    pub fn location(self) -> StreamLocation {
        let mut context = CUcontext::NULL;
        // SAFETY: the stream of a call that has just used it; a pointer to a local.
        let mut ask = |stream| own::cuStreamGetCtx().is_some_and(|ask| unsafe { ask(stream, &raw mut context) }.ok());
        let known = !self.is_special() && ask(self.stream);
        StreamLocation { key: self.stream_key(), context: if known { context } else { current() }.0 as usize }
    }

    /// Whether calls in this stream become nodes of a graph.
    pub fn is_captured(self) -> bool {
        self.capture_status() == Some(true)
    }

    /// As [`StreamId::is_captured`]. `None`: unknown at present, and the stream must not be queried. The legacy stream
    /// is in this state while a stream captures that waits for it.
    pub fn capture_status(self) -> Option<bool> {
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
            None => Some(false), // a driver without captures
            Some(answer) => answer.ok().then_some(status != 0),
        }
    }

    /// Whether the device has finished all work in the stream.
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

    /// Finds the end of all work that is in the stream now. `place` is the stream's key.
    pub fn end_of_work(self, place: StreamLocation) -> WorkEnd {
        without_captures(|| {
            if self.capture_status() != Some(false) {
                return WorkEnd::Unknown;
            }
            if self.is_idle() {
                return WorkEnd::Passed;
            }
            self.mark_in(place.context).map_or(WorkEnd::Unknown, WorkEnd::Marked)
        })
    }

    /// As [`StreamId::record_mark`], in the stream's context: an event can be recorded only in streams of its own
    /// context.
    fn mark_in(self, context: usize) -> Option<StreamMark> {
        if context == current().0 as usize {
            return self.record_mark();
        }
        let mut before = CUcontext::NULL;
        // SAFETY: a context that the driver has just named; the pop restores the current one.
        unsafe {
            if !own::cuCtxPushCurrent_v2()?(CUcontext(context as *mut c_void)).ok() {
                return None;
            }
            let mark = self.record_mark();
            let _ = own::cuCtxPopCurrent_v2()?(&raw mut before);
            mark
        }
    }

    /// Records an event marker after all work that is in the stream now. `None`: no marker can be recorded.
    fn record_mark(self) -> Option<StreamMark> {
        let mut event = CUevent(core::ptr::null_mut());
        // SAFETY: a pointer to a local.
        if !unsafe { own::cuEventCreate()?(&raw mut event, EVENT_WITHOUT_TIME) }.ok() {
            return None;
        }
        let mark = StreamMark(event.0 as usize);
        // SAFETY: the event that was just created, and the stream of a call that has just used it.
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
            mark.destroy();
            None
        }
    }
}

/// The end of a stream's present work.
pub enum WorkEnd {
    /// The device has passed it.
    Passed,
    /// The work ends at this marker.
    Marked(StreamMark),
    /// No marker can be recorded.
    Unknown,
}

/// An event marker recorded in a stream. It dies with its context, or by [`StreamMark::destroy`].
pub struct StreamMark(usize);

impl StreamMark {
    /// Whether the stream has reached the marker.
    pub fn is_passed(&self) -> bool {
        let Some(ask) = own::cuEventQuery() else { return true };
        // SAFETY: a live event of ours: `deferred_frees` does not query events of ending contexts.
        let answer = without_captures(|| unsafe { ask(CUevent(self.0 as *mut c_void)) });
        // An event that was captured after all returns an error of its own, which tells nothing about the stream.
        answer != CUresult::NOT_READY && answer != CAPTURED_EVENT_ERROR
    }

    /// Destroys the event.
    pub fn destroy(&self) {
        if let Some(destroy) = own::cuEventDestroy_v2() {
            // SAFETY: as above, and no other code knows the event.
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
        let asking = between_captures(|| UNGUARDED_CALLS.load(SeqCst));
        assert!(asking > Some(0), "whoever begins one waits: {asking:?}");
    }

    #[test]
    fn no_thread_has_the_default_stream_of_one_that_has_ended() {
        let key = || StreamId { stream: CU_STREAM_PER_THREAD, per_thread: false }.stream_key();
        let own = key();
        assert_eq!(own, StreamId { stream: CUstream(core::ptr::null_mut()), per_thread: true }.stream_key());
        let one = || std::thread::scope(|scope| scope.spawn(key).join().unwrap());
        let others: Vec<StreamKey> = (0..8).map(|_| one()).collect();
        let all: std::collections::BTreeSet<StreamKey> = others.iter().copied().chain([own]).collect();
        assert_eq!(all.len(), 9, "{others:?}");
        assert!(all.iter().all(|key| *key >> 63 == 1 && *key != NO_STREAM));
    }
}
