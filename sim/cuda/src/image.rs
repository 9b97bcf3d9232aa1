//! Reads module images: kernels with their parameters, and globals. Accepts PTX text, cubin (ELF), fat binaries.
//!
//! Names and sizes only; nothing is compiled or checked. Compressed entries of a fat binary are not read.
//! Not here: loading a module into a context (`calls/module.rs`).

use shim_sys::cuda::CUresult;

/// A kernel that the image contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelEntry {
    pub(crate) name: String,
    /// Offset and size of each parameter, bytes.
    pub(crate) params: Vec<(usize, usize)>,
    pub(crate) registers: u32,
    pub(crate) shared: u32,
    pub(crate) local: u32,
}

impl KernelEntry {
    fn new(name: &str) -> KernelEntry {
        KernelEntry { name: name.to_owned(), params: Vec::new(), registers: 32, shared: 0, local: 0 }
    }
}

/// The contents of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeImage {
    pub(crate) entries: Vec<KernelEntry>,
    /// Name and size in bytes.
    pub(crate) globals: Vec<(String, u64)>,
    /// Size of the code, bytes: that of the binary, or of the PTX text without comments.
    pub(crate) code: u64,
}

const FAT_WRAPPER: u32 = 0x4662_43B1;
const FAT_MAGIC: u32 = 0xBA55_ED50;
/// Longest PTX text that is searched for its terminator, bytes.
const MAX_PTX_BYTES: usize = 256 << 20;

/// Reads the image at `p`; the image itself states its length.
///
/// # Errors
/// `INVALID_IMAGE` for an unknown format, `INVALID_PTX` for text without a version line, `NO_BINARY_FOR_GPU` for
/// a fat binary without a readable entry.
///
/// # Safety
/// `p` points at a complete image: zero-terminated PTX, an ELF file, or a fat binary.
pub(crate) unsafe fn read(p: *const u8) -> Result<CodeImage, CUresult> {
    if p.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller promises a complete image, so its first byte is readable.
    if unsafe { p.read() } == 0 {
        return Err(CUresult::INVALID_IMAGE);
    }
    // SAFETY: the caller promises a complete image; each format states its length in its header.
    unsafe {
        match peek_magic(p) {
            FAT_WRAPPER => read(peek_value::<*const u8>(p, 8)),
            FAT_MAGIC => {
                let len = usize::from(peek_value::<u16>(p, 6)) + usize::try_from(peek_value::<u64>(p, 8)).unwrap_or(0);
                read_fat_binary(std::slice::from_raw_parts(p, len))
            }
            0x464C_457F => cubin(std::slice::from_raw_parts(p, elf_length(p))),
            _ => {
                let len = (0..MAX_PTX_BYTES).find(|i| *p.add(*i) == 0).ok_or(CUresult::INVALID_IMAGE)?;
                let text = std::slice::from_raw_parts(p, len);
                read_ptx(std::str::from_utf8(text).map_err(|_| CUresult::INVALID_IMAGE)?)
            }
        }
    }
}

/// Reads the first four bytes, but none after a zero: a text may be shorter. No format's magic number has a zero byte.
///
/// # Safety
/// `p` is readable up to its fourth byte or its first zero.
unsafe fn peek_magic(p: *const u8) -> u32 {
    let mut magic = [0; 4];
    for (at, byte) in magic.iter_mut().enumerate() {
        // SAFETY: the caller's promise; the bytes before this one are not zero.
        *byte = unsafe { p.add(at).read() };
        if *byte == 0 {
            break;
        }
    }
    u32::from_le_bytes(magic)
}

/// # Safety
/// `p + at` is readable for a `T`.
unsafe fn peek_value<T>(p: *const u8, at: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { p.add(at).cast::<T>().read_unaligned() }
}

/// # Safety
/// `p` points at an ELF file.
unsafe fn elf_length(p: *const u8) -> usize {
    // SAFETY: header fields of a 64-bit ELF file, then its tables, all inside the file.
    unsafe {
        let sections = usize::try_from(peek_value::<u64>(p, 40)).unwrap_or(0);
        let (size, count) = (usize::from(peek_value::<u16>(p, 58)), usize::from(peek_value::<u16>(p, 60)));
        let programs = usize::try_from(peek_value::<u64>(p, 32)).unwrap_or(0)
            + usize::from(peek_value::<u16>(p, 54)) * usize::from(peek_value::<u16>(p, 56));
        let mut end = (sections + size * count).max(programs).max(64);
        for i in 0..count {
            let at = sections + i * size;
            if peek_value::<u32>(p, at + 4) != 8 {
                let section = peek_value::<u64>(p, at + 24) + peek_value::<u64>(p, at + 32);
                end = end.max(usize::try_from(section).unwrap_or(0));
            }
        }
        end
    }
}

fn little_endian<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(N)?)?;
    Some(field.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
}

fn size(v: u64) -> usize {
    usize::try_from(v).unwrap_or(usize::MAX)
}

/// Reads a fat binary: its first readable ELF entry, or else its first PTX.
fn read_fat_binary(bytes: &[u8]) -> Result<CodeImage, CUresult> {
    let none = CUresult::NO_BINARY_FOR_GPU;
    let mut at = size(little_endian::<2>(bytes, 6).ok_or(none)?);
    let mut text = None;
    while at + 64 <= bytes.len() {
        let kind = little_endian::<2>(bytes, at).ok_or(none)?;
        let header = size(little_endian::<4>(bytes, at + 4).ok_or(none)?);
        let length = size(little_endian::<8>(bytes, at + 8).ok_or(none)?);
        let flags = little_endian::<8>(bytes, at + 40).ok_or(none)?;
        let data = bytes.get(at + header..(at + header).saturating_add(length)).ok_or(none)?;
        let compressed = flags & 0xA000 != 0;
        if !compressed && kind == 2 && data.starts_with(b"\x7fELF") {
            return cubin(data);
        }
        if !compressed && kind == 1 && text.is_none() {
            let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
            text = std::str::from_utf8(&data[..end]).ok();
        }
        at += header + length;
    }
    read_ptx(text.ok_or(none)?)
}

/// Reads an ELF file for the device: kernels are the `.text.*` sections with an information section of their own.
fn cubin(bytes: &[u8]) -> Result<CodeImage, CUresult> {
    parse_cubin(bytes).ok_or(CUresult::INVALID_IMAGE)
}

fn parse_cubin(b: &[u8]) -> Option<CodeImage> {
    if little_endian::<1>(b, 4)? != 2 || little_endian::<2>(b, 18)? != 190 {
        return None;
    }
    let table = size(little_endian::<8>(b, 40)?);
    let (entry, count) = (size(little_endian::<2>(b, 58)?), size(little_endian::<2>(b, 60)?));
    let names = size(little_endian::<2>(b, 62)?);
    let header = |i: usize| table + i * entry;
    let data = |i: usize| {
        b.get(size(little_endian::<8>(b, header(i) + 24)?)..)?.get(..size(little_endian::<8>(b, header(i) + 32)?))
    };
    let text = |section: &[u8], at: u64| {
        let s = section.get(size(at)..)?;
        std::str::from_utf8(&s[..s.iter().position(|c| *c == 0)?]).ok().map(str::to_owned)
    };
    let section_name = |i: usize| text(data(names)?, little_endian::<4>(b, header(i))?);
    let mut image = CodeImage::default();
    for i in 1..count {
        let name = section_name(i).unwrap_or_default();
        if let Some(kernel) = name.strip_prefix(".text.") {
            let mut e = KernelEntry::new(kernel);
            let registers = little_endian::<4>(b, header(i) + 44)? >> 24;
            e.registers = u32::try_from(registers).unwrap_or(0).max(1);
            image.entries.push(e);
        }
    }
    let mut kernels = std::collections::HashSet::new();
    let (mut symbol_names, mut registers) = (Vec::new(), Vec::new());
    for i in 1..count {
        let name = section_name(i).unwrap_or_default();
        let kind = little_endian::<4>(b, header(i) + 4)?;
        if let Some(kernel) = name.strip_prefix(".nv.info.") {
            kernels.insert(kernel.to_owned());
            if let (Some(e), Some(d)) = (image.entries.iter_mut().find(|e| e.name == kernel), data(i)) {
                e.params = kernel_parameters(d);
            }
        } else if name == ".nv.info" {
            registers = register_counts(data(i)?);
        } else if let Some(kernel) = name.strip_prefix(".nv.shared.") {
            let bytes = u32::try_from(little_endian::<8>(b, header(i) + 32)?).unwrap_or(0);
            if let Some(e) = image.entries.iter_mut().find(|e| e.name == kernel) {
                e.shared = bytes;
            }
        } else if kind == 2 {
            let symbols = data(i)?;
            let strings = data(size(little_endian::<4>(b, header(i) + 40)?))?;
            for s in symbols.chunks_exact(24) {
                let (info, index) = (s[4], size(little_endian::<2>(s, 6)?));
                symbol_names.push(text(strings, little_endian::<4>(s, 0)?).unwrap_or_default());
                let home = section_name(index).unwrap_or_default();
                if info & 15 == 1 && (home.starts_with(".nv.global") || home.starts_with(".nv.constant3")) {
                    image.globals.push((text(strings, little_endian::<4>(s, 0)?)?, little_endian::<8>(s, 16)?));
                }
            }
        }
    }
    for (symbol, count) in registers {
        let named = symbol_names.get(symbol).and_then(|n| image.entries.iter_mut().find(|e| e.name == *n));
        if let Some(e) = named {
            e.registers = count.max(1);
        }
    }
    // A `.text` section without an information section is a device function.
    image.entries.retain(|e| kernels.contains(&e.name));
    image.code = b.len() as u64;
    Some(image)
}

/// Attributes of an information section that have data: number and data of each.
fn information_attributes(d: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 4 <= d.len() {
        let (format, attribute, value) = (d[at], d[at + 1], size(little_endian::<2>(d, at + 2).unwrap_or(0)));
        at += 4;
        if format == 4 {
            found.extend(d.get(at..at + value).map(|data| (attribute, data)));
            at += value;
        }
    }
    found
}

/// Parameters from a kernel's information section: attribute 0x17 has the index, offset and size of one.
fn kernel_parameters(d: &[u8]) -> Vec<(usize, usize)> {
    let mut found: Vec<_> = information_attributes(d)
        .into_iter()
        .filter(|(attribute, data)| *attribute == 0x17 && data.len() >= 12)
        .map(|(_, data)| {
            let field = |at| little_endian::<2>(data, at).unwrap_or(0);
            (field(4), (size(field(6)), size(little_endian::<4>(data, 8).unwrap_or(0) >> 18)))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, p)| p).collect()
}

/// Registers per symbol from the common information section: attribute 0x2f.
fn register_counts(d: &[u8]) -> Vec<(usize, u32)> {
    let counts =
        information_attributes(d).into_iter().filter(|(attribute, data)| *attribute == 0x2F && data.len() >= 8);
    counts
        .filter_map(|(_, data)| {
            Some((size(little_endian::<4>(data, 0)?), u32::try_from(little_endian::<4>(data, 4)?).ok()?))
        })
        .collect()
}

/// Reads PTX text.
fn read_ptx(text: &str) -> Result<CodeImage, CUresult> {
    let text = without_comments(text);
    if !text.contains(".version") {
        return Err(CUresult::INVALID_PTX);
    }
    let mut image = CodeImage { code: text.len() as u64, ..CodeImage::default() };
    let mut rest = text.as_str();
    let mut depth = 0usize;
    while let Some(i) = rest.find(['{', '}', '(', ')', '.', '"']) {
        match rest.as_bytes()[i] {
            b'{' | b'(' => depth += 1,
            b'}' | b')' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = rest[i + 1..].find('"').map_or(rest.len(), |n| i + 1 + n + 1);
                rest = &rest[end..];
                continue;
            }
            _ if depth == 0 => {
                let word = word_at(rest, i + 1);
                let after = &rest[i + 1 + word.len()..];
                if word == "entry" {
                    image.entries.push(read_entry(after));
                } else if (word == "global" || word == "const") && !rest[..i].trim_end().ends_with(".extern") {
                    let statement = &after[..after.find([';', '=']).unwrap_or(after.len())];
                    if let Some((name, bytes, _)) = read_declaration(statement) {
                        image.globals.push((name, bytes as u64));
                    }
                    // The braces of an initialiser are no block.
                    let end = after.find(';').unwrap_or(after.len());
                    rest = &after[end..];
                    continue;
                }
                rest = after;
                continue;
            }
            _ => {}
        }
        rest = &rest[i + 1..];
    }
    Ok(image)
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(i) = rest.find('/') {
        let block = rest[i..].starts_with("/*");
        if !block && !rest[i..].starts_with("//") {
            out.push_str(&rest[..=i]);
            rest = &rest[i + 1..];
            continue;
        }
        out.push_str(&rest[..i]);
        let end = if block { rest[i + 2..].find("*/").map(|n| i + n + 4) } else { rest[i..].find('\n').map(|n| i + n) };
        rest = end.map_or("", |e| &rest[e..]);
        out.push(' ');
    }
    out + rest
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '%'
}

fn word_at(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]
}

/// Reads an entry from the text after the word `entry`: its name and the parameters in parentheses.
fn read_entry(after: &str) -> KernelEntry {
    let trimmed = after.trim_start();
    let name = word_at(trimmed, 0);
    let mut e = KernelEntry::new(name);
    let rest = trimmed[name.len()..].trim_start();
    if let Some(list) = rest.strip_prefix('(') {
        let mut offset = 0usize;
        for part in list[..list.find(')').unwrap_or(0)].split(',') {
            if let Some((_, bytes, align)) = read_declaration(part) {
                offset = offset.next_multiple_of(align);
                e.params.push((offset, bytes));
                offset += bytes;
            }
        }
    }
    e
}

/// Name, size in bytes and alignment of a declaration such as `.param .align 8 .b8 name[16]`.
fn read_declaration(text: &str) -> Option<(String, usize, usize)> {
    let (text, count) = match text.find('[') {
        Some(i) => {
            let mut count = 1usize;
            for dimension in text[i..].split('[').skip(1) {
                count *= dimension.split(']').next()?.trim().parse::<usize>().unwrap_or(0);
            }
            (&text[..i], count)
        }
        None => (text, 1),
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let name = *words.last().filter(|w| !w.starts_with('.'))?;
    let mut align = None;
    let mut unit = 0usize;
    // `.v4.f32` and `.ptr.global.align` are several words in one.
    for (i, word) in words.iter().enumerate() {
        let mut lanes = 1;
        for part in word.split('.').filter(|p| !p.is_empty()) {
            match part {
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                // An alignment after `.ptr` is that of the data pointed to, not of the parameter.
                "align" if !words[..=i].iter().any(|w| w.contains(".ptr")) => {
                    align = words.get(i + 1).and_then(|n| n.parse().ok());
                }
                _ => {
                    let digits = part.trim_start_matches(|c: char| c.is_ascii_alphabetic());
                    let letter = &part[..part.len() - digits.len()];
                    if ["b", "u", "s", "f"].contains(&letter) && word.starts_with('.') {
                        unit = digits.parse::<usize>().unwrap_or(0) / 8 * lanes;
                    } else if part == "pred" {
                        unit = 1;
                    }
                }
            }
        }
    }
    (unit > 0).then(|| (name.to_owned(), unit * count, align.unwrap_or(unit).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_two_bytes_at_the_end_of_a_page_is_read_no_further() {
        const PAGE_BYTES: usize = 4096;
        // SAFETY: an anonymous mapping of two pages, of which the second is not readable.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.add(PAGE_BYTES), PAGE_BYTES, libc::PROT_NONE), 0);
            at.cast::<u8>()
        };
        for text in [&b"a\0"[..], b"P\0", b"abc\0"] {
            // SAFETY: the text ends with the readable page, and with a zero as `read` requires.
            let answer = unsafe {
                let at = page.add(PAGE_BYTES - text.len());
                at.copy_from_nonoverlapping(text.as_ptr(), text.len());
                read(at)
            };
            assert_eq!(answer.err(), Some(CUresult::INVALID_PTX));
        }
    }

    #[test]
    fn ptx_entries_have_their_names_and_parameters() {
        let text = r#"
            // .entry not_this()
            .version 8.0
            .target sm_70
            .address_size 64
            .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
            .visible .global .align 4 .b8 table[64] = {1, 2, 3};
            .global .align 8 .u64 counter;
            .const .f32 pi = 0f40490FDB;
            .visible .entry add(
                .param .u64 .ptr .global .align 16 add_a,
                .param .u32 add_n, .param .align 8 .b8 add_s[24],
                .param .u8 last
            ) .maxntid 128, 1, 1
            { .reg .b32 %r<3>; .shared .align 4 .b8 sh[16]; ret; }
            .entry vgpu_spin_ns(.param .u64 ns) { ret; }
            .visible .entry none() { ret; }
        "#;
        let i = read_ptx(text).unwrap();
        let e: Vec<(&str, &[(usize, usize)])> = i.entries.iter().map(|e| (&*e.name, &*e.params)).collect();
        assert_eq!(
            e,
            [("add", &[(0, 8), (8, 4), (16, 24), (40, 1)][..]), ("vgpu_spin_ns", &[(0, 8)][..]), ("none", &[][..])]
        );
        assert_eq!(i.globals, [("table".into(), 64), ("counter".into(), 8), ("pi".into(), 4)]);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        // SAFETY: complete, zero-terminated texts.
        unsafe {
            assert_eq!(read(c"hello".as_ptr().cast()), Err(CUresult::INVALID_PTX));
            assert_eq!(read(c"".as_ptr().cast()), Err(CUresult::INVALID_IMAGE));
            assert_eq!(read(std::ptr::null()), Err(CUresult::INVALID_VALUE));
        }
    }

    #[test]
    fn a_broken_cubin_is_an_error_and_no_crash() {
        let mut bytes = vec![0u8; 256];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = 2;
        bytes[18] = 190;
        bytes[40] = 200;
        bytes[58] = 64;
        bytes[60] = 9;
        assert!(cubin(&bytes).is_err());
    }
}
