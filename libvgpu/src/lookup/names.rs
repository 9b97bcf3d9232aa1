//! Decides which names are handled here: hooked functions, their unknown variants, and the loader's own functions.
//!
//! The compiler builds one hash table of words from the table of rows. Each match is confirmed by comparing the text,
//! so a foreign name never matches. Not here: the decision about a lookup (`answer_lookup`), and the meaning
//! of a variant that the table does not know (`bypasses`).

use crate::driver::library::{CUDA, NVML};
use crate::ffi::loader::LOADER_NAMES;
use core::ffi::CStr;
use shim_sys::table::{CUDA_HOOK_NAMES, CUDA_ROWS, CudaHook, NVML_HOOK_NAMES, NvmlHook, RowAction, base_length};
use vgpu_core::mix;

/// Which library's table holds a name, and the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookRow {
    /// A row of the driver.
    Cuda(usize),
    /// A row of NVML.
    Nvml(usize),
}

/// A name, or the base of one, that is handled here. Its text is stored as list and number, not as a pointer, so the
/// loader has nothing to relocate.
#[derive(Clone, Copy)]
struct KnownName {
    list: NameList,
    /// Number of the name in that list.
    number: u16,
    length: u8,
    /// A hook has exactly this name.
    hooked: bool,
    /// Functions of this base name charge or launch.
    guards: bool,
    /// Functions of this base name copy or fill, which is charged only with `VGPU_CHARGE_COPIES=1`.
    copies: bool,
}

/// The list that holds the name.
#[derive(Clone, Copy)]
enum NameList {
    Cuda,
    Nvml,
    Loader,
}

impl KnownName {
    const fn name_text(&self) -> &'static [u8] {
        let names: &[&CStr] = match self.list {
            NameList::Cuda => CUDA_HOOK_NAMES,
            NameList::Nvml => NVML_HOOK_NAMES,
            NameList::Loader => &LOADER_NAMES,
        };
        names[self.number as usize].to_bytes().split_at(self.length as usize).0
    }

    /// The hook of exactly this name.
    fn hooked_row(&self) -> Option<HookRow> {
        match self.list {
            NameList::Cuda if self.hooked => Some(HookRow::Cuda(usize::from(self.number))),
            NameList::Nvml if self.hooked => Some(HookRow::Nvml(usize::from(self.number))),
            _ => None,
        }
    }

    /// Whether functions of this base name charge or launch in this process.
    fn is_guarded(&self) -> bool {
        self.guards || (self.copies && crate::process::copies::copies_asked_for())
    }

    /// Whether `text`, which has this word's length, equals the word.
    fn equals(&self, text: &[u8]) -> bool {
        let number = usize::from(self.number);
        match self.list {
            NameList::Cuda => CUDA.names_begin(number, text),
            NameList::Nvml => NVML.names_begin(number, text),
            NameList::Loader => LOADER_NAMES.get(number).is_some_and(|name| name.to_bytes().starts_with(text)),
        }
    }
}

/// Upper bound of words: hooked names, their bases, the loader's functions.
const MAX_NAMES: usize = 2 * CudaHook::COUNT + NvmlHook::COUNT + LOADER_NAMES.len();
/// Slots of the index: more than half of them stay empty.
const INDEX_SLOTS: usize = (2 * MAX_NAMES).next_power_of_two();

struct NameIndex {
    all: [KnownName; MAX_NAMES],
    count: usize,
    /// Open addressing by [`index_slot`]: number of the word + 1; 0 is empty.
    index: [u16; INDEX_SLOTS],
}

static NAME_INDEX: NameIndex = NameIndex::of_the_table();

#[allow(clippy::cast_possible_truncation)] // values are compared before the cast
impl NameIndex {
    const fn of_the_table() -> Self {
        let empty =
            KnownName { list: NameList::Loader, number: 0, length: 0, hooked: false, guards: false, copies: false };
        let mut words = NameIndex { all: [empty; MAX_NAMES], count: 0, index: [0; INDEX_SLOTS] };
        let mut row = 0;
        while row < CudaHook::COUNT {
            let name = CUDA_HOOK_NAMES[row].to_bytes();
            // The naked functions check only this prefix.
            assert!(matches!(name, [b'c', b'u', b'A'..=b'Z', ..]), "a function of the driver has a name like cuInit");
            let at = words.enter_name(NameList::Cuda, row, name.len());
            words.all[at].hooked = true;
            words.all[at].number = row as u16;
            let (guards, copies) = (guards_action(CUDA_ROWS[row].action), copies_action(CUDA_ROWS[row].action));
            if guards || copies {
                let at = words.enter_name(NameList::Cuda, row, base_length(name));
                words.all[at].guards |= guards;
                words.all[at].copies |= copies;
            }
            row += 1;
        }
        row = 0;
        while row < NvmlHook::COUNT {
            let name = NVML_HOOK_NAMES[row].to_bytes();
            assert!(matches!(name, [b'n', b'v', b'm', b'l', ..]), "a function of NVML has a name like nvmlInit");
            let at = words.enter_name(NameList::Nvml, row, name.len());
            words.all[at].hooked = true;
            row += 1;
        }
        row = 0;
        while row < LOADER_NAMES.len() {
            words.enter_name(NameList::Loader, row, LOADER_NAMES[row].count_bytes());
            row += 1;
        }
        words
    }

    /// The number of the word made of the first `length` bytes of a name; adds the word if it is new.
    const fn enter_name(&mut self, list: NameList, number: usize, length: usize) -> usize {
        assert!(number < u16::MAX as usize && length <= u8::MAX as usize && MAX_NAMES < u16::MAX as usize);
        let (number, length) = (number as u16, length as u8);
        let word = KnownName { list, number, length, hooked: false, guards: false, copies: false };
        let mut at = index_slot(word.name_text());
        while self.index[at] != 0 {
            let number = self.index[at] as usize - 1;
            if equals_bytes(self.all[number].name_text(), word.name_text()) {
                return number;
            }
            at = (at + 1) % INDEX_SLOTS;
        }
        let number = self.count;
        self.all[number] = word;
        self.count += 1;
        self.index[at] = self.count as u16;
        number
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<&KnownName> {
        let mut at = index_slot(text);
        loop {
            // An empty slot ends the search: 0 - 1 wraps to an index beyond all words.
            let word = self.all.get(usize::from(*self.index.get(at)?).wrapping_sub(1))?;
            if usize::from(word.length) == text.len() && word.equals(text) {
                return Some(word);
            }
            at = (at + 1) % INDEX_SLOTS;
        }
    }
}

/// Whether functions with this action charge or launch, so that a variant that bypasses the hooks is counted. Every
/// subject of the table is listed here; an unlisted one fails to compile.
const fn guards_action(action: RowAction) -> bool {
    let RowAction::Hook(subject) = action else { return false };
    match subject.as_bytes() {
        b"charge" | b"kernel" | b"launch" | b"context" | b"pool" | b"share" | b"module" => true,
        b"entry" | b"ask" | b"free" | b"release" | b"view" | b"sync" | b"copy" => false,
        _ => panic!("a subject of the table that nobody has judged"),
    }
}

/// Whether functions with this action are charged only with `VGPU_CHARGE_COPIES=1`, which then makes them guarded
/// like launches.
const fn copies_action(action: RowAction) -> bool {
    matches!(action, RowAction::Hook(subject) if matches!(subject.as_bytes(), b"copy"))
}

/// The slot where the search for a word begins. Hashes eight bytes at a time: most names have two to four such
/// pieces.
#[inline]
const fn index_slot(text: &[u8]) -> usize {
    let (mut hash, mut rest) = (text.len() as u64, text);
    while let Some((piece, others)) = rest.split_first_chunk::<8>() {
        hash = mix::spread_key(hash ^ u64::from_le_bytes(*piece));
        hash ^= hash >> 32;
        rest = others;
    }
    if let Some(last) = text.last_chunk::<8>() {
        hash ^= u64::from_le_bytes(*last);
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        hash ^= (u32::from_le_bytes(*first) as u64) << 32 | (u32::from_le_bytes(*last) as u64) << 8;
    }
    (mix::spread_key(hash) >> 40) as usize & (INDEX_SLOTS - 1)
}

const fn equals_bytes(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// How a name is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// The name has a hook.
    Hooked(HookRow),
    /// The name has no hook, but its base name (without suffix) is that of functions that charge or launch.
    Variant,
    /// A function of the loader that this library exports.
    Loader,
    /// The library does not handle the name: the caller gets the real function.
    Foreign,
}

/// Decides how `name` is handled.
///
/// # Cost
/// A hash of the name, and of its base if it has a suffix; no comparison for nearly every foreign name.
#[inline]
pub fn classify_name(name: &[u8]) -> NameKind {
    match NAME_INDEX.find(name) {
        Some(word) => match word.hooked_row() {
            Some(row) => NameKind::Hooked(row),
            None if word.is_guarded() => NameKind::Variant,
            // A word that is only the base name of functions, and no function by itself.
            None if word.copies => NameKind::Foreign,
            None => NameKind::Loader,
        },
        None => {
            let base = base_length(name);
            let suffixed = base < name.len() && name.get(..base).is_some_and(is_guarded);
            if suffixed { NameKind::Variant } else { NameKind::Foreign }
        }
    }
}

/// Whether functions of that base name charge or launch.
#[inline]
pub fn is_guarded(base: &[u8]) -> bool {
    NAME_INDEX.find(base).is_some_and(KnownName::is_guarded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shim_sys::table::{NVML_ROWS, base_name};

    /// The same rule computed directly from the rows.
    fn guarded_by_rows(base: &str) -> bool {
        let subjects = ["charge", "kernel", "launch", "context", "pool", "share", "module"].map(RowAction::Hook);
        CUDA_ROWS.iter().any(|row| row.base_name() == base && subjects.contains(&row.action))
    }

    #[test]
    fn every_name_of_the_table_is_judged_as_its_row_says() {
        let mut variants = 0;
        for (at, row) in CUDA_ROWS.iter().enumerate() {
            let expected = match at {
                at if at < CudaHook::COUNT => NameKind::Hooked(HookRow::Cuda(at)),
                _ if guarded_by_rows(row.base_name()) => NameKind::Variant,
                _ => NameKind::Foreign,
            };
            assert_eq!(classify_name(row.name.as_bytes()), expected, "{}", row.name);
            for suffix in ["_v9", "_v77_ptsz", "_ptds"] {
                let newer = format!("{}{suffix}", row.base_name());
                let known = CUDA_ROWS.iter().any(|row| row.name == newer);
                let expected = if guarded_by_rows(row.base_name()) { NameKind::Variant } else { NameKind::Foreign };
                assert!(known || classify_name(newer.as_bytes()) == expected, "{newer}");
                variants += usize::from(expected == NameKind::Variant && !known);
            }
            assert_eq!(is_guarded(row.base_name().as_bytes()), guarded_by_rows(base_name(row.name)), "{}", row.name);
        }
        assert!(variants > 100, "{variants}");
        for (at, row) in NVML_ROWS.iter().enumerate() {
            let expected = if at < NvmlHook::COUNT { NameKind::Hooked(HookRow::Nvml(at)) } else { NameKind::Foreign };
            assert_eq!(classify_name(row.name.as_bytes()), expected, "{}", row.name);
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_foreign_whatever_it_begins_with() {
        for name in
            ["", "c", "cu", "nv", "dl", "cuda", "cudnnCreate", "curl_easy_init", "cuMyOwn", "nvmlFoo", "dlclose"]
        {
            assert_eq!(classify_name(name.as_bytes()), NameKind::Foreign, "{name}");
        }
        for row in CUDA_ROWS[..CudaHook::COUNT].iter().chain(NVML_ROWS) {
            for name in [format!("{}X", row.name), row.name[..row.name.len() - 1].to_owned(), format!("x{}", row.name)]
            {
                let there = CUDA_ROWS.iter().chain(NVML_ROWS).any(|row| row.name == name);
                let variant = guarded_by_rows(base_name(&name));
                assert!(there || variant || classify_name(name.as_bytes()) == NameKind::Foreign, "{name}");
            }
        }
        for name in LOADER_NAMES {
            assert_eq!(classify_name(name.to_bytes()), NameKind::Loader);
        }
    }

    #[test]
    fn a_search_for_a_word_ends_soon() {
        let longest = (0..INDEX_SLOTS)
            .map(|at| (0..INDEX_SLOTS).take_while(|n| NAME_INDEX.index[(at + n) % INDEX_SLOTS] != 0).count())
            .max();
        assert!(
            longest.unwrap() <= 16,
            "{longest:?} places in a row are taken, of {INDEX_SLOTS} for {}",
            NAME_INDEX.count
        );
        assert!(2 * NAME_INDEX.count < INDEX_SLOTS);
    }
}
