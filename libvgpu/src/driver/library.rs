//! Finds the real functions of the driver and NVML, and maps their addresses to our hooks.
//!
//! The loader's objects are walked to find the driver's soname. So no lookup of our own passes our `dlsym`, nothing
//! is allocated, and no lock of ours is held while the loader works. Two threads may do the same walk at once; they
//! store the same results.

use crate::ffi::arch;
use crate::ffi::name_text::{self, NameText};
use crate::ffi::search_order::next_after_us;
use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::*};
use shim_sys::cuda::CUresult;
use shim_sys::elf;
use shim_sys::nvml::nvmlReturn_t;
use shim_sys::table::{CUDA_HOOK_NAMES, CudaHook, NVML_HOOK_NAMES, NvmlHook};

/// Calls the driver's function with the program's arguments; used once.
///
/// One type for every hook: a separate closure type would copy the code around the call into each hook.
pub type DriverCall<'a> = &'a mut dyn FnMut() -> CUresult;

/// A real library and its hooked rows.
pub struct Library<const ROWS: usize, const SLOTS: usize, const BYTES: usize> {
    soname: &'static CStr,
    names: NameText<BYTES, ROWS>,
    /// Number of the first row among the rows of both libraries.
    first_number: usize,
    found: &'static FoundFunctions<ROWS, SLOTS>,
}

/// The addresses found in a library. All zeroes at first, so that they take no space in the file of this library.
pub struct FoundFunctions<const ROWS: usize, const SLOTS: usize> {
    ready: AtomicBool,
    /// The library's own address of each row; 0: it lacks the function.
    real: [AtomicUsize; ROWS],
    /// The function that a hook calls; 0: not looked up yet, or [`Self::interposers`] has one.
    call: [AtomicUsize; ROWS],
    /// The function of an interposer behind this library, which the export calls; 0: none was found.
    interposers: [AtomicUsize; ROWS],
    /// Begin and end of the library's code, which stays mapped there; 0, 0 if that is not certain.
    code: [AtomicUsize; 2],
    /// Open-addressed index by address: row + 1; 0 is empty.
    index: [AtomicU16; SLOTS],
}

type FoundCuda = FoundFunctions<{ CudaHook::COUNT }, { index_slots(CudaHook::COUNT) }>;

/// The addresses found in libcuda.so.1.
pub static CUDA_FOUND: FoundCuda = FoundFunctions::new();
static NVML_FOUND: FoundFunctions<{ NvmlHook::COUNT }, { index_slots(NvmlHook::COUNT) }> = FoundFunctions::new();

/// The hooked driver library, libcuda.so.1.
pub static CUDA: Library<
    { CudaHook::COUNT },
    { index_slots(CudaHook::COUNT) },
    { name_text::text_bytes(CUDA_HOOK_NAMES) },
> = Library::new(c"libcuda.so.1", CUDA_HOOK_NAMES, first_number::CUDA, &CUDA_FOUND);
/// The hooked NVML library, libnvidia-ml.so.1.
pub static NVML: Library<
    { NvmlHook::COUNT },
    { index_slots(NvmlHook::COUNT) },
    { name_text::text_bytes(NVML_HOOK_NAMES) },
> = Library::new(c"libnvidia-ml.so.1", NVML_HOOK_NAMES, first_number::NVML, &NVML_FOUND);

/// Number of each library's first row among the rows of both.
pub mod first_number {
    use shim_sys::table::{CudaHook, NvmlHook};
    /// The driver's rows come first.
    pub const CUDA: usize = 0;
    /// Row number of NVML's first row: its rows follow those of CUDA.
    pub const NVML: usize = CudaHook::COUNT;
    /// Number of rows of both libraries.
    pub const ROWS: usize = NVML + NvmlHook::COUNT;
}

/// Offset in [`CUDA_FOUND`] of the addresses that its hooks call: for code without a frame.
pub const CUDA_CALLED_AT: usize = core::mem::offset_of!(FoundCuda, call);

/// Slots of an index for `rows` rows: at least half of them stay empty.
const fn index_slots(rows: usize) -> usize {
    (2 * rows).next_power_of_two()
}

impl<const ROWS: usize, const SLOTS: usize> FoundFunctions<ROWS, SLOTS> {
    const fn new() -> Self {
        assert!(SLOTS.is_power_of_two() && SLOTS >= 2 * ROWS, "the index stays half empty");
        Self {
            ready: AtomicBool::new(false),
            real: [const { AtomicUsize::new(0) }; ROWS],
            call: [const { AtomicUsize::new(0) }; ROWS],
            interposers: [const { AtomicUsize::new(0) }; ROWS],
            code: [const { AtomicUsize::new(0) }; 2],
            index: [const { AtomicU16::new(0) }; SLOTS],
        }
    }
}

impl<const ROWS: usize, const SLOTS: usize, const BYTES: usize> Library<ROWS, SLOTS, BYTES> {
    const fn new(
        soname: &'static CStr,
        names: &[&CStr],
        first_number: usize,
        found: &'static FoundFunctions<ROWS, SLOTS>,
    ) -> Self {
        Self { soname, names: NameText::from_names(names), first_number, found }
    }

    /// Whether the library is loaded. Reads its addresses the first time that it is.
    pub fn is_loaded(&self) -> bool {
        self.found.ready.load(Acquire) || self.read()
    }

    #[cold]
    fn read(&self) -> bool {
        let found = elf::for_each_object(|object| {
            object.has_soname(self.soname).then(|| {
                for row in 0..ROWS {
                    if let Some(address) = object.find_function(self.name(row)) {
                        self.found.real[row].store(address as usize, Relaxed);
                    }
                }
                object.code_range()
            })
        });
        let Some((start, end)) = found else { return false };
        // Keep the library loaded from here on. If a program closed and reopened it, its functions would be at other
        // addresses that our maps do not know, and the old addresses could hold anything.
        let stay = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: names a library that is loaded; loads nothing.
        if !unsafe { libc::dlopen(self.soname.as_ptr(), stay) }.is_null() {
            self.found.code[0].store(start, Relaxed);
            self.found.code[1].store(end, Relaxed);
        }
        for row in 0..ROWS {
            let address = self.found.real[row].load(Relaxed);
            if address != 0 {
                self.enter_address(address, row);
            }
        }
        self.found.ready.store(true, Release);
        true
    }

    #[allow(clippy::cast_possible_truncation)] // a row number fits u16: ROWS is below SLOTS
    fn enter_address(&self, address: usize, row: usize) {
        let mark = row as u16 + 1;
        let mut at = Self::address_slot(address);
        while let Err(there) = self.found.index[at].compare_exchange(0, mark, Relaxed, Relaxed) {
            if there == mark {
                return;
            }
            at = (at + 1) % SLOTS;
        }
    }

    fn address_slot(address: usize) -> usize {
        vgpu_core::mix::slot_of(address as u64 >> 4, SLOTS)
    }

    /// The row whose real function is at `address`.
    ///
    /// # Cost
    /// One or two cache lines.
    pub fn row_at(&self, address: *const c_void) -> Option<usize> {
        if !self.is_loaded() {
            return None;
        }
        let mut at = Self::address_slot(address as usize);
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

    /// The row whose function is at `address` in another library, to which this one forwards its calls. On WSL2
    /// libcuda.so.1 is such a thin library, and its cuGetProcAddress returns addresses in the library behind it.
    /// `begin` is the beginning of the function's name.
    #[cold]
    #[inline(never)]
    pub fn forwarded_row(&self, begin: &[u8], address: *mut c_void) -> Option<usize> {
        let object = elf::object_of(address as usize).filter(|object| !object.has_soname(self.soname))?;
        (0..ROWS).find(|&row| self.names_begin(row, begin) && object.find_function(self.name(row)) == Some(address))
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

    /// The function that the hook of `row` calls. Null: no library has it, or [`detour`] must call an
    /// interposer.
    ///
    /// # Cost
    /// One load after the first time.
    #[inline]
    pub fn call_target(&self, row: usize) -> *mut c_void {
        match self.found.call[row].load(Relaxed) {
            0 => self.find_call(row),
            address => address as *mut c_void,
        }
    }

    /// As [`Self::call_target`], without a lookup: null until [`Self::call_target`] has found it.
    ///
    /// # Cost
    /// One load, and no stack frame in the caller.
    #[inline]
    pub fn known_target(&self, row: usize) -> *mut c_void {
        self.found.call[row].load(Relaxed) as *mut c_void
    }

    /// Finds the function for a first call. An export calls an interposer behind us and charges nothing. The
    /// interposer's own lookup gets the replacing hook ([`begin_in_place`]), which charges with the arguments that
    /// the driver gets.
    #[cold]
    fn find_call(&self, row: usize) -> *mut c_void {
        let number = self.first_number + row;
        LAST_ROW.set(number);
        let found = self.find_behind(row);
        let is_in_place = found.is_null() && IN_PLACE.get() == number + 1;
        if !is_in_place {
            return found;
        }
        IN_PLACE.set(0);
        self.found.real[row].load(Relaxed) as *mut c_void
    }

    /// Decides whether the hook of `row` calls the driver, whose function is returned, or an interposer: null.
    #[cold]
    #[inline(never)]
    fn find_behind(&self, row: usize) -> *mut c_void {
        if !self.interposer(row).is_null() {
            return core::ptr::null_mut();
        }
        let next = next_after_us(self.name(row));
        if !self.is_loaded() {
            // A wrapper that opens the driver at its first call counts as an interposer. Or there is no driver at
            // all.
            return next;
        }
        let real = self.found.real[row].load(Relaxed) as *mut c_void;
        if next.is_null() {
            // The failed search was ours, so a program that calls `dlerror` next must not see it.
            // SAFETY: no preconditions.
            unsafe { libc::dlerror() };
        }
        if next.is_null() || real.is_null() || next == real || self.contains_address(next as usize) {
            let address = if next.is_null() { real } else { next };
            self.found.call[row].store(address as usize, Relaxed);
            return address;
        }
        self.found.interposers[row].store(next as usize, Relaxed);
        core::ptr::null_mut()
    }

    /// The function of an interposer behind us, if [`Self::call_target`] found one; null: none.
    pub fn interposer(&self, row: usize) -> *mut c_void {
        self.found.interposers[row].load(Relaxed) as *mut c_void
    }

    /// Whether the export of `row` calls an interposer instead of the driver. Decided here if it was not yet.
    ///
    /// # Cost
    /// One load after the first time, without an interposer.
    #[inline]
    pub fn is_interposed(&self, row: usize) -> bool {
        self.known_target(row).is_null() && self.find_behind(row).is_null() && !self.interposer(row).is_null()
    }

    /// Whether the library is loaded and has the function of `row`.
    pub fn has_real(&self, row: usize) -> bool {
        self.is_loaded() && self.found.real[row].load(Relaxed) != 0
    }

    /// Whether there is a function that the hook of `row` can forward a call to.
    pub fn has_function(&self, row: usize) -> bool {
        !self.known_target(row).is_null() || !self.find_behind(row).is_null() || !self.interposer(row).is_null()
    }

    /// The library's function `name`, whether hooked or not, without any interposer.
    pub fn function_named(&self, name: &CStr) -> *mut c_void {
        elf::for_each_object(|object| object.has_soname(self.soname).then(|| object.find_function(name)))
            .flatten()
            .unwrap_or(core::ptr::null_mut())
    }

    /// Whether `address` lies in the code of the hooked library. `false` is not certain: see
    /// [`Self::contains_address`].
    ///
    /// # Cost
    /// Three loads.
    #[inline]
    pub fn is_code(&self, address: usize) -> bool {
        let [start, end] = &self.found.code;
        self.is_loaded() && address >= start.load(Relaxed) && address < end.load(Relaxed)
    }

    /// Whether the code at `caller` belongs to the hooked library. It looks up its own functions; given a hook, it
    /// would call itself through us.
    ///
    /// # Cost
    /// Three loads; a walk over the loader's objects if the address range of its code is not certain.
    #[inline]
    pub fn is_caller(&self, caller: usize) -> bool {
        self.is_code(caller) || (self.found.code[1].load(Relaxed) == 0 && self.contains_address(caller))
    }

    /// Whether `address` lies in the hooked library (libcuda or libnvidia-ml) or in another loaded copy of it.
    pub fn contains_address(&self, address: usize) -> bool {
        self.is_code(address) || elf::object_of(address).is_some_and(|object| object.has_soname(self.soname))
    }
}

thread_local!(
    /// Row number of this thread's last [`Library::call`] that had to look the function up.
    static LAST_ROW: Cell<usize> = const { Cell::new(0) };
    /// Row number plus one for which this thread called the hook that replaces the driver's function; 0: none. The
    /// hook resets it.
    static IN_PLACE: Cell<usize> = const { Cell::new(0) };
);

/// After [`Library::call_target`] returned null on this thread: the interposer's function of that row, or the error
/// code for a function that no library has.
pub extern "C" fn find_detour() -> usize {
    let number = LAST_ROW.get();
    let (interposer, absent) = match number.checked_sub(first_number::NVML) {
        Some(row) => (NVML.interposer(row), nvmlReturn_t::FUNCTION_NOT_FOUND.0),
        None => (CUDA.interposer(number), CUresult::NOT_SUPPORTED.0),
    };
    if interposer.is_null() { absent as usize } else { interposer as usize }
}

arch::judged_jump!(
    /// The target of a hook without a driver function: jumps to the interposer behind us, or returns an error code
    /// where no library has the function.
    ///
    /// # Safety
    /// Jumped to by an export, as the driver's function was called.
    detour find_detour
);

/// Makes this thread's next call of the hook of row `number` call the driver's function and skip any interposer.
pub fn begin_in_place(number: usize) {
    IN_PLACE.set(number + 1);
}
