//! Lists of names packed into one text. A list of references would take forty bytes more for each of some hundred
//! names, because the loader relocates every address.

use core::ffi::CStr;
use shim_sys::table::{CUDA_ROWS, CudaHook, base_length};

/// Names in sequence, each ended by a zero byte, and the start of each.
pub struct NameText<const BYTES: usize, const COUNT: usize> {
    text: [u8; BYTES],
    at: [u16; COUNT],
}

/// Bytes of the names, with their terminators.
pub const fn text_bytes(names: &[&CStr]) -> usize {
    let (mut all, mut number) = (0, 0);
    while number < names.len() {
        all += names[number].count_bytes() + 1;
        number += 1;
    }
    all
}

impl<const BYTES: usize, const COUNT: usize> NameText<BYTES, COUNT> {
    /// Packs the names, in their order.
    #[allow(clippy::cast_possible_truncation)] // asserted
    pub const fn from_names(names: &[&CStr]) -> Self {
        assert!(names.len() == COUNT && BYTES <= u16::MAX as usize);
        let (mut all, mut number, mut end) = (Self { text: [0; BYTES], at: [0; COUNT] }, 0, 0);
        while number < COUNT {
            all.at[number] = end as u16;
            end = append_name(&mut all.text, end, names[number].to_bytes());
            number += 1;
        }
        assert!(end == BYTES);
        all
    }

    /// The name with that number; empty if there is none.
    #[inline]
    pub fn get(&self, number: usize) -> &CStr {
        let rest = self.at.get(number).and_then(|at| self.text.get(usize::from(*at)..));
        rest.and_then(|rest| CStr::from_bytes_until_nul(rest).ok()).unwrap_or(c"")
    }

    /// Whether the name with that number begins with `text`.
    #[inline]
    pub fn begins_with(&self, number: usize, text: &[u8]) -> bool {
        self.at.get(number).and_then(|at| self.text.get(usize::from(*at)..)).is_some_and(|rest| rest.starts_with(text))
    }
}

const fn append_name(text: &mut [u8], mut end: usize, name: &[u8]) -> usize {
    let mut at = 0;
    while at < name.len() {
        text[end] = name[at];
        (at, end) = (at + 1, end + 1);
    }
    end + 1
}

const PASSED_NAMES_BYTES: usize = {
    let (mut all, mut row) = (0, CudaHook::COUNT);
    while row < CUDA_ROWS.len() {
        if is_variant_of_a_hook(CUDA_ROWS[row].name.as_bytes()) {
            all += CUDA_ROWS[row].name.len() + 1;
        }
        row += 1;
    }
    all
};

/// Driver functions that the table lists as unhooked although others of their base name are hooked.
static PASSED_NAMES: [u8; PASSED_NAMES_BYTES] = {
    let (mut text, mut row, mut end) = ([0; PASSED_NAMES_BYTES], CudaHook::COUNT, 0);
    while row < CUDA_ROWS.len() {
        if is_variant_of_a_hook(CUDA_ROWS[row].name.as_bytes()) {
            end = append_name(&mut text, end, CUDA_ROWS[row].name.as_bytes());
        }
        row += 1;
    }
    text
};

/// Whether a hook has the same base name.
const fn is_variant_of_a_hook(name: &[u8]) -> bool {
    let (length, mut hook) = (base_length(name), 0);
    while hook < CudaHook::COUNT {
        let other = CUDA_ROWS[hook].name.as_bytes();
        // The last letter first, because most names share their first letters.
        if other.len() >= length && other[length - 1] == name[length - 1] && base_length(other) == length {
            let mut at = 2;
            while at < length && name[at] == other[at] {
                at += 1;
            }
            if at == length {
                return true;
            }
        }
        hook += 1;
    }
    false
}

/// Names of driver functions that the table lists as unhooked although others of their base name are hooked. Lookups
/// need no others.
pub fn passed_names() -> impl Iterator<Item = &'static CStr> {
    PASSED_NAMES.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shim_sys::table::CUDA_HOOK_NAMES;

    #[test]
    fn names_come_out_as_they_went_in() {
        static ALL: NameText<{ text_bytes(CUDA_HOOK_NAMES) }, { CudaHook::COUNT }> =
            NameText::from_names(CUDA_HOOK_NAMES);
        for (number, name) in CUDA_HOOK_NAMES.iter().enumerate() {
            assert_eq!(ALL.get(number), *name);
            assert!(ALL.begins_with(number, name.to_bytes()) && !ALL.begins_with(number, b"cv"));
        }
        assert_eq!(ALL.get(CudaHook::COUNT), c"");
        assert!(!ALL.begins_with(CudaHook::COUNT, b"cu"));
        let (hooks, passes) = CUDA_ROWS.split_at(CudaHook::COUNT);
        let variants = passes.iter().filter(|row| hooks.iter().any(|hook| hook.base_name() == row.base_name()));
        let variants: Vec<&str> = variants.map(|row| row.name).collect();
        // None at present: all variants of a hook are hooks.
        assert!(passed_names().map(|name| name.to_str().unwrap()).eq(variants));
    }
}
