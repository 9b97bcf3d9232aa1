//! Finds the ELF files that a command would run, through `PATH`, scripts and `env`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::elf::{self, ElfFacts, FileImage};

/// Longest chain of interpreters; the kernel allows five.
const MAX_INTERPRETERS: usize = 5;

/// An ELF file that would run.
#[derive(Debug)]
pub struct ChainStep {
    /// Path of the file.
    pub path: PathBuf,
    /// Properties read from the ELF headers of the file.
    pub elf: ElfFacts,
    /// True if the kernel starts it with more rights than its caller's, so that the loader ignores LD_PRELOAD.
    pub secure: bool,
}

/// Everything that one command would run.
#[derive(Debug, Default)]
pub struct ProgramChain {
    /// Scripts that are run on the way to the ELF file, in order.
    pub scripts: Vec<PathBuf>,
    /// ELF files: one, or `env` and what it starts.
    pub steps: Vec<ChainStep>,
    /// The reason why the environment does not reach the last ELF file.
    pub drops_environment: Option<String>,
}

/// The reason why a command cannot be followed; it could not be started either.
#[derive(Debug)]
pub struct NotStartable(pub String);

/// Finds a program as `execvp` does.
///
/// # Errors
/// [`NotStartable`] if there is no such file, or none that may be executed.
pub fn find(name: &OsStr) -> Result<PathBuf, NotStartable> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(why) => Err(NotStartable(format!("{}: {why}", path.display()))),
            Ok(_) if !is_executable(&path) => Err(NotStartable(format!("{} is not executable", path.display()))),
            Ok(_) => Ok(path),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/bin:/usr/bin"));
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| NotStartable(format!("{}: there is no such program in PATH", name.display())))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file()) && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Follows a program to the ELF files that would run.
///
/// # Errors
/// [`NotStartable`] if one of the files does not exist, cannot be read, or is not executable.
pub fn follow_program(name: &OsStr) -> Result<ProgramChain, NotStartable> {
    let mut chain = ProgramChain::default();
    let mut path = find(name)?;
    for _ in 0..=MAX_INTERPRETERS {
        match elf::read_image(&path).map_err(|why| NotStartable(format!("{}: {why}", path.display())))? {
            FileImage::Elf(elf) => {
                let secure = is_secure(&path);
                chain.steps.push(ChainStep { path, elf, secure });
                return Ok(chain);
            }
            FileImage::Script { interpreter, argument } => {
                let through_env = interpreter.file_name() == Some(OsStr::new("env"));
                chain.scripts.push(path);
                path = match through_env.then(|| started_by_env(argument.as_deref(), &mut chain)).flatten() {
                    None => find(interpreter.as_os_str())?,
                    Some(target) => {
                        let env = find(interpreter.as_os_str())?;
                        if let FileImage::Elf(elf) =
                            elf::read_image(&env).map_err(|why| NotStartable(format!("{}: {why}", env.display())))?
                        {
                            chain.steps.push(ChainStep { secure: is_secure(&env), path: env, elf });
                        }
                        find(&target)?
                    }
                };
            }
            // A file that the kernel refuses is run by the shell, as execvp does it: follow /bin/sh.
            FileImage::Other => {
                chain.scripts.push(path);
                path = PathBuf::from("/bin/sh");
            }
        }
    }
    Err(NotStartable(format!("{}: a chain of more than {MAX_INTERPRETERS} interpreters", name.display())))
}

/// Returns the program that `env` in a script's first line starts; notes options that remove LD_PRELOAD.
fn started_by_env(argument: Option<&OsStr>, chain: &mut ProgramChain) -> Option<OsString> {
    let argument = argument?;
    // Without -S the kernel passes everything as one argument.
    let split = argument.as_bytes().starts_with(b"-S") || argument.as_bytes().starts_with(b"--split-string");
    let text = argument.to_str()?;
    let words: Vec<&str> = if split { text.split_ascii_whitespace().collect() } else { vec![text] };
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let word = match word {
            "-S" | "--split-string" => continue,
            word => word.strip_prefix("-S").or(word.strip_prefix("--split-string=")).unwrap_or(word),
        };
        match word {
            "-" | "-i" | "--ignore-environment" => {
                chain.drops_environment =
                    Some(format!("its first line starts it by `env {word}`, without the environment"));
            }
            "-u" | "--unset" => {
                if words.next() == Some("LD_PRELOAD") {
                    chain.drops_environment = Some("its first line unsets LD_PRELOAD".into());
                }
            }
            "-uLD_PRELOAD" | "--unset=LD_PRELOAD" => {
                chain.drops_environment = Some("its first line unsets LD_PRELOAD".into());
            }
            "-C" | "--chdir" => drop(words.next()),
            word if word.starts_with('-') => {}
            word if word.starts_with("LD_PRELOAD=") => {
                chain.drops_environment = Some("its first line sets LD_PRELOAD again".into());
            }
            word if word.contains('=') => {}
            word => return Some(word.into()),
        }
    }
    None
}

/// Returns true if the kernel would start this file in secure mode for this caller. Set-user-id, set-group-id and
/// file capabilities cause that, unless the mount or the process forbids gaining rights.
fn is_secure(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let mode = meta.permissions().mode();
    let uid = rustix::process::getuid();
    let other_user = mode & 0o4000 != 0 && meta.uid() != uid.as_raw();
    let other_group = mode & 0o2010 == 0o2010 && meta.gid() != rustix::process::getgid().as_raw();
    let capable = !uid.is_root() && rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok();
    (other_user || other_group || capable) && !gains_nothing(path)
}

fn gains_nothing(path: &Path) -> bool {
    let no_new_privileges = || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"))
    };
    let nosuid = rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NOSUID));
    nosuid || no_new_privileges()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(argument: &str) -> (Option<String>, bool) {
        let mut chain = ProgramChain::default();
        let target = started_by_env(Some(OsStr::new(argument)), &mut chain);
        (target.map(|target| target.into_string().unwrap()), chain.drops_environment.is_some())
    }

    #[test]
    fn env_is_followed_to_what_it_starts() {
        let to = |name: &str| Some(name.to_owned());
        assert_eq!(env("python3"), (to("python3"), false));
        assert_eq!(env("-S python3 -u"), (to("python3"), false));
        assert_eq!(env("-S A=1 -C / -v node --x"), (to("node"), false));
        assert_eq!(env("-Spython3"), (to("python3"), false));
        assert_eq!(env("-S -i python3"), (to("python3"), true));
        assert_eq!(env("-S -u LD_PRELOAD python3"), (to("python3"), true));
        assert_eq!(env("-S -u OTHER python3"), (to("python3"), false));
        assert_eq!(env("-S LD_PRELOAD= python3"), (to("python3"), true));
        assert_eq!(env("-S"), (None, false));
    }
}
