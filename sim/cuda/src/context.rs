//! Contexts: creation and end, each thread's context stack, and the meaning of a stream handle in a context.

use crate::calls::module::unload_module;
use crate::content::OwnerTag;
use crate::door::{CallFrame, CallResult};
use crate::driver::{DriverDevice, SimulatedDriver, lock_through_panic};
use crate::objects::object_handle;
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD, CUresult, CUstream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vgpu_sim::DeviceProfile;
use vgpu_sim::engine::{GroupId, StreamId};
use vgpu_sim::memory::{RecordChange, signed_bytes};

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
const DEFAULT_LIMITS: [u64; 8] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0];

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
    static THREAD_STREAMS: RefCell<HashMap<u64, StreamId>> = RefCell::new(HashMap::new());
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

/// Makes a context on `dev`, which takes device memory.
pub(crate) fn create_context(
    driver: &'static SimulatedDriver,
    device: &DriverDevice,
    state: &mut crate::driver::DeviceContexts,
    dev: i32,
    flags: u32,
    primary: bool,
    api: u32,
) -> Result<Arc<CudaContext>, CUresult> {
    let p = &device.profile;
    let bytes = if state.contexts == 0 { p.context_bytes } else { p.context_more_bytes };
    let change = RecordChange { contexts: 1, overhead: signed_bytes(bytes), ..RecordChange::default() };
    driver.memory.adjust_record(driver, dev, &change)?;
    state.contexts += 1;
    let context = Arc::new(CudaContext {
        number: driver.next_number(),
        device: dev,
        group: device.engine.open_group(),
        primary,
        flags: AtomicU32::new(flags),
        cache: AtomicU32::new(0),
        banks: AtomicU32::new(1),
        alive: AtomicBool::new(true),
        users: AtomicU32::new(1),
        api,
        limits: DEFAULT_LIMITS.map(AtomicU64::new),
    });
    driver.contexts.add(context.clone());
    Ok(context)
}

/// Destroys a context: waits for its work, then frees all it holds.
pub(crate) fn destroy_context(driver: &'static SimulatedDriver, context: &Arc<CudaContext>) -> CallResult {
    if !context.alive.swap(false, Ordering::AcqRel) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    let device = driver.device_of_ordinal(context.device)?;
    driver.captures.forget_streams(driver, |_, l| Arc::ptr_eq(&l.context, context));
    device.engine.group_wait(context.group);
    driver.contexts.remove(object_handle(context));
    let mine = |c: &Arc<CudaContext>| Arc::ptr_eq(c, context);
    driver.streams.remove_where(|s| mine(&s.context));
    for e in driver.events.remove_where(|e| mine(&e.context)) {
        device.engine.close_event(e.id);
    }
    for m in driver.modules.all(|m| mine(&m.context)) {
        unload_module(driver, &m);
    }
    crate::arrays::end_all(driver, mine);
    driver.managed.free_all(driver, OwnerTag(context.number));
    driver.memory.free_all(driver, OwnerTag(context.number));
    device.engine.close_group(context.group);
    let mut state = lock_through_panic(&device.state);
    state.contexts -= 1;
    if state.contexts == 0 {
        driver.graphs.memory.close(driver, context.device);
    }
    let p = &device.profile;
    let bytes = if state.contexts == 0 { p.context_bytes } else { p.context_more_bytes };
    let limits = (0..DEFAULT_LIMITS.len()).filter_map(|l| limit_bytes(p, l, context.limits[l].load(Ordering::Relaxed)));
    let change =
        RecordChange { contexts: -1, overhead: -signed_bytes(bytes + limits.sum::<u64>()), ..RecordChange::default() };
    driver.machine.adjust_device(device.index, &change).map_err(|_| CUresult::UNKNOWN)
}

impl CallFrame {
    /// The calling thread's current context.
    pub(crate) fn current_context(&self) -> Result<Arc<CudaContext>, CUresult> {
        stack_top().ok_or(CUresult::INVALID_CONTEXT)?.require_living()
    }

    /// The device of the current context.
    pub(crate) fn current_device(&self) -> Result<&'static DriverDevice, CUresult> {
        self.initialised_driver()?.device_of_ordinal(self.current_context()?.device)
    }

    /// True if a handle denotes the legacy default stream here.
    pub(crate) fn is_legacy(&self, stream: CUstream) -> bool {
        stream == CU_STREAM_LEGACY || (stream.is_null() && !self.per_thread)
    }

    /// True if a stream and the legacy default stream wait for each other.
    pub(crate) fn is_blocking(&self, stream: CUstream) -> bool {
        let of = self.initialised_driver().ok().and_then(|d| d.streams.get(stream.0));
        of.is_none_or(|s| s.flags & CU_STREAM_NON_BLOCKING == 0)
    }

    /// The context and engine stream of a handle, for a call that cannot be captured. Refuses the call if a capture
    /// conflicts with it.
    pub(crate) fn resolve_stream(&self, stream: CUstream) -> Result<(Arc<CudaContext>, StreamId), CUresult> {
        let (context, id) = self.raw_stream(stream)?;
        self.initialised_driver()?.captures.refuse_captured(&context, (context.device, id), self.is_legacy(stream))?;
        Ok((context, id))
    }

    /// The context and engine stream of a handle, regardless of captures.
    pub(crate) fn raw_stream(&self, stream: CUstream) -> Result<(Arc<CudaContext>, StreamId), CUresult> {
        let driver = self.initialised_driver()?;
        let own = stream == CU_STREAM_PER_THREAD || (stream.is_null() && self.per_thread);
        if own || stream.is_null() || stream == CU_STREAM_LEGACY {
            let context = self.current_context()?;
            let engine = &driver.device_of_ordinal(context.device)?.engine;
            let id = if own {
                THREAD_STREAMS.with_borrow_mut(|m| {
                    *m.entry(context.number).or_insert_with(|| engine.open_stream(context.group, true))
                })
            } else {
                engine.legacy_stream(context.group).ok_or(CUresult::CONTEXT_IS_DESTROYED)?
            };
            return Ok((context, id));
        }
        let s = driver.streams.get(stream.0).ok_or(CUresult::INVALID_HANDLE)?;
        Ok((s.context.clone(), s.id))
    }
}
