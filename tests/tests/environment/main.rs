//! Variables other than the limits: modes ([`modes`]), every row of the variable table as programs meet it ([`rows`]),
//! and changes that a program makes to its own environment after its start ([`later`]).
//!
//! The meaning of each value is tested in vgpu-core (`tests/modes.rs`, `tests/variables.rs`), bad values in `input.rs`.

mod later;
mod modes;
mod rows;

use std::fs;
use vgpu_core::memory::ledger::{LedgerCopy, parse_ledger};
use vgpu_tests::Lab;

/// A copy of the lab's only ledger; `None` if there is none.
fn ledger(lab: &Lab) -> Option<LedgerCopy> {
    let file = fs::read_dir(lab.state()).unwrap().next()?.unwrap();
    Some(parse_ledger(&fs::read(file.path()).unwrap()).expect("a ledger"))
}
