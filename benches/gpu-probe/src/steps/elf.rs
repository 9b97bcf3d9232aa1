//! Exported names of a library, read from its file: the authority on which functions the driver has.

/// Defined global functions of the dynamic symbol table, sorted.
///
/// # Errors
/// A sentence about the first deviation from a 64-bit little-endian ELF file. Nothing outside `file` is ever read.
pub fn exported_functions(file: &[u8]) -> Result<Vec<String>, String> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".to_owned());
    }
    let sections = file_number(file, 0x28, 8)?;
    let (entry, count) = (file_number(file, 0x3a, 2)?, file_number(file, 0x3c, 2)?);
    let section = |index: usize| {
        index.checked_mul(entry).and_then(|offset| offset.checked_add(sections)).ok_or("a section beyond the file")
    };
    for index in 0..count {
        let header = section(index)?;
        const DYNSYM: usize = 11;
        if file_number(file, header + 4, 4)? != DYNSYM {
            continue;
        }
        let symbols = file_bytes(file, file_number(file, header + 0x18, 8)?, file_number(file, header + 0x20, 8)?)?;
        let strings = section(file_number(file, header + 0x28, 4)?)?;
        let strings = file_bytes(file, file_number(file, strings + 0x18, 8)?, file_number(file, strings + 0x20, 8)?)?;
        return symbol_names(symbols, strings);
    }
    Err("no dynamic symbol table".to_owned())
}

fn symbol_names(symbols: &[u8], strings: &[u8]) -> Result<Vec<String>, String> {
    const ENTRY: usize = 24;
    const FUNCTION: u8 = 2;
    let mut names = Vec::new();
    for symbol in symbols.chunks_exact(ENTRY) {
        let (kind, binding) = (symbol[4] & 0xf, symbol[4] >> 4);
        let defined = symbol[6] != 0 || symbol[7] != 0;
        if kind != FUNCTION || !(1..=2).contains(&binding) || !defined {
            continue;
        }
        let at = file_number(symbol, 0, 4)?;
        let text = strings.get(at..).ok_or("a name beyond the table of strings")?;
        let end = text.iter().position(|&byte| byte == 0).ok_or("a name without end")?;
        names.push(String::from_utf8_lossy(&text[..end]).into_owned());
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn file_bytes(file: &[u8], offset: usize, len: usize) -> Result<&[u8], String> {
    let end = offset.checked_add(len).ok_or("a table beyond the file")?;
    file.get(offset..end).ok_or_else(|| "a table beyond the file".to_owned())
}

fn file_number(file: &[u8], offset: usize, len: usize) -> Result<usize, String> {
    let value = file_bytes(file, offset, len)?.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
    usize::try_from(value).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_s_functions_are_found() {
        let (file, _) = crate::driver::file_at_address((libc::getpid as *const ()).addr()).unwrap();
        let names = exported_functions(&std::fs::read(file).unwrap()).unwrap();
        assert!(names.iter().any(|name| name == "getpid"));
        assert!(names.len() > 1000);
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_refused_or_read_without_harm() {
        let (file, _) = crate::driver::file_at_address((libc::getpid as *const ()).addr()).unwrap();
        let file = std::fs::read(file).unwrap();
        for len in [0, 5, 6, 0x29, 0x40, 1000, file.len() / 2] {
            assert!(exported_functions(&file[..len]).is_err(), "{len} bytes");
        }
        assert!(exported_functions(b"#!/bin/sh\n").is_err());
    }
}
