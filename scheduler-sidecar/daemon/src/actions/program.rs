//! The first steps of a started process, before it becomes the program of an action.
//!
//! The daemon starts itself again with [`BECOME_PROGRAM`], because these steps belong to the new process and the daemon
//! has no unsafe code between fork and exec. The process asks to be killed when the daemon dies, closes every
//! descriptor that it inherited but the first three, and executes the program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shim_sys::descriptors::close_on_exec;

/// First argument of a daemon that is to become a program; the number of its parent and the command follow.
pub const BECOME_PROGRAM: &str = "--become-program";

/// Exit code of a process that cannot become the program.
const CANNOT_START: u8 = 126;

/// Becomes the program that the arguments name. Returns only if that fails.
pub fn become_program(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let (parent, program) = (args.next(), args.next());
    let (Some(parent), Some(program)) = (parent, program) else {
        eprintln!("vgpud: {BECOME_PROGRAM} is for the daemon's own use");
        return ExitCode::from(2);
    };
    let result = set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from);
    // The daemon may have died before the request.
    if getppid().is_none_or(|now| parent != now.as_raw_nonzero().to_string().as_str()) {
        return ExitCode::from(CANNOT_START);
    }
    let why = match result.and_then(|()| close_inherited()) {
        Ok(()) => Command::new(&program).args(args).exec(),
        Err(why) => why,
    };
    eprintln!("{} cannot be started: {why}", program.display());
    ExitCode::from(CANNOT_START)
}

/// Marks every descriptor but the first three to be closed when the program starts. Descriptors of the service manager,
/// such as the administrative socket, are inherited otherwise.
fn close_inherited() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        number.filter(|number| *number > 2).into_iter().for_each(close_on_exec);
    }
    Ok(())
}
