//! The real functions: where the driver has them, and which hook stands for which address.
//!
//! Everything is found by walking the loader's objects for the driver's soname, so that no question of ours passes
//! our own `dlsym`, nothing is allocated and no lock of ours is held while the loader works: two threads may do the
//! same walk at once and store the same answers.

use crate::lookup::next_after_us;
use crate::words::{self, Names};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::*};
use shim_sys::cuda::CUresult;
use shim_sys::elf;
use shim_sys::table::{CUDA_HOOK_NAMES, CudaHook, NVML_HOOK_NAMES, NvmlHook};

/// A call of the driver's function with the program's arguments, made once.
///
/// One type for every hook: a closure's own type would copy the code around the call into each hook.
pub type Call<'a> = &'a mut dyn FnMut() -> CUresult;

/// A real library and the rows we hook in it.
pub struct Library<const ROWS: usize, const SLOTS: usize, const BYTES: usize> {
    soname: &'static CStr,
    names: Names<BYTES, ROWS>,
    found: &'static Found<ROWS, SLOTS>,
}

/// What was found of a library: all zeroes at first, so that the file of the library has no room for it.
pub struct Found<const ROWS: usize, const SLOTS: usize> {
    ready: AtomicBool,
    /// The library's own address of each row, 0: it has none.
    real: [AtomicUsize; ROWS],
    /// What a hook calls: the next definition behind us in the loader's order, which another interposer may own.
    call: [AtomicUsize; ROWS],
    /// Begin and end of the library's code, which stays where it is; 0, 0 if that is not certain.
    code: [AtomicUsize; 2],
    /// Open-addressed index by address: row + 1, 0: empty.
    index: [AtomicU16; SLOTS],
}

type CudaFound = Found<{ CudaHook::COUNT }, { slots(CudaHook::COUNT) }>;

/// What was found of libcuda.so.1.
pub static CUDA_FOUND: CudaFound = Found::new();
static NVML_FOUND: Found<{ NvmlHook::COUNT }, { slots(NvmlHook::COUNT) }> = Found::new();

/// libcuda.so.1.
pub static CUDA: Library<{ CudaHook::COUNT }, { slots(CudaHook::COUNT) }, { words::bytes(CUDA_HOOK_NAMES) }> =
    Library::new(c"libcuda.so.1", CUDA_HOOK_NAMES, &CUDA_FOUND);
/// libnvidia-ml.so.1.
pub static NVML: Library<{ NvmlHook::COUNT }, { slots(NvmlHook::COUNT) }, { words::bytes(NVML_HOOK_NAMES) }> =
    Library::new(c"libnvidia-ml.so.1", NVML_HOOK_NAMES, &NVML_FOUND);

/// Where in [`CUDA_FOUND`] the addresses stand that its hooks call: for code without a frame.
pub const CUDA_CALLED_AT: usize = core::mem::offset_of!(CudaFound, call);

/// Places of an index for so many rows: half of them stay empty.
const fn slots(rows: usize) -> usize {
    (2 * rows).next_power_of_two()
}

impl<const ROWS: usize, const SLOTS: usize> Found<ROWS, SLOTS> {
    const fn new() -> Self {
        assert!(SLOTS.is_power_of_two() && SLOTS >= 2 * ROWS, "the index stays half empty");
        Self {
            ready: AtomicBool::new(false),
            real: [const { AtomicUsize::new(0) }; ROWS],
            call: [const { AtomicUsize::new(0) }; ROWS],
            code: [const { AtomicUsize::new(0) }; 2],
            index: [const { AtomicU16::new(0) }; SLOTS],
        }
    }
}

impl<const ROWS: usize, const SLOTS: usize, const BYTES: usize> Library<ROWS, SLOTS, BYTES> {
    const fn new(soname: &'static CStr, names: &[&CStr], found: &'static Found<ROWS, SLOTS>) -> Self {
        Self { soname, names: Names::of(names), found }
    }

    /// Whether the library is loaded; the first time it is, its addresses are read.
    pub fn loaded(&self) -> bool {
        self.found.ready.load(Acquire) || self.read()
    }

    #[cold]
    fn read(&self) -> bool {
        let found = elf::walk(|object| {
            object.has_soname(self.soname).then(|| {
                for row in 0..ROWS {
                    if let Some(address) = object.function(self.name(row)) {
                        self.found.real[row].store(address as usize, Relaxed);
                    }
                }
                object.code()
            })
        });
        let Some((start, end)) = found else { return false };
        // From here on the library stays: a program that closes it and opens it again would find it at other addresses,
        // which no map of ours knows, and behind ours there might be anything.
        let stay = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: names a library that is loaded; loads nothing.
        if !unsafe { libc::dlopen(self.soname.as_ptr(), stay) }.is_null() {
            self.found.code[0].store(start, Relaxed);
            self.found.code[1].store(end, Relaxed);
        }
        for row in 0..ROWS {
            let address = self.found.real[row].load(Relaxed);
            if address != 0 {
                self.enter(address, row);
            }
        }
        self.found.ready.store(true, Release);
        true
    }

    #[allow(clippy::cast_possible_truncation)] // a row number fits u16: ROWS is below SLOTS
    fn enter(&self, address: usize, row: usize) {
        let mark = row as u16 + 1;
        let mut at = Self::slot(address);
        while let Err(there) = self.found.index[at].compare_exchange(0, mark, Relaxed, Relaxed) {
            if there == mark {
                return;
            }
            at = (at + 1) % SLOTS;
        }
    }

    fn slot(address: usize) -> usize {
        (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & (SLOTS - 1)
    }

    /// The row whose real function stands at `address`.
    ///
    /// # Cost
    /// One or two cache lines.
    pub fn row_at(&self, address: *const c_void) -> Option<usize> {
        if !self.loaded() {
            return None;
        }
        let mut at = Self::slot(address as usize);
        loop {
            match self.found.index[at].load(Relaxed) {
                0 => return None,
                mark => {
                    let row = usize::from(mark) - 1;
                    if self.found.real[row].load(Relaxed) == address as usize {
                        return Some(row);
                    }
                }
            }
            at = (at + 1) % SLOTS;
        }
    }

    /// The row whose hook calls the function at `address`, which is not the library's own: an interposer's behind us.
    ///
    /// # Cost
    /// One load per row. Rows that were never called are looked for behind us the first time.
    pub fn row_called(&self, address: *const c_void) -> Option<usize> {
        if address.is_null() || !self.loaded() {
            return None;
        }
        let holder = elf::object_of(address as usize)?;
        if holder.has_soname(self.soname) || !crate::lookup::is_behind_us(holder) {
            return None;
        }
        let row = (0..ROWS).find(|row| holder.function(self.name(*row)) == Some(address.cast_mut()))?;
        (self.call(row) == address.cast_mut()).then_some(row)
    }

    /// The name of a row.
    pub fn name(&self, row: usize) -> &CStr {
        self.names.get(row)
    }

    /// Whether the name of a row begins with `text`.
    #[inline]
    pub fn names_begin(&self, row: usize, text: &[u8]) -> bool {
        self.names.begins_with(row, text)
    }

    /// The library's soname.
    pub fn soname(&self) -> &'static CStr {
        self.soname
    }

    /// What the hook of `row` calls, or null if neither the library nor anybody behind us has it.
    ///
    /// # Cost
    /// One load after the first time.
    #[inline]
    pub fn call(&self, row: usize) -> *mut c_void {
        match self.found.call[row].load(Relaxed) {
            0 => self.find_call(row),
            address => address as *mut c_void,
        }
    }

    /// As [`Self::call`]; null also as long as that was not asked.
    ///
    /// # Cost
    /// One load, and no frame in whoever asks.
    #[inline]
    pub fn called(&self, row: usize) -> *mut c_void {
        self.found.call[row].load(Relaxed) as *mut c_void
    }

    #[cold]
    fn find_call(&self, row: usize) -> *mut c_void {
        let next = next_after_us(self.name(row));
        let address = if !next.is_null() {
            next
        } else if self.loaded() {
            // The search that failed was ours: a program that asks `dlerror` next must not hear of it.
            // SAFETY: no preconditions.
            unsafe { libc::dlerror() };
            self.found.real[row].load(Relaxed) as *mut c_void
        } else {
            core::ptr::null_mut()
        };
        self.found.call[row].store(address as usize, Relaxed);
        address
    }

    /// The library's function `name`, whether hooked or not, without any interposer.
    pub fn function(&self, name: &CStr) -> *mut c_void {
        elf::walk(|object| object.has_soname(self.soname).then(|| object.function(name)))
            .flatten()
            .unwrap_or(core::ptr::null_mut())
    }

    /// Whether `address` lies in the code of the library that is hooked. `false` is not certain: see [`Self::holds`].
    ///
    /// # Cost
    /// Three loads.
    #[inline]
    pub fn is_code(&self, address: usize) -> bool {
        let [start, end] = &self.found.code;
        self.loaded() && address >= start.load(Relaxed) && address < end.load(Relaxed)
    }

    /// Whether `address` lies in the library, or in another copy of it.
    pub fn holds(&self, address: usize) -> bool {
        self.is_code(address) || elf::object_of(address).is_some_and(|object| object.has_soname(self.soname))
    }
}

/// Real functions that the library itself calls, hooked or not: `own::cuCtxGetDevice()` is the typed function, or
/// `None` where the driver has none.
pub mod own {
    use super::*;
    use shim_sys::table::{cuda_fn, nvml_fn};

    /// Out of the way of those who find it known.
    #[cold]
    #[inline(never)]
    fn find<const ROWS: usize, const SLOTS: usize, const BYTES: usize>(
        library: &Library<ROWS, SLOTS, BYTES>,
        name: &CStr,
        known: &AtomicUsize,
    ) -> usize {
        let at = library.function(name) as usize;
        known.store(at, Relaxed);
        at
    }

    macro_rules! own {
        ($library:ident $fns:ident { $($name:ident)* }) => {$(
            #[doc = concat!("The driver's `", stringify!($name), "`. Cost: one load after the first time.")]
            #[allow(non_snake_case)]
            #[inline]
            pub fn $name() -> Option<$fns::$name> {
                static AT: AtomicUsize = AtomicUsize::new(0);
                let mut at = AT.load(Relaxed);
                if at == 0 {
                    let name = const {
                        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name holds no zero byte"),
                        }
                    };
                    at = find(&$library, name, &AT);
                }
                // SAFETY: the address is 0 (None) or the driver's function of this name, whose signature is the
                // table's.
                unsafe { core::mem::transmute::<usize, Option<$fns::$name>>(at) }
            }
        )*};
    }

    own!(CUDA cuda_fn {
        cuCtxGetCurrent cuCtxGetDevice cuCtxDestroy_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2
        cuCtxFromGreenCtx cuGreenCtxDestroy
        cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuStreamGetCtx
        cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDevicePrimaryCtxGetState
        cuCtxGetLimit cuModuleUnload cuLibraryUnload
        cuDeviceGetMemPool cuDeviceGetDefaultMemPool cuMemPoolGetAttribute cuMemPoolTrimTo
        cuMemFreeAsync cuMemFreeAsync_ptsz cuMemGetAddressRange_v2
        cuMemGetAllocationPropertiesFromHandle cuPointerGetAttribute cuIpcCloseMemHandle
        cuDeviceGetGraphMemAttribute cuDeviceGraphMemTrim
        cuGraphGetNodes cuGraphNodeGetType cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams
        cuGraphChildGraphNodeGetGraph
        cuMemGetInfo_v2 cuMemGetAllocationGranularity cuMemFree_v2
        cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventRecord_ptsz cuEventQuery cuEventElapsedTime
        cuStreamQuery cuStreamQuery_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz cuThreadExchangeStreamCaptureMode
    });
    own!(NVML nvml_fn {
        nvmlInit_v2 nvmlShutdown nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
        nvmlDeviceGetUUID nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses_v3
        nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetProcessUtilization
    });
}
