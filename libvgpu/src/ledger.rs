//! The tenant's charges on one device, in a file that its processes share.
//!
//! - [`file`]: finds, joins and follows the file; [`joined`]: this process's slot in it, and the kernel's locks
//! - [`held_shares`]: exported memory that several processes hold; [`descriptor_marks`]: how importers find it

pub mod descriptor_marks;
pub mod file;
pub mod held_shares;
pub mod joined;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    descriptor_marks::reset_after_fork();
    held_shares::reset_after_fork();
}
