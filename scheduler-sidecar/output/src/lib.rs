//! Writes plain output for both programs: text that is safe on a terminal, tables, JSON, files, and exit codes.
//!
//! A crate of its own because the daemon (`vgpud --check`), the reports and the command line all write for people.
//! All three must escape tenants' text in the same way. The crate knows nothing about the content.
#![forbid(unsafe_code)]

pub mod say;
