//! Reads values that name places: paths, sockets, addresses, log files.

use std::net::SocketAddr;
use std::path::PathBuf;

use vgpu_core::units::bytes::Bytes;

use super::{Written, Wrong, bytes, count, duration, strict, string, word, wrong};
use crate::raw::LogFormat;

/// Reads a log level.
pub fn log(written: &Written<'_>) -> Result<&'static str, Wrong> {
    word(written, &[("off", "off"), ("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug")])
}

/// Reads the format of log lines.
pub fn log_format(written: &Written<'_>) -> Result<LogFormat, Wrong> {
    word(written, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}

/// Reads the file size at which a log is rotated.
pub fn log_size(written: &Written<'_>) -> Result<Bytes, Wrong> {
    match bytes(written)? {
        size if (1 << 16..=1 << 40).contains(&u64::from(size)) => Ok(size),
        _ => wrong("is out of range", "64KiB to 1TiB"),
    }
}

/// Reads the number of rotated files to keep.
pub fn log_keep(written: &Written<'_>) -> Result<u32, Wrong> {
    count(written, 0..=1000, "a whole number")
}

/// Reads `true` or `false`.
pub fn truth(written: &Written<'_>) -> Result<bool, Wrong> {
    strict(written)
}

/// Reads an address to listen at, or `none`.
pub fn listen(written: &Written<'_>) -> Result<Option<SocketAddr>, Wrong> {
    const FORMS: &str = "an address with a port, like \"127.0.0.1:9400\" or \"[::1]:9400\", or \"none\"";
    match string(written, FORMS)? {
        "none" => Ok(None),
        text => match text.parse::<SocketAddr>() {
            Ok(at) if at.port() != 0 => Ok(Some(at)),
            Ok(_) => wrong("has no port", FORMS),
            Err(_) => wrong("is no address", FORMS),
        },
    }
}

/// Reads the path of a file, or `none`.
pub fn file(written: &Written<'_>) -> Result<Option<PathBuf>, Wrong> {
    const FORMS: &str = "an absolute path, like \"/var/log/vgpu/vgpud.log\", or \"none\"";
    file_or_none(written, FORMS)
}

/// Reads the time between two checks of the processes that use devices.
pub fn looks(written: &Written<'_>) -> Result<u64, Wrong> {
    duration(written, &(100_000_000..=60_000_000_000))
}

/// Reads the grace time of a process that belongs to no tenant. Its minimum leaves a member on a busy host enough
/// time to say hello.
pub fn grace(written: &Written<'_>) -> Result<u64, Wrong> {
    duration(written, &(5_000_000_000..=3_600_000_000_000))
}

/// Reads whether processes that belong to no tenant are stopped.
pub fn action(written: &Written<'_>) -> Result<bool, Wrong> {
    word(written, &[("report", false), ("stop", true)])
}

/// Reads an absolute path.
pub fn path(written: &Written<'_>) -> Result<PathBuf, Wrong> {
    const FORMS: &str = "an absolute path, like \"/run/vgpu\"";
    match string(written, FORMS)? {
        text if text.contains('\0') => wrong("has a zero byte inside", FORMS),
        text if !text.starts_with('/') => wrong("is not absolute", FORMS),
        // With `..`, two names of one file or directory would pass as two places.
        text if text.split('/').any(|part| part == "..") => wrong("has a \"..\" inside", FORMS),
        text => Ok(PathBuf::from(text)),
    }
}

/// Reads a pattern of device files, as [`crate::proof::processes::matches`] reads it.
pub fn device_file(written: &Written<'_>) -> Result<PathBuf, Wrong> {
    const FORMS: &str =
        "an absolute path, in which * stands for any text and [0-9] for a digit, like \"/dev/nvidia[0-9]*\"";
    let path = path(written).map_err(|why| Wrong { accepted: FORMS.into(), ..why })?;
    match path.to_string_lossy().replace("[0-9]", "").contains(['[', ']', '?']) {
        true => wrong("is no such pattern", FORMS),
        false => Ok(path),
    }
}

/// Reads the path of one program.
pub fn program(written: &Written<'_>) -> Result<PathBuf, Wrong> {
    const FORMS: &str = "the absolute path of one program, like \"/usr/bin/nvidia-smi\"";
    let path = path(written).map_err(|why| Wrong { accepted: FORMS.into(), ..why })?;
    match path.to_string_lossy().contains(['*', '?']) {
        true => wrong("is a pattern", FORMS),
        false => Ok(path),
    }
}

/// Reads a directory, or `none`.
pub fn directory(written: &Written<'_>) -> Result<Option<PathBuf>, Wrong> {
    const FORMS: &str = "an absolute path, like \"/var/lib/vgpu\", or \"none\"";
    match string(written, FORMS)? {
        "none" => Ok(None),
        _ => path(written).map(Some).map_err(|why| Wrong { accepted: FORMS.into(), ..why }),
    }
}

/// Reads a long time in seconds: an hour to ten years.
pub fn long(written: &Written<'_>) -> Result<u64, Wrong> {
    const FORMS: &str = "a number of hours or days, like \"36h\" or \"400d\", from 1h to 3650d";
    let text = string(written, FORMS)?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let unit = match unit {
        "h" => 3_600,
        "d" => 86_400,
        _ => return wrong("is not a number of hours or days", FORMS),
    };
    let Some(seconds) = amount.parse::<u64>().ok().and_then(|amount| amount.checked_mul(unit)) else {
        return wrong("is not a number of hours or days", FORMS);
    };
    if (3_600..=3_650 * 86_400).contains(&seconds) { Ok(seconds) } else { wrong("is out of range", FORMS) }
}

fn file_or_none(written: &Written<'_>, forms: &str) -> Result<Option<PathBuf>, Wrong> {
    match string(written, forms)? {
        "none" => Ok(None),
        _ => match path(written) {
            Ok(path) if path.file_name().is_some() => Ok(Some(path)),
            Ok(_) => wrong("names no file", forms),
            Err(why) => wrong(why.what, forms),
        },
    }
}

/// Reads the path of a socket, or `none`.
pub fn socket(written: &Written<'_>) -> Result<Option<PathBuf>, Wrong> {
    const FORMS: &str = "an absolute path, like \"/run/vgpu/admin.sock\", or \"none\"";
    file_or_none(written, FORMS)
}
