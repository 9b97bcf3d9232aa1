//! Contexts, and each thread's context stack.
//!
//! Not here: creation and end (`calls/context.rs`), the meaning of a stream handle in a context (`entry_points`).

use shim_sys::cuda::CUresult;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vgpu_sim::DeviceProfile;
use vgpu_sim::engine::GroupId;

/// A CUDA context of this process.
pub(crate) struct CudaContext {
    /// Number of the context in this process; its allocations name their owner by it.
    pub(crate) number: u64,
    /// CUDA ordinal of its device.
    pub(crate) device: i32,
    pub(crate) group: GroupId,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) cache: AtomicU32,
    pub(crate) banks: AtomicU32,
    pub(crate) alive: AtomicBool,
    /// Users by the deprecated count of `cuCtxAttach`.
    pub(crate) users: AtomicU32,
    /// API version of the call that created it.
    pub(crate) api: u32,
    pub(crate) limits: [AtomicU64; 8],
}

/// Initial limits, by number: stack, printf, malloc heap, depth, launches, fetch granularity, persisting cache.
/// Their device memory is part of the context's.
pub(crate) const DEFAULT_LIMITS: [u64; 8] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0];

/// Additional device memory for a limit above its initial value: stacks for all threads that can be resident, the
/// heap, or the buffer. A lower value frees nothing.
pub(crate) fn limit_bytes(p: &DeviceProfile, limit: usize, value: u64) -> Option<u64> {
    let times = match limit {
        0 => u64::from(p.sms) * u64::from(p.threads_per_sm),
        1 | 2 => 1,
        _ => return Some(0),
    };
    let whole = |n: u64| n.checked_mul(times)?.checked_next_multiple_of(p.slab_bytes);
    Some(whole(value)?.saturating_sub(whole(DEFAULT_LIMITS[limit])?))
}

thread_local! {
    static CONTEXT_STACK: RefCell<Vec<Arc<CudaContext>>> = const { RefCell::new(Vec::new()) };
}

/// The top of this thread's context stack, alive or destroyed.
pub(crate) fn stack_top() -> Option<Arc<CudaContext>> {
    CONTEXT_STACK.with_borrow(|s| s.last().cloned())
}

/// Accesses this thread's context stack.
pub(crate) fn with_stack<R>(f: impl FnOnce(&mut Vec<Arc<CudaContext>>) -> R) -> R {
    CONTEXT_STACK.with_borrow_mut(f)
}

impl CudaContext {
    /// A green context of this primary one; it shares everything but the handle.
    pub(crate) fn make_green(&self) -> CudaContext {
        let same = |n: &AtomicU32| AtomicU32::new(n.load(Ordering::Relaxed));
        CudaContext {
            number: self.number,
            device: self.device,
            group: self.group,
            primary: true,
            flags: same(&self.flags),
            cache: same(&self.cache),
            banks: same(&self.banks),
            alive: AtomicBool::new(true),
            users: AtomicU32::new(1),
            api: self.api,
            limits: DEFAULT_LIMITS.map(AtomicU64::new),
        }
    }

    /// True if both are the same context, or one is a green context of the other.
    pub(crate) fn is_of(&self, other: &CudaContext) -> bool {
        self.number == other.number
    }

    /// Returns the context if it is alive.
    pub(crate) fn require_living(self: Arc<CudaContext>) -> Result<Arc<CudaContext>, CUresult> {
        if self.alive.load(Ordering::Acquire) { Ok(self) } else { Err(CUresult::CONTEXT_IS_DESTROYED) }
    }
}
