//! A device with a context, through safe functions, for the steps.
//!
//! Each function is one call of the driver. Handles are plain values: a step runs in its own process, and everything it
//! does not release ends with that process.

use std::ffi::{CStr, c_void};

use crate::driver::{AllocationProp, CallFailure, DriverCode, DriverHandle, ProbedDriver};
use crate::nvml::until_nul;

/// Flags of the driver for streams and events.
pub mod flags {
    /// A stream that does not synchronise with the legacy stream.
    pub const NON_BLOCKING_STREAM: u32 = 1;
    /// Event flag: the event has no timing.
    pub const NO_TIMING: u32 = 2;
}

/// The legacy default stream.
pub const LEGACY_STREAM: DriverHandle = std::ptr::null_mut();

/// Reserved handle of the calling thread's own default stream.
pub fn per_thread() -> DriverHandle {
    std::ptr::without_provenance_mut(2)
}

/// A device whose primary context is current in this thread.
pub struct ProbedGpu<'d> {
    pub driver: &'d ProbedDriver,
    pub device: i32,
    pub context: DriverHandle,
}

/// Initialises the driver.
pub fn init(driver: &ProbedDriver) -> Result<(), CallFailure> {
    // SAFETY: the argument is a plain number.
    unsafe { driver.init(0) }.ok()
}

/// The device with this ordinal.
pub fn device_of_ordinal(driver: &ProbedDriver, ordinal: i32) -> Result<i32, CallFailure> {
    let mut device = 0;
    // SAFETY: the pointer is to a local number.
    unsafe { driver.device_get(&raw mut device, ordinal) }.ok()?;
    Ok(device)
}

/// An attribute of a device by its number in the driver's interface.
pub fn device_attribute(driver: &ProbedDriver, device: i32, attribute: i32) -> Result<i32, CallFailure> {
    let mut value = 0;
    // SAFETY: the pointer is to a local number.
    unsafe { driver.device_attribute(&raw mut value, attribute, device) }.ok()?;
    Ok(value)
}

/// A device's PCI address as text.
pub fn pci_address(driver: &ProbedDriver, device: i32) -> Result<String, CallFailure> {
    let mut text = [0_u8; 32];
    // SAFETY: the buffer has the stated length.
    unsafe { driver.device_pci(text.as_mut_ptr().cast(), 32, device) }.ok()?;
    Ok(until_nul(&text))
}

impl<'d> ProbedGpu<'d> {
    /// Initialises the driver, retains the primary context as runtime programs do, and makes it current.
    pub fn open(driver: &'d ProbedDriver, ordinal: i32) -> Result<Self, CallFailure> {
        init(driver)?;
        let device = device_of_ordinal(driver, ordinal)?;
        let gpu = Self { driver, device, context: Self::retain_primary(driver, device)? };
        gpu.make_current()?;
        Ok(gpu)
    }

    /// Retains the primary context.
    pub fn retain_primary(driver: &ProbedDriver, device: i32) -> Result<DriverHandle, CallFailure> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a local handle.
        unsafe { driver.primary_retain(&raw mut context, device) }.ok()?;
        Ok(context)
    }

    /// Makes the context current in this thread.
    pub fn make_current(&self) -> Result<(), CallFailure> {
        // SAFETY: the context is of this driver and is never destroyed while the step runs.
        unsafe { self.driver.context_set(self.context) }.ok()
    }

    /// Waits for everything in the context.
    pub fn synchronize(&self) -> Result<(), CallFailure> {
        self.sync_code().ok()
    }

    /// As [`ProbedGpu::synchronize`]; returns the driver's result code.
    pub fn sync_code(&self) -> DriverCode {
        // SAFETY: the call has no argument.
        unsafe { self.driver.context_sync() }
    }

    /// Free and total bytes of the device.
    pub fn mem_info(&self) -> Result<(u64, u64), CallFailure> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the pointers are to local numbers.
        unsafe { self.driver.mem_info(&raw mut free, &raw mut total) }.ok()?;
        Ok((free as u64, total as u64))
    }

    /// Allocates device memory.
    pub fn alloc(&self, bytes: usize) -> Result<u64, CallFailure> {
        let mut pointer = 0;
        // SAFETY: the pointer is to a local device address.
        unsafe { self.driver.mem_alloc(&raw mut pointer, bytes) }.ok()?;
        Ok(pointer)
    }

    /// Frees an allocation of [`ProbedGpu::alloc`].
    pub fn free(&self, pointer: u64) -> Result<(), CallFailure> {
        // SAFETY: the argument is a device address, not one of this process; a wrong one gives an error code.
        unsafe { self.driver.mem_free(pointer) }.ok()
    }

    /// Allocates in stream order from the device's pool.
    pub fn alloc_async(&self, bytes: usize, stream: DriverHandle) -> Result<u64, CallFailure> {
        let mut pointer = 0;
        // SAFETY: the pointer is to a local device address, and the stream is live.
        unsafe { self.driver.mem_alloc_async(&raw mut pointer, bytes, stream) }.ok()?;
        Ok(pointer)
    }

    /// Frees memory in the order of `stream`.
    pub fn free_async(&self, pointer: u64, stream: DriverHandle) -> Result<(), CallFailure> {
        // SAFETY: a device address and a live stream; a wrong address gives an error code.
        unsafe { self.driver.mem_free_async(pointer, stream) }.ok()
    }

    /// The properties of an allocation of the VMM interface on this device.
    pub fn vmm_prop(&self) -> AllocationProp {
        AllocationProp { kind: 1, location_kind: 1, location_id: self.device, ..AllocationProp::default() }
    }

    /// Granularity of the VMM interface: option 0 is the minimum, 1 the recommended one.
    pub fn vmm_granularity(&self, option: i32) -> Result<u64, CallFailure> {
        let mut bytes = 0_usize;
        let prop = self.vmm_prop();
        // SAFETY: the pointers are to a local number and to properties in the interface's layout.
        unsafe { self.driver.mem_granularity(&raw mut bytes, &raw const prop, option) }.ok()?;
        Ok(bytes as u64)
    }

    /// Creates a physical allocation.
    pub fn vmm_create(&self, bytes: usize) -> Result<u64, CallFailure> {
        let mut handle = 0;
        let prop = self.vmm_prop();
        // SAFETY: the pointers are to a local handle and to properties in the interface's layout.
        unsafe { self.driver.mem_create(&raw mut handle, bytes, &raw const prop, 0) }.ok()?;
        Ok(handle)
    }

    /// Releases a physical allocation.
    pub fn vmm_release(&self, handle: u64) -> Result<(), CallFailure> {
        // SAFETY: the handle is one of `vmm_create`.
        unsafe { self.driver.mem_release(handle) }.ok()
    }

    /// Fills device memory with zeros.
    pub fn fill_zero(&self, pointer: u64, bytes: usize) -> Result<(), CallFailure> {
        // SAFETY: the callers pass an allocation of their own and its size.
        unsafe { self.driver.memset8(pointer, 0, bytes) }.ok()
    }

    /// Reads device memory.
    pub fn read(&self, pointer: u64, words: usize) -> Result<Vec<u64>, CallFailure> {
        let mut host = vec![0_u64; words];
        // SAFETY: `host` has room for exactly these bytes.
        unsafe { self.driver.copy_to_host(host.as_mut_ptr().cast(), pointer, words * 8) }.ok()?;
        Ok(host)
    }

    /// Loads device code; `image` ends with a zero byte.
    pub fn load_module(&self, image: &[u8]) -> Result<DriverHandle, CallFailure> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the pointers are to a local handle and to a terminated text that outlives the call.
        unsafe { self.driver.module_load(&raw mut module, image.as_ptr().cast()) }.ok()?;
        Ok(module)
    }

    /// Finds a kernel in a module.
    pub fn find_function(&self, module: DriverHandle, name: &CStr) -> Result<DriverHandle, CallFailure> {
        let mut function = std::ptr::null_mut();
        // SAFETY: a pointer to a local handle, a live module, a terminated name.
        unsafe { self.driver.module_function(&raw mut function, module, name.as_ptr()) }.ok()?;
        Ok(function)
    }

    /// Launches a kernel whose parameters are all 64-bit words.
    pub fn launch<const N: usize>(
        &self,
        kernel: DriverHandle,
        grid: u32,
        block: u32,
        stream: DriverHandle,
        words: [u64; N],
    ) -> Result<(), CallFailure> {
        self.launch_code(kernel, grid, block, stream, words).ok()
    }

    /// As [`ProbedGpu::launch`]; returns the driver's result code.
    #[inline]
    pub fn launch_code<const N: usize>(
        &self,
        kernel: DriverHandle,
        grid: u32,
        block: u32,
        stream: DriverHandle,
        mut words: [u64; N],
    ) -> DriverCode {
        let mut pointers: [*mut c_void; N] = std::array::from_fn(|_| std::ptr::null_mut());
        for (pointer, word) in pointers.iter_mut().zip(words.iter_mut()) {
            *pointer = std::ptr::from_mut(word).cast();
        }
        // SAFETY: one pointer for each parameter of the kernel, all alive during the call, which copies them.
        unsafe {
            self.driver.launch(kernel, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_mut_ptr(), std::ptr::null_mut())
        }
    }

    /// Creates a stream.
    pub fn make_stream(&self, flags: u32) -> Result<DriverHandle, CallFailure> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer is to a local handle.
        unsafe { self.driver.stream_create(&raw mut stream, flags) }.ok()?;
        Ok(stream)
    }

    /// Asks whether all work of a stream is complete.
    pub fn stream_query(&self, stream: DriverHandle) -> DriverCode {
        // SAFETY: a live stream.
        unsafe { self.driver.stream_query(stream) }
    }

    /// Waits until all work of a stream is done.
    pub fn stream_sync(&self, stream: DriverHandle) -> DriverCode {
        // SAFETY: a live stream.
        unsafe { self.driver.stream_sync(stream) }
    }

    /// Creates an event.
    pub fn make_event(&self, flags: u32) -> Result<DriverHandle, CallFailure> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is to a local handle.
        unsafe { self.driver.event_create(&raw mut event, flags) }.ok()?;
        Ok(event)
    }

    /// Destroys an event.
    pub fn event_destroy(&self, event: DriverHandle) -> Result<(), CallFailure> {
        // SAFETY: the event is live, and nothing uses it afterwards.
        unsafe { self.driver.event_destroy(event) }.ok()
    }

    /// Records an event.
    #[inline]
    pub fn record_event(&self, event: DriverHandle, stream: DriverHandle) -> DriverCode {
        // SAFETY: a live event and a live stream.
        unsafe { self.driver.event_record(event, stream) }
    }

    /// Asks whether an event was reached.
    #[inline]
    pub fn query_event(&self, event: DriverHandle) -> DriverCode {
        // SAFETY: a live event.
        unsafe { self.driver.event_query(event) }
    }

    /// Waits until an event is reached.
    pub fn event_sync(&self, event: DriverHandle) -> DriverCode {
        // SAFETY: a live event.
        unsafe { self.driver.event_sync(event) }
    }

    /// Time between two events on the device, in ns.
    #[inline]
    pub fn elapsed_ns(&self, start: DriverHandle, end: DriverHandle) -> Result<f64, CallFailure> {
        let mut ms = 0.0_f32;
        // SAFETY: a pointer to a local number and two live events.
        unsafe { self.driver.event_elapsed(&raw mut ms, start, end) }.ok()?;
        Ok(f64::from(ms) * 1e6)
    }

    /// Device time of one kernel, by events around it.
    pub fn time_kernel<const N: usize>(
        &self,
        kernel: DriverHandle,
        grid: u32,
        block: u32,
        stream: DriverHandle,
        words: [u64; N],
    ) -> Result<f64, CallFailure> {
        let (start, end) = (self.make_event(0)?, self.make_event(0)?);
        self.record_event(start, stream).ok()?;
        self.launch(kernel, grid, block, stream, words)?;
        self.record_event(end, stream).ok()?;
        self.event_sync(end).ok()?;
        let ns = self.elapsed_ns(start, end)?;
        self.event_destroy(start)?;
        self.event_destroy(end)?;
        Ok(ns)
    }

    /// Keeps the device busy for `ns`, so that its clocks are high before a measurement.
    pub fn warm_up(&self, spin: DriverHandle, ns: u64) -> Result<(), CallFailure> {
        let mut left = ns;
        while left > 0 {
            let part = left.min(10_000_000);
            self.launch(spin, 1, 1, LEGACY_STREAM, [part])?;
            left -= part;
        }
        self.synchronize()
    }
}
