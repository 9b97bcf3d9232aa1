//! Walks the loader's objects: finds the one that contains an address, or that defines a name, without `dlsym`.
//!
//! A hook on `dlsym` cannot use `dlsym` to find the function it hides, and must not allocate. This walk works from
//! the first instruction of a process. Objects come in the loader's order: the main program first, then preloaded
//! libraries. Not here: the use of an address (libvgpu's `lookup`).

// Addresses and offsets of 64-bit objects: `u64` and `usize` are the same.
#![allow(clippy::cast_possible_truncation)]

use core::ffi::{CStr, c_char, c_int, c_void};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

#[repr(C)]
struct DynamicEntry {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct SymbolEntry {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// One loaded object, borrowed from the loader for the duration of a walk.
#[derive(Clone, Copy)]
pub struct LoadedObject {
    base: usize,
    phdrs: *const libc::Elf64_Phdr,
    phnum: u16,
    /// Index in the loader's order; the main program is 0.
    pub index: usize,
}

impl LoadedObject {
    fn program_headers(&self) -> &[libc::Elf64_Phdr] {
        if self.phdrs.is_null() {
            return &[];
        }
        // SAFETY: the loader passes `phnum` program headers that stay mapped while the object is loaded. An
        // `LoadedObject` does not leave the walk that got it, except for our own object and the C library, which are
        // never unloaded.
        unsafe { core::slice::from_raw_parts(self.phdrs, usize::from(self.phnum)) }
    }

    /// True if one of the object's loaded segments contains `address`.
    pub fn contains_address(&self, address: usize) -> bool {
        self.program_headers().iter().any(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_type == PT_LOAD && address >= start && address - start < header.p_memsz as usize
        })
    }

    /// Start and end of the object's largest code segment; (0, 0): it has none.
    pub fn code_range(&self) -> (usize, usize) {
        let code =
            self.program_headers().iter().filter(|header| header.p_type == PT_LOAD && header.p_flags & libc::PF_X != 0);
        code.max_by_key(|header| header.p_memsz).map_or((0, 0), |header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            (start, start.wrapping_add(header.p_memsz as usize))
        })
    }

    /// Address of the function `name` if this object defines and exports it; data symbols do not count.
    ///
    /// # Cost
    /// A few cache lines with a GNU hash table; with a DT_HASH table the length of a bucket's chain.
    pub fn find_function(&self, name: &CStr) -> Option<*mut c_void> {
        let tables = self.symbol_tables()?;
        // SAFETY: `tables` come from the object's own dynamic section, which the loader has accepted.
        unsafe { tables.find(name.to_bytes()) }.map(|value| self.base.wrapping_add(value as usize) as *mut c_void)
    }

    /// True if the object's DT_SONAME is `name`.
    pub fn has_soname(&self, name: &CStr) -> bool {
        let Some(tables) = self.symbol_tables() else { return false };
        // SAFETY: DT_SONAME is an offset into the object's own string table.
        tables.soname.is_some_and(|at| unsafe { CStr::from_ptr(tables.strings.add(at)) } == name)
    }

    fn symbol_tables(&self) -> Option<SymbolTables> {
        let dynamic = self.program_headers().iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let mut entry = self.base.wrapping_add(dynamic.p_vaddr as usize) as *const DynamicEntry;
        let (mut strings, mut symbols, mut sysv, mut gnu, mut soname) = (0, 0, 0, 0, None);
        loop {
            // SAFETY: PT_DYNAMIC points to entries that a DT_NULL ends.
            let DynamicEntry { tag, value } = unsafe { core::ptr::read(entry) };
            match tag {
                0 => break,
                DT_STRTAB => strings = self.absolute_address(value),
                DT_SYMTAB => symbols = self.absolute_address(value),
                DT_HASH => sysv = self.absolute_address(value),
                DT_GNU_HASH => gnu = self.absolute_address(value),
                DT_SONAME => soname = Some(value as usize),
                _ => {}
            }
            // SAFETY: not at DT_NULL yet.
            entry = unsafe { entry.add(1) };
        }
        (strings != 0 && symbols != 0).then_some(SymbolTables {
            strings: strings as *const c_char,
            symbols: symbols as *const SymbolEntry,
            sysv: sysv as *const u32,
            gnu: gnu as *const u32,
            soname,
        })
    }

    /// glibc replaces offsets in the dynamic section by absolute addresses; other loaders (and the vDSO) keep
    /// offsets.
    fn absolute_address(&self, value: u64) -> usize {
        let value = value as usize;
        if value < self.base { self.base.wrapping_add(value) } else { value }
    }
}

struct SymbolTables {
    strings: *const c_char,
    symbols: *const SymbolEntry,
    sysv: *const u32,
    gnu: *const u32,
    soname: Option<usize>,
}

impl SymbolTables {
    /// # Safety
    /// The tables are those of a loaded object.
    unsafe fn find(&self, name: &[u8]) -> Option<u64> {
        // SAFETY: the caller's.
        unsafe {
            if !self.gnu.is_null() {
                self.find_gnu(name)
            } else if !self.sysv.is_null() {
                self.find_sysv(name)
            } else {
                None
            }
        }
    }

    /// # Safety
    /// As [`SymbolTables::find`]; `gnu` is not null.
    unsafe fn find_gnu(&self, name: &[u8]) -> Option<u64> {
        // SAFETY: the caller's; the symbols are those that the hash table numbers.
        unsafe { GnuHashTable { table: self.gnu }.for_each_symbol(gnu_hash(name), |at| self.match_at(at, name)) }
    }

    /// # Safety
    /// As [`SymbolTables::find`]; `sysv` is not null.
    unsafe fn find_sysv(&self, name: &[u8]) -> Option<u64> {
        let hash = name.iter().fold(0u32, |h, &b| {
            let h = (h << 4).wrapping_add(u32::from(b));
            let top = h & 0xf000_0000;
            (h ^ (top >> 24)) & !top
        });
        // SAFETY: layout of DT_HASH: bucket and chain counts, buckets, chains; symbol 0 ends a chain.
        unsafe {
            let [buckets, symbols] = *self.sysv.cast::<[u32; 2]>();
            if buckets == 0 {
                return None;
            }
            let bucket = self.sysv.add(2);
            let chain = bucket.add(buckets as usize);
            let mut at = *bucket.add((hash % buckets) as usize);
            let mut left = symbols;
            while at != 0 && left != 0 {
                if let Some(value) = self.match_at(at, name) {
                    return Some(value);
                }
                at = *chain.add(at as usize);
                left -= 1;
            }
            None
        }
    }

    /// # Safety
    /// As [`SymbolTables::find`]; `at` is a symbol of the object.
    unsafe fn match_at(&self, at: u32, name: &[u8]) -> Option<u64> {
        // SAFETY: the caller's.
        unsafe {
            let symbol = &*self.symbols.add(at as usize);
            let kind = symbol.info & 15;
            if symbol.section == 0 || symbol.value == 0 || kind != STT_FUNC {
                return None;
            }
            let text = CStr::from_ptr(self.strings.add(symbol.name as usize));
            (text.to_bytes() == name).then_some(symbol.value)
        }
    }
}

/// The hash of a name in a DT_GNU_HASH table.
const fn gnu_hash(name: &[u8]) -> u32 {
    let (mut hash, mut rest) = (5381u32, name);
    while let [first, others @ ..] = rest {
        hash = hash.wrapping_mul(33).wrapping_add(*first as u32);
        rest = others;
    }
    hash
}

/// A DT_GNU_HASH table.
struct GnuHashTable {
    table: *const u32,
}

impl GnuHashTable {
    /// Calls `visit` with the index of each symbol whose name has that hash, until it returns `Some`.
    ///
    /// # Safety
    /// The table belongs to a loaded object.
    unsafe fn for_each_symbol<T>(&self, hash: u32, mut visit: impl FnMut(u32) -> Option<T>) -> Option<T> {
        // SAFETY: layout of DT_GNU_HASH: four words, a Bloom filter of 64-bit words, buckets, chains; a chain ends at
        // a hash with bit 0 set.
        unsafe {
            let [buckets, first, words, shift] = *self.table.cast::<[u32; 4]>();
            if buckets == 0 || words == 0 {
                return None;
            }
            let bloom = self.table.add(4).cast::<u64>();
            // The loader assumes that the number of words is a power of two, and so do we.
            let word = core::ptr::read_unaligned(bloom.add(((hash / 64) & (words - 1)) as usize));
            if (word >> (hash % 64)) & (word >> ((hash >> (shift % 32)) % 64)) & 1 == 0 {
                return None;
            }
            let bucket = bloom.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut at = *bucket.add((hash % buckets) as usize);
            if at < first {
                return None;
            }
            loop {
                let seen = *chain.add((at - first) as usize);
                if seen | 1 == hash | 1
                    && let Some(value) = visit(at)
                {
                    return Some(value);
                }
                if seen & 1 != 0 {
                    return None;
                }
                at += 1;
            }
        }
    }
}

/// Calls `visit` for each loaded object in the loader's order, until it returns `Some`.
///
/// Holds the loader's lock during the walk and allocates nothing. `visit` must not call the loader.
pub fn for_each_object<T>(mut visit: impl FnMut(LoadedObject) -> Option<T>) -> Option<T> {
    struct ObjectWalk<'a, T> {
        visit: &'a mut dyn FnMut(LoadedObject) -> Option<T>,
        found: Option<T>,
        index: usize,
    }

    unsafe extern "C" fn visit_object<T>(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the Walk below, for the time of dl_iterate_phdr; the loader's info is valid in the call.
        let (walk, info) = unsafe { (&mut *data.cast::<ObjectWalk<'_, T>>(), &*info) };
        let object = LoadedObject {
            base: info.dlpi_addr as usize,
            phdrs: info.dlpi_phdr,
            phnum: info.dlpi_phnum,
            index: walk.index,
        };
        walk.index += 1;
        walk.found = (walk.visit)(object);
        c_int::from(walk.found.is_some())
    }

    let mut state = ObjectWalk { visit: &mut visit, found: None, index: 0 };
    // SAFETY: `step` has the signature the loader wants and `state` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_object::<T>), (&raw mut state).cast()) };
    state.found
}

/// The object that contains `address`, if any.
pub fn object_of(address: usize) -> Option<LoadedObject> {
    for_each_object(|object| object.contains_address(address).then_some(object))
}

/// The first function `name` in the objects after index `index` of the loader's order.
pub fn function_after(index: usize, name: &CStr) -> Option<*mut c_void> {
    for_each_object(|object| if object.index > index { object.find_function(name) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_the_c_library_is_found_where_dlsym_finds_it() {
        for name in [c"getpid", c"dlsym", c"dlvsym", c"pthread_create"] {
            // SAFETY: plain lookup.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!(for_each_object(|object| object.find_function(name)), Some(expected), "{name:?}");
        }
    }

    #[test]
    fn data_and_unknown_names_are_not_functions() {
        assert_eq!(for_each_object(|object| object.find_function(c"environ")), None);
        assert_eq!(for_each_object(|object| object.find_function(c"no_such_function_anywhere")), None);
    }

    #[test]
    fn an_address_leads_to_the_object_that_holds_it() {
        // SAFETY: plain lookup.
        let getpid = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) } as usize;
        let libc_object = object_of(getpid).expect("the C library is loaded");
        assert!(libc_object.has_soname(c"libc.so.6"));
        let ours = object_of(an_address_leads_to_the_object_that_holds_it as fn() as usize).expect("we are loaded");
        assert_eq!(ours.index, 0);
        assert_eq!(function_after(libc_object.index, c"getpid"), None, "defined by the C library only");
        assert!(object_of(16).is_none());
    }

    #[test]
    fn the_code_of_every_object_lies_in_it() {
        let mut objects = 0;
        for_each_object(|object| {
            // The vDSO, the kernel's own object, is in the list and has no path.
            let (start, end) = object.code_range();
            assert!(
                start < end
                    && object.contains_address(start)
                    && object.contains_address(end - 1)
                    && !object.contains_address(end + (1 << 20))
            );
            objects += 1;
            None::<()>
        });
        assert!(objects >= 3, "{objects}");
    }
}
