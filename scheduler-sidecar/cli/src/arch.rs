//! Machine architectures: the one this program was built for, and the names of others. The only file of this crate
//! that names one; the library's are in `libvgpu/src/ffi/arch/`, the build's in `make/arch.mk`.

use object::elf::{self, Machine};

/// Machine that this program was built for; the library next to it is built for the same.
pub const HOST_MACHINE: Machine = host::MACHINE;
/// Path at which programs of this architecture expect glibc's loader.
pub const GLIBC_LOADER: &str = host::LOADER;
/// Path at which programs of this architecture expect musl's loader.
pub const MUSL_LOADER: &str = host::MUSL;

#[cfg(target_arch = "x86_64")]
mod host {
    pub const MACHINE: crate::arch::Machine = super::elf::EM_X86_64;
    pub const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
    pub const MUSL: &str = "/lib/ld-musl-x86_64.so.1";
}

#[cfg(target_arch = "aarch64")]
mod host {
    pub const MACHINE: crate::arch::Machine = super::elf::EM_AARCH64;
    pub const LOADER: &str = "/lib/ld-linux-aarch64.so.1";
    pub const MUSL: &str = "/lib/ld-musl-aarch64.so.1";
}

/// Returns the usual name of a machine.
#[must_use]
pub fn name(machine: Machine) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_AARCH64 => "aarch64".into(),
        elf::EM_386 => "i386".into(),
        elf::EM_ARM => "arm".into(),
        elf::EM_RISCV => "riscv".into(),
        elf::EM_PPC64 => "ppc64".into(),
        elf::EM_S390 => "s390".into(),
        other => format!("machine {}", other.0),
    }
}
