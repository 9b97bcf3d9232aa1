//! The private table that nvidia-smi of driver 535 requests: it exists, and each of its functions returns "not
//! supported".
//!
//! Measured with that program: it requests the table of one id, checks its first word (its size, 245 words) and
//! calls some functions, all of which may fail. The real functions are undocumented and not imitated. The program
//! gets its process list, `dmon`, `pmon` and the `topo` matrix of several devices from them, so these stay empty.
//! Any other id is an invalid argument. All this works before init too (compared in `tests/oracle.rs`).

use crate::arguments::{CallerPlace, NvmlAnswer, code};
use core::ffi::c_void;
use shim_sys::nvml::nvmlReturn_t;

const TABLE_ID: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];
const TABLE_WORDS: usize = 245;

extern "C" fn answer_unsupported() -> nvmlReturn_t {
    nvmlReturn_t::NOT_SUPPORTED
}

#[repr(C)]
struct PrivateTable {
    bytes: usize,
    slots: [extern "C" fn() -> nvmlReturn_t; TABLE_WORDS - 1],
}

static PRIVATE_TABLE: PrivateTable =
    PrivateTable { bytes: TABLE_WORDS * size_of::<usize>(), slots: [answer_unsupported; TABLE_WORDS - 1] };

pub fn nvmlInternalGetExportTable(table: CallerPlace<*const c_void>, id: [u8; 16]) -> NvmlAnswer {
    if table.is_null() {
        return Err(code::ERROR_INVALID);
    }
    if id != TABLE_ID {
        return Err(code::ERROR_INVALID);
    }
    table.put_value((&raw const PRIVATE_TABLE).cast())
}
