//! Plain output, as both programs write it: text that a terminal may have, tables, JSON, files, and exit codes.
//!
//! A crate of its own because the daemon (`vgpud --check`), the reports and the command line all write for people, and
//! text from tenants must be escaped alike in all three. Nothing here knows what it writes.
#![forbid(unsafe_code)]

pub mod say;
