//! Identifies the type of an executable file without running it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader32, FileHeader64, Machine};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader as _};
use object::{Endianness, FileKind, Object as _, ReadCache};

/// Type of a file, by which the kernel decides how to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileImage {
    /// An ELF file.
    Elf(ElfFacts),
    /// A script: `#!interpreter [argument]`, split as the kernel splits it.
    Script {
        /// Path of the interpreter.
        interpreter: PathBuf,
        /// Text after the interpreter on the line, as one argument.
        argument: Option<OsString>,
    },
    /// Anything that the kernel does not execute; a shell runs it as a shell script.
    Other,
}

/// Relevant properties of an ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElfFacts {
    /// Word size: 32 or 64.
    pub bits: u8,
    /// Architecture (`e_machine`).
    pub machine: Machine,
    /// True for a shared object: a library or a position-independent program.
    pub shared: bool,
    /// Loader that the program requests; `None` for a static program.
    pub interpreter: Option<PathBuf>,
}

/// Identifies a file.
///
/// # Errors
/// The file cannot be read, or starts like an ELF file and is not one.
pub fn read_image(path: &Path) -> io::Result<FileImage> {
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(256).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(parse_shebang(line));
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Ok(FileImage::Other);
    }
    let data = ReadCache::new(file);
    let broken =
        |why: object::Error| io::Error::new(io::ErrorKind::InvalidData, format!("not a whole ELF file: {why}"));
    match FileKind::parse(&data).map_err(broken)? {
        FileKind::Elf64 => inspect_elf::<FileHeader64<Endianness>>(&data, 64).map_err(broken).map(FileImage::Elf),
        FileKind::Elf32 => inspect_elf::<FileHeader32<Endianness>>(&data, 32).map_err(broken).map(FileImage::Elf),
        _ => Ok(FileImage::Other),
    }
}

fn inspect_elf<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>, bits: u8) -> object::Result<ElfFacts> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    Ok(ElfFacts { bits, machine: header.e_machine(endian), shared: header.e_type(endian) == elf::ET_DYN, interpreter })
}

/// Parses a script's first line after `#!`. The kernel trims it and splits it once, at the first white space.
fn parse_shebang(line: &[u8]) -> FileImage {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let argument = line[end..].trim_ascii();
    if end == 0 {
        return FileImage::Other;
    }
    FileImage::Script {
        interpreter: PathBuf::from(OsStr::from_bytes(&line[..end])),
        argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
    }
}

/// Returns the build id of an ELF file in hexadecimal, if it has one.
#[must_use]
pub fn build_id(path: &Path) -> Option<String> {
    let data = ReadCache::new(File::open(path).ok()?);
    let file: ElfFile64<'_, Endianness, _> = ElfFile64::parse(&data).ok()?;
    let id = file.build_id().ok()??;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns true if a file contains these bytes, which tells a library from another of the same name.
#[must_use]
pub fn contains_bytes(path: &Path, mark: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.windows(mark.len()).any(|window| window == mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> FileImage {
        parse_shebang(line.as_bytes())
    }

    #[test]
    fn a_scripts_line_is_split_as_the_kernel_splits_it() {
        let image = |interpreter: &str, argument: Option<&str>| FileImage::Script {
            interpreter: interpreter.into(),
            argument: argument.map(Into::into),
        };
        assert_eq!(parsed("/bin/sh\nx"), image("/bin/sh", None));
        assert_eq!(parsed("  /bin/sh  -e -u \nx"), image("/bin/sh", Some("-e -u")));
        assert_eq!(parsed("/usr/bin/env\tpython3"), image("/usr/bin/env", Some("python3")));
        assert_eq!(parsed("\n"), FileImage::Other);
    }

    #[test]
    fn this_test_is_a_dynamic_program_of_this_machine_with_a_known_loader() {
        let FileImage::Elf(elf) = read_image(&std::env::current_exe().unwrap()).unwrap() else { panic!() };
        assert_eq!((elf.bits, elf.machine), (64, super::super::arch::HOST_MACHINE));
        assert!(elf.interpreter.unwrap().to_str().unwrap().contains("ld-"));
    }

    #[test]
    fn a_broken_elf_file_is_an_error_and_text_is_other() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"\x7fELF\x02\x01\x01").unwrap();
        assert!(read_image(&path).is_err());
        std::fs::write(&path, b"echo hello\n").unwrap();
        assert_eq!(read_image(&path).unwrap(), FileImage::Other);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read_image(&path).unwrap(), FileImage::Other);
    }
}
