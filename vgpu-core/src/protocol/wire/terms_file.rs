//! Encodes and decodes the terms file: a tenant's limits, for members that start while the daemon is away.
//!
//! The daemon writes the file next to the tenant's socket when it starts and when the terms change. It writes another
//! name and renames it, so the file is never incomplete. A member reads it only if no daemon answers at the socket.
//! Each line is one flat JSON object by the rules of [`super`]. The first line is the tenant's, then follow its users
//! and its devices:
//!
//! ```text
//! {"terms":1,"epoch":7,"tenant":"a","mode":"enforce","on_error":"closed","on_loss":"local","strict":false,"users":1,
//!  "user_namespace":4026531837,"devices":2}
//! {"uid":100000,"last":165535}
//! {"device":"GPU-6b1c...","memory_limit":1073741824,"sm_limit":30,"sm_request":20}
//! {"device":"*","memory_limit":null,"sm_limit":null,"sm_request":null}
//! ```
//!
//! `users` and `devices` count the lines that follow, so a truncated file is rejected. If `users` is null, every user
//! may start a member. A limit that is null is no limit. A missing key is an error, except `on_error` (closed) and
//! `user_namespace` (not known). The mode `off` is an error too.
//! `user_namespace` is the inode of the daemon's user namespace, in which the uids are valid. `*` stands for every
//! device without a line of its own. A device without either may not be used.
//!
//! `vgpud` writes the file, libvgpu reads it. Not here: where the file is, who may write it, and how old it may be.

use super::json::{JsonObject, JsonWriter};
use super::{MAX_DEVICE, MAX_TENANT, WireError, parse_share_value, write_limits};
use crate::limits::Mode;
use crate::time::gate::loss::OnLoss;
use crate::units::bytes::Bytes;
use crate::units::share::Share;
use crate::units::uuid;
use core::ops::RangeInclusive;

/// Version of this format.
pub const TERMS_FORMAT: u64 = 1;

/// Name of the file, which is next to the tenant's socket.
pub const TERMS_FILE_NAME: &str = "terms.json";

/// Suffix of the directory of a tenant's ledgers, which is next to its socket and has the socket's name plus this.
pub const LEDGERS_SUFFIX: &str = ".ledgers";

/// Most bytes of a file.
pub const MAX_TERMS_FILE_BYTES: usize = 64 << 10;

/// Device name for all devices without a line of their own.
pub const ALL_DEVICES: &str = "*";

/// A tenant's terms on all devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermsFile {
    /// Epoch of the daemon that wrote it.
    pub epoch: u64,
    /// Name of the tenant.
    pub tenant: String,
    /// Whether limits are enforced or use is only measured.
    pub mode: Mode,
    /// True if a limit that cannot be enforced is only a warning.
    pub open_on_error: bool,
    /// Behaviour of members without the daemon.
    pub on_loss: OnLoss,
    /// True if bypasses of the hooks are refused.
    pub strict: bool,
    /// Ranges of uids that may start a member; `None`: all.
    pub users: Option<Vec<RangeInclusive<u32>>>,
    /// Inode of the daemon's user namespace, in which the uids of `users` are valid; 0: not known.
    pub user_namespace: u64,
    /// Terms of each device, at most one entry a device.
    pub devices: Vec<DeviceTerms>,
}

/// A tenant's terms on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTerms {
    /// The device's UUID, or [`ALL_DEVICES`].
    pub device: String,
    /// Hard memory limit; `None` = no limit. Never 0.
    pub memory_limit: Option<Bytes>,
    /// Ceiling on device time, 1 % or more; `None` = no limit.
    pub sm_limit: Option<Share>,
    /// Floor of device time; `None` = none.
    pub sm_request: Option<Share>,
}

impl TermsFile {
    /// Encodes the file.
    ///
    /// # Errors
    /// [`WireError::TextTooLong`]; [`WireError::TooLong`] if it would be longer than [`MAX_TERMS_FILE_BYTES`].
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        line.write_number("terms", TERMS_FORMAT);
        line.write_number("epoch", self.epoch);
        line.write_string("tenant", super::require_short("tenant", &self.tenant, MAX_TENANT)?);
        line.write_string("mode", super::mode_word(self.mode));
        line.write_string("on_error", super::on_error_word(self.open_on_error));
        line.write_string("on_loss", super::on_loss_word(self.on_loss));
        line.write_boolean("strict", self.strict);
        line.number_or_null("users", self.users.as_ref().map(|users| users.len() as u64));
        line.write_number("user_namespace", self.user_namespace);
        line.write_number("devices", self.devices.len() as u64);
        let mut file = line.finish_line()?;
        for users in self.users.iter().flatten() {
            let mut line = JsonWriter::new();
            line.write_number("uid", u64::from(*users.start()));
            line.write_number("last", u64::from(*users.end()));
            file.push_str(&line.finish_line()?);
        }
        for terms in &self.devices {
            let mut line = JsonWriter::new();
            line.write_string("device", super::require_short("device", &terms.device, MAX_DEVICE)?);
            write_limits(terms.memory_limit, terms.sm_limit, &mut line);
            line.share_or_null("sm_request", terms.sm_request);
            file.push_str(&line.finish_line()?);
        }
        if file.len() > MAX_TERMS_FILE_BYTES { Err(WireError::TooLong) } else { Ok(file) }
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// Every [`WireError`]. A value that is not understood is an error, never a default. A device named twice, in any
    /// spelling, is [`WireError::DuplicateKey`]. A wrong number of device lines is [`WireError::OutOfRange`].
    pub fn decode(file: &[u8]) -> Result<Self, WireError> {
        if file.len() > MAX_TERMS_FILE_BYTES {
            return Err(WireError::TooLong);
        }
        let mut lines = file.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let head = JsonObject::parse(lines.next().unwrap_or_default())?;
        match super::require_value(head.number_value("terms")?, "terms")? {
            TERMS_FORMAT => {}
            value => return Err(WireError::OutOfRange { key: "terms", value, accepted: "1" }),
        }
        let tenant = super::require_value(head.string_value("tenant")?, "tenant")?;
        let count = super::require_value(head.number_value("devices")?, "devices")?;
        let mut terms = Self {
            epoch: super::require_value(head.number_value("epoch")?, "epoch")?,
            tenant: super::require_short("tenant", tenant, MAX_TENANT)?.to_owned(),
            mode: super::read_mode(&head)?,
            open_on_error: super::read_on_error(&head)?,
            on_loss: super::read_on_loss(&head)?,
            strict: super::require_value(head.boolean_value("strict")?, "strict")?,
            users: None,
            user_namespace: head.number_value("user_namespace")?.unwrap_or(0),
            devices: Vec::new(),
        };
        // A tenant of the daemon is limited or observed, so no daemon writes `off`.
        if terms.mode == Mode::Off {
            return Err(WireError::WrongKind { key: "mode", expected: "enforce or observe" });
        }
        super::require_value(head.get("users"), "users")?;
        if let Some(count) = head.number_value("users")? {
            let mut users = Vec::new();
            for _ in 0..count {
                let line = JsonObject::parse(lines.next().unwrap_or_default())?;
                users.push(parse_uid(&line, "uid")?..=parse_uid(&line, "last")?);
            }
            terms.users = Some(users);
        }
        for line in lines {
            let line = JsonObject::parse(line)?;
            let device = super::require_value(line.string_value("device")?, "device")?;
            let device = super::require_short("device", device, MAX_DEVICE)?.to_owned();
            if terms.devices.iter().any(|known| uuid::is_same_device(&known.device, &device)) {
                return Err(WireError::DuplicateKey(device));
            }
            // `null` means no limit. A missing key means that the line is incomplete.
            for key in ["memory_limit", "sm_limit", "sm_request"] {
                super::require_value(line.get(key), key)?;
            }
            let (memory_limit, sm_limit) = super::read_limits(&line)?;
            let sm_request =
                line.tenths_value("sm_request")?.map(|tenths| parse_share_value("sm_request", tenths)).transpose()?;
            terms.devices.push(DeviceTerms { device, memory_limit, sm_limit, sm_request });
        }
        if terms.devices.len() as u64 != count {
            let accepted = "the number of lines that follow";
            return Err(WireError::OutOfRange { key: "devices", value: count, accepted });
        }
        Ok(terms)
    }

    /// True if this user may start a member.
    #[must_use]
    pub fn admits_user(&self, uid: u32) -> bool {
        self.users.as_ref().is_none_or(|users| users.iter().any(|range| range.contains(&uid)))
    }

    /// Returns the terms on a device; `None`: the tenant may not use it.
    #[must_use]
    pub fn terms_of_device(&self, device: &str) -> Option<&DeviceTerms> {
        let named = |name: &str| self.devices.iter().find(|terms| uuid::is_same_device(&terms.device, name));
        named(device).or_else(|| named(ALL_DEVICES))
    }
}

fn parse_uid(line: &JsonObject, key: &'static str) -> Result<u32, WireError> {
    let value = super::require_value(line.number_value(key)?, key)?;
    u32::try_from(value).map_err(|_| WireError::OutOfRange { key, value, accepted: "0 to 4294967295" })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn file(devices: &[&str]) -> Result<TermsFile, WireError> {
        let count = devices.len();
        let mut text = format!(
            "{{\"terms\":1,\"epoch\":7,\"tenant\":\"a\",\"mode\":\"enforce\",\"on_loss\":\"local\",\"strict\":false,\
             \"users\":null,\"devices\":{count}}}\n"
        );
        for device in devices {
            text.push_str(&format!(
                "{{\"device\":\"{device}\",\"memory_limit\":null,\"sm_limit\":null,\"sm_request\":null}}\n"
            ));
        }
        TermsFile::decode(text.as_bytes())
    }

    #[test]
    fn nothing_that_the_file_does_not_say_lifts_a_limit() {
        let terms = TermsFile {
            epoch: 7,
            tenant: "a".into(),
            mode: Mode::Enforce,
            open_on_error: false,
            on_loss: OnLoss::Local,
            strict: false,
            users: None,
            user_namespace: 0,
            devices: vec![DeviceTerms {
                device: ALL_DEVICES.into(),
                memory_limit: None,
                sm_limit: None,
                sm_request: None,
            }],
        };
        let text = terms.encode().unwrap();
        assert_eq!(TermsFile::decode(text.as_bytes()).unwrap(), terms);
        for key in ["users", "memory_limit", "sm_limit", "sm_request"] {
            let renamed = text.replace(&format!("\"{key}\""), "\"other\"");
            assert_eq!(TermsFile::decode(renamed.as_bytes()), Err(WireError::Missing(key)));
        }
        let off = TermsFile { mode: Mode::Off, ..terms }.encode().unwrap();
        assert!(matches!(TermsFile::decode(off.as_bytes()), Err(WireError::WrongKind { key: "mode", .. })));
    }

    #[test]
    fn a_device_stands_there_once_however_it_is_written_and_is_found_by_either_name() {
        for again in ["GPU-00aa", "gpu-00AA", "MIG-00aa"] {
            assert!(matches!(file(&["GPU-00aa", again]), Err(WireError::DuplicateKey(_))), "{again}");
        }
        let there = file(&["MIG-00aa", "GPU-00ab"]).unwrap();
        assert_eq!(there.terms_of_device("GPU-00AA").map(|terms| terms.device.as_str()), Some("MIG-00aa"));
        assert!(there.terms_of_device("GPU-00ac").is_none());
    }
}
