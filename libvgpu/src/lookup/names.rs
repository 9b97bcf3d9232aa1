//! Decides which names are handled here: hooked functions, their unknown variants, and the loader's own functions.
//!
//! The compiler builds one hash table of words from the table of rows. Each match is confirmed by comparing the text,
//! so a foreign name never matches. Not here: the decision about a lookup ([`super::answer`]), and the meaning of a
//! variant that the table does not know (`doors`).

use crate::driver::{CUDA, NVML};
use core::ffi::CStr;
use shim_sys::table::{Action, CUDA_HOOK_NAMES, CUDA_ROWS, CudaHook, NVML_HOOK_NAMES, NvmlHook, base_length};
use vgpu_core::mix;

/// Which library's table holds a name, and the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// A row of the driver.
    Cuda(usize),
    /// A row of NVML.
    Nvml(usize),
}

/// A name, or the base of one, that is handled here. Its text is stored as list and number, not as a pointer, so the
/// loader has nothing to relocate.
#[derive(Clone, Copy)]
struct Word {
    list: List,
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
enum List {
    Cuda,
    Nvml,
    Loader,
}

impl Word {
    const fn text(&self) -> &'static [u8] {
        let names: &[&CStr] = match self.list {
            List::Cuda => CUDA_HOOK_NAMES,
            List::Nvml => NVML_HOOK_NAMES,
            List::Loader => &super::NAMES,
        };
        names[self.number as usize].to_bytes().split_at(self.length as usize).0
    }

    /// The hook of exactly this name.
    fn row(&self) -> Option<Row> {
        match self.list {
            List::Cuda if self.hooked => Some(Row::Cuda(usize::from(self.number))),
            List::Nvml if self.hooked => Some(Row::Nvml(usize::from(self.number))),
            _ => None,
        }
    }

    /// Whether functions of this base name charge or launch in this process.
    fn is_guarded(&self) -> bool {
        self.guards || (self.copies && crate::hooks::copies_asked_for())
    }

    /// Whether `text`, which has this word's length, equals the word.
    fn is(&self, text: &[u8]) -> bool {
        let number = usize::from(self.number);
        match self.list {
            List::Cuda => CUDA.names_begin(number, text),
            List::Nvml => NVML.names_begin(number, text),
            List::Loader => super::NAMES.get(number).is_some_and(|name| name.to_bytes().starts_with(text)),
        }
    }
}

/// Upper bound of words: hooked names, their bases, the loader's functions.
const MOST: usize = 2 * CudaHook::COUNT + NvmlHook::COUNT + super::NAMES.len();
/// Slots of the index: more than half of them stay empty.
const PLACES: usize = (2 * MOST).next_power_of_two();

struct Words {
    all: [Word; MOST],
    count: usize,
    /// Open addressing by [`place`]: number of the word + 1; 0 is empty.
    index: [u16; PLACES],
}

static WORDS: Words = Words::of_the_table();

#[allow(clippy::cast_possible_truncation)] // values are compared before the cast
impl Words {
    const fn of_the_table() -> Self {
        let empty = Word { list: List::Loader, number: 0, length: 0, hooked: false, guards: false, copies: false };
        let mut words = Words { all: [empty; MOST], count: 0, index: [0; PLACES] };
        let mut row = 0;
        while row < CudaHook::COUNT {
            let name = CUDA_HOOK_NAMES[row].to_bytes();
            // The naked functions check only this prefix.
            assert!(matches!(name, [b'c', b'u', b'A'..=b'Z', ..]), "a function of the driver has a name like cuInit");
            let at = words.enter(List::Cuda, row, name.len());
            words.all[at].hooked = true;
            words.all[at].number = row as u16;
            let (guards, copies) = (guards(CUDA_ROWS[row].action), copies(CUDA_ROWS[row].action));
            if guards || copies {
                let at = words.enter(List::Cuda, row, base_length(name));
                words.all[at].guards |= guards;
                words.all[at].copies |= copies;
            }
            row += 1;
        }
        row = 0;
        while row < NvmlHook::COUNT {
            let name = NVML_HOOK_NAMES[row].to_bytes();
            assert!(matches!(name, [b'n', b'v', b'm', b'l', ..]), "a function of NVML has a name like nvmlInit");
            let at = words.enter(List::Nvml, row, name.len());
            words.all[at].hooked = true;
            row += 1;
        }
        row = 0;
        while row < super::NAMES.len() {
            words.enter(List::Loader, row, super::NAMES[row].count_bytes());
            row += 1;
        }
        words
    }

    /// The number of the word made of the first `length` bytes of a name; adds the word if it is new.
    const fn enter(&mut self, list: List, number: usize, length: usize) -> usize {
        assert!(number < u16::MAX as usize && length <= u8::MAX as usize && MOST < u16::MAX as usize);
        let (number, length) = (number as u16, length as u8);
        let word = Word { list, number, length, hooked: false, guards: false, copies: false };
        let mut at = place(word.text());
        while self.index[at] != 0 {
            let number = self.index[at] as usize - 1;
            if same(self.all[number].text(), word.text()) {
                return number;
            }
            at = (at + 1) % PLACES;
        }
        let number = self.count;
        self.all[number] = word;
        self.count += 1;
        self.index[at] = self.count as u16;
        number
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<&Word> {
        let mut at = place(text);
        loop {
            // An empty slot ends the search: 0 - 1 wraps to an index beyond all words.
            let word = self.all.get(usize::from(*self.index.get(at)?).wrapping_sub(1))?;
            if usize::from(word.length) == text.len() && word.is(text) {
                return Some(word);
            }
            at = (at + 1) % PLACES;
        }
    }
}

/// Whether functions with this action charge or launch, so that a variant that bypasses the hooks is counted. Every
/// subject of the table is listed here; an unlisted one fails to compile.
const fn guards(action: Action) -> bool {
    let Action::Hook(subject) = action else { return false };
    match subject.as_bytes() {
        b"charge" | b"kernel" | b"launch" | b"context" | b"pool" | b"share" | b"module" => true,
        b"entry" | b"ask" | b"free" | b"release" | b"view" | b"sync" | b"copy" => false,
        _ => panic!("a subject of the table that nobody has judged"),
    }
}

/// Whether functions with this action are charged only with `VGPU_CHARGE_COPIES=1`, which then makes them guarded
/// like launches.
const fn copies(action: Action) -> bool {
    matches!(action, Action::Hook(subject) if matches!(subject.as_bytes(), b"copy"))
}

/// The slot where the search for a word begins. Hashes eight bytes at a time: most names have two to four such
/// pieces.
#[inline]
const fn place(text: &[u8]) -> usize {
    let (mut hash, mut rest) = (text.len() as u64, text);
    while let Some((piece, others)) = rest.split_first_chunk::<8>() {
        hash = mix::spread(hash ^ u64::from_le_bytes(*piece));
        hash ^= hash >> 32;
        rest = others;
    }
    if let Some(last) = text.last_chunk::<8>() {
        hash ^= u64::from_le_bytes(*last);
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        hash ^= (u32::from_le_bytes(*first) as u64) << 32 | (u32::from_le_bytes(*last) as u64) << 8;
    }
    (mix::spread(hash) >> 40) as usize & (PLACES - 1)
}

const fn same(a: &[u8], b: &[u8]) -> bool {
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
pub enum Name {
    /// The name has a hook.
    Hooked(Row),
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
pub fn judge(name: &[u8]) -> Name {
    match WORDS.find(name) {
        Some(word) => match word.row() {
            Some(row) => Name::Hooked(row),
            None if word.is_guarded() => Name::Variant,
            // A word that is only the base name of functions, and no function by itself.
            None if word.copies => Name::Foreign,
            None => Name::Loader,
        },
        None => {
            let base = base_length(name);
            let suffixed = base < name.len() && name.get(..base).is_some_and(is_guarded);
            if suffixed { Name::Variant } else { Name::Foreign }
        }
    }
}

/// Whether functions of that base name charge or launch.
#[inline]
pub fn is_guarded(base: &[u8]) -> bool {
    WORDS.find(base).is_some_and(Word::is_guarded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shim_sys::table::{NVML_ROWS, base_name};

    /// The same rule computed directly from the rows.
    fn guarded_by_rows(base: &str) -> bool {
        let subjects = ["charge", "kernel", "launch", "context", "pool", "share", "module"].map(Action::Hook);
        CUDA_ROWS.iter().any(|row| row.base() == base && subjects.contains(&row.action))
    }

    #[test]
    fn every_name_of_the_table_is_judged_as_its_row_says() {
        let mut variants = 0;
        for (at, row) in CUDA_ROWS.iter().enumerate() {
            let expected = match at {
                at if at < CudaHook::COUNT => Name::Hooked(Row::Cuda(at)),
                _ if guarded_by_rows(row.base()) => Name::Variant,
                _ => Name::Foreign,
            };
            assert_eq!(judge(row.name.as_bytes()), expected, "{}", row.name);
            for suffix in ["_v9", "_v77_ptsz", "_ptds"] {
                let newer = format!("{}{suffix}", row.base());
                let known = CUDA_ROWS.iter().any(|row| row.name == newer);
                let expected = if guarded_by_rows(row.base()) { Name::Variant } else { Name::Foreign };
                assert!(known || judge(newer.as_bytes()) == expected, "{newer}");
                variants += usize::from(expected == Name::Variant && !known);
            }
            assert_eq!(is_guarded(row.base().as_bytes()), guarded_by_rows(base_name(row.name)), "{}", row.name);
        }
        assert!(variants > 100, "{variants}");
        for (at, row) in NVML_ROWS.iter().enumerate() {
            let expected = if at < NvmlHook::COUNT { Name::Hooked(Row::Nvml(at)) } else { Name::Foreign };
            assert_eq!(judge(row.name.as_bytes()), expected, "{}", row.name);
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_foreign_whatever_it_begins_with() {
        for name in
            ["", "c", "cu", "nv", "dl", "cuda", "cudnnCreate", "curl_easy_init", "cuMyOwn", "nvmlFoo", "dlclose"]
        {
            assert_eq!(judge(name.as_bytes()), Name::Foreign, "{name}");
        }
        for row in CUDA_ROWS[..CudaHook::COUNT].iter().chain(NVML_ROWS) {
            for name in [format!("{}X", row.name), row.name[..row.name.len() - 1].to_owned(), format!("x{}", row.name)]
            {
                let there = CUDA_ROWS.iter().chain(NVML_ROWS).any(|row| row.name == name);
                let variant = guarded_by_rows(base_name(&name));
                assert!(there || variant || judge(name.as_bytes()) == Name::Foreign, "{name}");
            }
        }
        for name in super::super::NAMES {
            assert_eq!(judge(name.to_bytes()), Name::Loader);
        }
    }

    #[test]
    fn a_search_for_a_word_ends_soon() {
        let longest =
            (0..PLACES).map(|at| (0..PLACES).take_while(|n| WORDS.index[(at + n) % PLACES] != 0).count()).max();
        assert!(longest.unwrap() <= 16, "{longest:?} places in a row are taken, of {PLACES} for {}", WORDS.count);
        assert!(2 * WORDS.count < PLACES);
    }
}
