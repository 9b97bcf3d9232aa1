//! Reads values that name places: paths, sockets, addresses, log files.

use std::net::SocketAddr;
use std::path::PathBuf;

use vgpu_core::units::bytes::Bytes;

use super::{
    WrittenValue, WrongValue, read_bytes, read_count, read_duration, read_strict, read_string, read_word, wrong_value,
};
use crate::raw::LogFormat;

/// Reads a log level.
pub fn log(written: &WrittenValue<'_>) -> Result<&'static str, WrongValue> {
    read_word(written, &[("off", "off"), ("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug")])
}

/// Reads the format of log lines.
pub fn log_format(written: &WrittenValue<'_>) -> Result<LogFormat, WrongValue> {
    read_word(written, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}

/// Reads the file size at which a log is rotated.
pub fn log_size(written: &WrittenValue<'_>) -> Result<Bytes, WrongValue> {
    match read_bytes(written)? {
        size if (1 << 16..=1 << 40).contains(&u64::from(size)) => Ok(size),
        _ => wrong_value("is out of range", "64KiB to 1TiB"),
    }
}

/// Reads the number of rotated files to keep.
pub fn log_keep(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    read_count(written, 0..=1000, "a whole number")
}

/// Reads `true` or `false`.
pub fn read_truth(written: &WrittenValue<'_>) -> Result<bool, WrongValue> {
    read_strict(written)
}

/// Reads an address to listen at, or `none`.
pub fn listen(written: &WrittenValue<'_>) -> Result<Option<SocketAddr>, WrongValue> {
    const FORMS: &str = "an address with a port, like \"127.0.0.1:9400\" or \"[::1]:9400\", or \"none\"";
    match read_string(written, FORMS)? {
        "none" => Ok(None),
        text => match text.parse::<SocketAddr>() {
            Ok(at) if at.port() != 0 => Ok(Some(at)),
            Ok(_) => wrong_value("has no port", FORMS),
            Err(_) => wrong_value("is not an address", FORMS),
        },
    }
}

/// Reads the path of a file, or `none`.
pub fn read_file(written: &WrittenValue<'_>) -> Result<Option<PathBuf>, WrongValue> {
    const FORMS: &str = "an absolute path, like \"/var/log/vgpu/vgpud.log\", or \"none\"";
    file_or_none(written, FORMS)
}

/// Reads the time between two checks of the processes that use devices.
pub fn read_look_interval(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    read_duration(written, &(100_000_000..=60_000_000_000))
}

/// Reads the grace time of a process that belongs to no tenant. Its minimum leaves a member on a busy host enough
/// time to say hello.
pub fn read_grace(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    read_duration(written, &(5_000_000_000..=3_600_000_000_000))
}

/// Reads whether processes that belong to no tenant are stopped.
pub fn read_action(written: &WrittenValue<'_>) -> Result<bool, WrongValue> {
    read_word(written, &[("report", false), ("stop", true)])
}

/// Reads an absolute path.
pub fn read_path(written: &WrittenValue<'_>) -> Result<PathBuf, WrongValue> {
    const FORMS: &str = "an absolute path, like \"/run/vgpu\"";
    match read_string(written, FORMS)? {
        text if text.contains('\0') => wrong_value("has a zero byte inside", FORMS),
        text if !text.starts_with('/') => wrong_value("is not absolute", FORMS),
        // With `..`, two names of one file or directory would pass as two places.
        text if text.split('/').any(|part| part == "..") => wrong_value("has a \"..\" inside", FORMS),
        text => Ok(PathBuf::from(text)),
    }
}

/// Reads a pattern of device files, in the form that the daemon matches with the files that a process has open.
pub fn device_file(written: &WrittenValue<'_>) -> Result<PathBuf, WrongValue> {
    const FORMS: &str =
        "an absolute path, in which * stands for any text and [0-9] for a digit, like \"/dev/nvidia[0-9]*\"";
    let path = read_path(written).map_err(|why| WrongValue { accepted: FORMS.into(), ..why })?;
    match path.to_string_lossy().replace("[0-9]", "").contains(['[', ']', '?']) {
        true => wrong_value("is not such a pattern", FORMS),
        false => Ok(path),
    }
}

/// Reads the path of one program.
pub fn program(written: &WrittenValue<'_>) -> Result<PathBuf, WrongValue> {
    const FORMS: &str = "the absolute path of one program, like \"/usr/bin/nvidia-smi\"";
    let path = read_path(written).map_err(|why| WrongValue { accepted: FORMS.into(), ..why })?;
    match path.to_string_lossy().contains(['*', '?']) {
        true => wrong_value("is a pattern", FORMS),
        false => Ok(path),
    }
}

/// Reads a directory, or `none`.
pub fn read_directory(written: &WrittenValue<'_>) -> Result<Option<PathBuf>, WrongValue> {
    const FORMS: &str = "an absolute path, like \"/var/lib/vgpu\", or \"none\"";
    match read_string(written, FORMS)? {
        "none" => Ok(None),
        _ => read_path(written).map(Some).map_err(|why| WrongValue { accepted: FORMS.into(), ..why }),
    }
}

/// Reads hours or days (`36h`, `400d`), from an hour to ten years. Returns seconds.
pub fn read_long_time(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    const FORMS: &str = "a number of hours or days, like \"36h\" or \"400d\", from 1h to 3650d";
    let text = read_string(written, FORMS)?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let unit = match unit {
        "h" => 3_600,
        "d" => 86_400,
        _ => return wrong_value("is not a number of hours or days", FORMS),
    };
    let Some(seconds) = amount.parse::<u64>().ok().and_then(|amount| amount.checked_mul(unit)) else {
        return wrong_value("is not a number of hours or days", FORMS);
    };
    if (3_600..=3_650 * 86_400).contains(&seconds) { Ok(seconds) } else { wrong_value("is out of range", FORMS) }
}

fn file_or_none(written: &WrittenValue<'_>, forms: &str) -> Result<Option<PathBuf>, WrongValue> {
    match read_string(written, forms)? {
        "none" => Ok(None),
        _ => match read_path(written) {
            Ok(path) if path.file_name().is_some() => Ok(Some(path)),
            Ok(_) => wrong_value("names no file", forms),
            Err(why) => wrong_value(why.what, forms),
        },
    }
}

/// Reads the path of a socket, or `none`.
pub fn read_socket(written: &WrittenValue<'_>) -> Result<Option<PathBuf>, WrongValue> {
    const FORMS: &str = "an absolute path, like \"/run/vgpu/admin.sock\", or \"none\"";
    file_or_none(written, FORMS)
}
