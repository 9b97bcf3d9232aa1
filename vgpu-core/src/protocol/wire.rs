//! The protocol between a member and the daemon: JSON lines, one object per line.
//!
//! Here: the messages and their limits. [`json`] is a small reader and writer, because the library runs inside other
//! people's processes and brings no dependency there. [`terms_file`] holds terms for members while no daemon runs.
//! Not here: sockets and deadlines (the daemon and the library own them), how descriptors are passed (shim-sys:
//! `descriptors`), and the administrative protocol, which only the daemon and `vgpu` use.
//!
//! ```text
//! member -> daemon   {"hello":2,"pid":123,"version":"0.1.0","pages":1,"clock":5000000000}
//! daemon -> member   {"hello":2,"tenant":"a","memory_limit":1073741824,"sm_limit":30,"member":12,"epoch":7,"pages":1,
//!                     "clock":5000020000,"mode":"enforce","on_error":"closed","on_loss":"local","strict":false,
//!                     "descriptors":"beat board report bell"}          with these descriptors, in this order
//! member -> daemon   {"join":"GPU-6b1c...","busy":0}                   once per device it uses
//! daemon -> member   {"join":"GPU-6b1c...","slot":3}                   with a descriptor of the tenant's ledger
//!                    {"error":"..."}                                   to any of them
//! ```
//!
//! The welcome's limits are the lowest of all devices of the tenant; the limits per device are in the slot of the
//! board.
//!
//! Rules of both sides:
//! - A line is at most [`MAX_LINE`] bytes, its newline included, and UTF-8.
//! - Unknown keys are ignored with any value nested up to [`MAX_DEPTH`].
//! - A key that appears twice is an error: two readers must never understand one line differently.
//! - A value of the wrong kind is an error, never a default: a misread limit must not become "no limit".
//! - `null` and an absent key mean the same.
//! - *The versions must agree.* Hello and welcome carry the protocol ([`PROTOCOL`]) and the version of the shared pages
//!   ([`crate::protocol::page::PAGE_VERSION`]). The side that meets another number refuses with words that name both.
//! - *A slot's file is the ledger.* The daemon keeps the tenant's ledger of the device and passes it with the slot: one
//!   ledger for all containers of the tenant. Each join gets a separate open file description, because locks belong to
//!   the description and each member holds its own.
//! - *A member reads each answer before it joins.* A join that the daemon reads while an earlier answer is still unread
//!   is refused, because each answer holds descriptors until the member receives it. The member may join again.
//! - *Descriptors are counted.* An unknown word still counts as one descriptor; the member closes that one.
//!
//! Next: `libvgpu` connects and keeps the terms; `scheduler-sidecar/daemon` answers.

mod error;
pub mod json;
pub mod terms_file;

pub use error::WireError;

use self::json::{JsonObject, JsonWriter};
use crate::limits::Mode;
use crate::protocol::page::{self, GONE_EPOCH, PAGE_SLOTS};
use crate::time::gate::loss::OnLoss;
use crate::units::bytes::Bytes;
use crate::units::share::Share;

/// Version of this protocol: the value of `hello`, which both first lines carry.
pub const PROTOCOL: u64 = 2;

/// Longest line in bytes, the newline included.
pub const MAX_LINE: usize = 4096;

/// Deepest nesting of values that are skipped.
pub const MAX_DEPTH: usize = 16;

/// Longest text of an error, in bytes; a longer one is cut at a character boundary.
const MAX_ERROR: usize = 512;
/// Longest name of a tenant, in bytes.
pub const MAX_TENANT: usize = 255;
/// Longest device name in bytes; UUIDs of MIG instances have about 60.
pub const MAX_DEVICE: usize = 96;
/// Longest version of a library, in bytes.
pub const MAX_VERSION: usize = 64;
/// Most descriptors that come with a welcome.
pub const MAX_DESCRIPTORS: usize = 16;

/// A member's first line: it names its process and library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Process id in the process's own pid namespace. The daemon trusts only the id that the kernel reports.
    pub pid: u32,
    /// Version of the library.
    pub version: String,
    /// The member's monotonic clock in nanoseconds when it wrote the line: see [`clock_offset`].
    pub clock: u64,
}

/// Message of a member that begins to use a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinDevice {
    /// The device's UUID.
    pub device: String,
    /// Device time it has measured there so far, in nanoseconds; an earlier daemon may not have recorded all of it.
    /// 0: it has just begun. A member that joined before sends at least 1; it may have queued work until its report
    /// says otherwise.
    pub busy: u64,
}

/// Any message of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberMessage {
    /// The member's first line.
    Hello(Hello),
    /// Message of a member that begins to use a device, after its hello.
    Join(JoinDevice),
}

/// Kinds of descriptors in a welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptor {
    /// The page, one for the whole host, with the daemon's heartbeat.
    Beat,
    /// The tenant's page that the daemon writes.
    Board,
    /// The tenant's page that its members write.
    Report,
    /// The eventfd that a member rings when a thread begins to wait at a gate.
    Bell,
    /// A kind that this version does not know; the receiver closes the descriptor.
    Unknown,
}

const DESCRIPTORS: [(Descriptor, &str); 4] = [
    (Descriptor::Beat, "beat"),
    (Descriptor::Board, "board"),
    (Descriptor::Report, "report"),
    (Descriptor::Bell, "bell"),
];

const ON_LOSS: [(OnLoss, &str); 3] = [(OnLoss::Local, "local"), (OnLoss::Open, "open"), (OnLoss::Block, "block")];

/// The tenant's limits as the daemon sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Name of the tenant.
    pub tenant: String,
    /// Hard memory limit per device; `None`: no limit. Never 0. In the line: a number of bytes.
    pub memory_limit: Option<Bytes>,
    /// Ceiling on device time, at least 1 %; `None`: no limit. In the line: percent, with at most one decimal
    /// (`12.5`).
    pub sm_limit: Option<Share>,
}

/// Answer to a hello: the member is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The tenant and its limits.
    pub terms: Terms,
    /// The member's number, which its slots of the board carry. Never 0.
    pub member: u64,
    /// The daemon's epoch: neither 0 nor [`GONE_EPOCH`].
    pub epoch: u64,
    /// The daemon's monotonic clock in nanoseconds when it wrote this.
    pub clock: u64,
    /// Enforcement mode.
    pub mode: Mode,
    /// True if a limit that cannot be enforced becomes a warning. In the line `on_error`: `open`; `closed`, or
    /// absent, is false.
    pub open_on_error: bool,
    /// Policy after the loss of the daemon.
    pub on_loss: OnLoss,
    /// True if lookups that bypass the hooks are refused.
    pub strict: bool,
    /// Descriptors that come with this line, in order.
    pub descriptors: Vec<Descriptor>,
}

/// Part of the refusal of a device that does not belong to the tenant.
pub const NOT_ITS_DEVICE: &str = "is not one of the devices of tenant";
/// Added to [`NOT_ITS_DEVICE`] while the daemon cannot tell yet.
pub const NOT_KNOWN_YET: &str = "as far as the daemon can tell";

/// True if the refusal is permanent: the device does not belong to the tenant.
#[must_use]
pub fn is_not_its_device(words: &str) -> bool {
    // `str::contains` would add 3 KiB of machine code to the library.
    let says = |part: &str| words.as_bytes().windows(part.len()).any(|seen| seen == part.as_bytes());
    says(NOT_ITS_DEVICE) && !says(NOT_KNOWN_YET)
}

/// Any message of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The daemon's answer to a hello.
    Welcome(Welcome),
    /// The daemon's answer to a join.
    Slot {
        /// The device's UUID.
        device: String,
        /// Index of the slot in board and report.
        slot: usize,
    },
    /// The daemon's refusal of any message: its reason, as text.
    Refused(String),
}

impl Hello {
    /// Writes the line, newline included.
    ///
    /// # Errors
    /// [`WireError::TextTooLong`].
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        line.write_number("hello", PROTOCOL);
        line.write_number("pid", u64::from(self.pid));
        line.write_string("version", require_short("version", &self.version, MAX_VERSION)?);
        line.write_number("pages", u64::from(page::PAGE_VERSION));
        line.write_number("clock", self.clock);
        line.finish_line()
    }

    fn read(object: &JsonObject) -> Result<Self, WireError> {
        check_pages(object)?;
        let version =
            require_short("version", require_value(object.string_value("version")?, "version")?, MAX_VERSION)?
                .to_owned();
        let clock = require_value(object.number_value("clock")?, "clock")?;
        Ok(Self { pid: read_pid(object)?, version, clock })
    }
}

impl JoinDevice {
    /// Writes the line, newline included.
    ///
    /// # Errors
    /// [`WireError::TextTooLong`]; [`WireError::TooLong`] if the name needs too many escapes.
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        line.write_string("join", require_short("join", &self.device, MAX_DEVICE)?);
        line.write_number("busy", self.busy);
        line.finish_line()
    }
}

impl MemberMessage {
    /// Reads a member's line, with or without its newline.
    ///
    /// # Errors
    /// Every [`WireError`]; its text is the answer to send to the member. [`WireError::Protocol`] and
    /// [`WireError::Pages`] are checked before everything else.
    pub fn decode(line: &[u8]) -> Result<Self, WireError> {
        let object = JsonObject::parse(line)?;
        match object.number_value("hello")? {
            Some(PROTOCOL) => return Hello::read(&object).map(Self::Hello),
            Some(theirs) => return Err(WireError::Protocol { theirs }),
            None => {}
        }
        let device = require_value(object.string_value("join")?, "hello or join")?;
        let device = require_short("join", device, MAX_DEVICE)?.to_owned();
        Ok(Self::Join(JoinDevice { device, busy: object.number_value("busy")?.unwrap_or(0) }))
    }
}

impl Welcome {
    /// Index of this descriptor among the received ones.
    ///
    /// # Errors
    /// [`WireError::Descriptors`]: the number received differs from the number announced.
    pub fn find_descriptor(&self, descriptor: Descriptor, came: usize) -> Result<Option<usize>, WireError> {
        match self.descriptors.len() {
            announced if announced == came => Ok(self.descriptors.iter().position(|here| *here == descriptor)),
            announced => Err(WireError::Descriptors { announced, came }),
        }
    }

    fn write(&self, line: &mut JsonWriter) -> Result<(), WireError> {
        require_short("tenant", &self.terms.tenant, MAX_TENANT)?;
        line.write_number("hello", PROTOCOL);
        write_terms(&self.terms, line);
        line.write_number("member", in_range("member", self.member, 1..=u64::MAX, "1 or more")?);
        line.write_number("epoch", check_epoch(self.epoch)?);
        line.write_number("pages", u64::from(page::PAGE_VERSION));
        line.write_number("clock", self.clock);
        line.write_string("mode", mode_word(self.mode));
        line.write_string("on_error", on_error_word(self.open_on_error));
        line.write_string("on_loss", on_loss_word(self.on_loss));
        line.write_boolean("strict", self.strict);
        if self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(WireError::Descriptors { announced: self.descriptors.len(), came: MAX_DESCRIPTORS });
        }
        let words: Vec<&str> = self.descriptors.iter().map(|descriptor| descriptor_word(*descriptor)).collect();
        line.write_string("descriptors", &words.join(" "));
        Ok(())
    }

    fn read(object: &JsonObject) -> Result<Self, WireError> {
        check_pages(object)?;
        let terms = read_terms(object)?;
        require_short("tenant", &terms.tenant, MAX_TENANT)?;
        let member = require_value(object.number_value("member")?, "member")?;
        let member = in_range("member", member, 1..=u64::MAX, "1 or more")?;
        let epoch = check_epoch(require_value(object.number_value("epoch")?, "epoch")?)?;
        let clock = require_value(object.number_value("clock")?, "clock")?;
        let (mode, open_on_error, on_loss) = (read_mode(object)?, read_on_error(object)?, read_on_loss(object)?);
        let strict = require_value(object.boolean_value("strict")?, "strict")?;
        let descriptors = parse_descriptors(require_value(object.string_value("descriptors")?, "descriptors")?)?;
        Ok(Self { terms, member, epoch, clock, mode, open_on_error, on_loss, strict, descriptors })
    }
}

impl Reply {
    /// Writes the line, newline included. The text of a refusal is cut to 512 bytes.
    ///
    /// # Errors
    /// Everything that [`Reply::decode`] refuses.
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        match self {
            Self::Welcome(welcome) => welcome.write(&mut line)?,
            Self::Slot { device, slot } => {
                line.write_string("join", require_short("join", device, MAX_DEVICE)?);
                line.write_number("slot", in_page(*slot as u64).map(|slot| slot as u64)?);
            }
            Self::Refused(words) => {
                line.write_string("error", cut_error(words));
            }
        }
        line.finish_line()
    }

    /// Reads a line, with or without its newline. A line with the key `error` is a refusal regardless of its other
    /// keys.
    ///
    /// # Errors
    /// Every [`WireError`]. There are no defaults: a member that cannot read its welcome has none.
    pub fn decode(line: &[u8]) -> Result<Self, WireError> {
        let object = JsonObject::parse(line)?;
        if let Some(words) = object.string_value("error")? {
            return Ok(Self::Refused(words.to_owned()));
        }
        match object.number_value("hello")? {
            Some(PROTOCOL) => return Welcome::read(&object).map(Self::Welcome),
            Some(theirs) => return Err(WireError::Protocol { theirs }),
            None => {}
        }
        let device = require_value(object.string_value("join")?, "hello or join")?;
        let slot = in_page(require_value(object.number_value("slot")?, "slot")?)?;
        Ok(Self::Slot { device: require_short("join", device, MAX_DEVICE)?.to_owned(), slot })
    }
}

/// Nanoseconds to add to the member's clock to get the daemon's. The daemon's clock was `theirs` at some time between
/// `sent` (the hello's `clock`) and `received` (arrival of the welcome), both by the member's clock.
///
/// 0 if one shared clock explains these times. Otherwise the member is in another time namespace, and the result is
/// exact to half of the round trip.
#[must_use]
pub const fn clock_offset(sent: u64, theirs: u64, received: u64) -> i64 {
    if sent <= theirs && theirs <= received {
        return 0;
    }
    let between = sent.midpoint(received);
    // Two's complement: right for all distances below 2^63.
    theirs.wrapping_sub(between).cast_signed()
}

fn require_value<T>(value: Option<T>, key: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing(key))
}

fn require_short<'a>(key: &'static str, text: &'a str, most: usize) -> Result<&'a str, WireError> {
    if text.len() > most { Err(WireError::TextTooLong { key, most }) } else { Ok(text) }
}

fn in_range(
    key: &'static str,
    value: u64,
    range: core::ops::RangeInclusive<u64>,
    accepted: &'static str,
) -> Result<u64, WireError> {
    if range.contains(&value) { Ok(value) } else { Err(WireError::OutOfRange { key, value, accepted }) }
}

fn check_epoch(epoch: u64) -> Result<u64, WireError> {
    in_range("epoch", epoch, 1..=GONE_EPOCH - 1, "1 to 18446744073709551614")
}

fn in_page(slot: u64) -> Result<usize, WireError> {
    let place = usize::try_from(slot).ok().filter(|slot| *slot < PAGE_SLOTS);
    place.ok_or(WireError::OutOfRange { key: "slot", value: slot, accepted: "a slot of the page: 0 to 1023" })
}

fn check_pages(object: &JsonObject) -> Result<(), WireError> {
    match require_value(object.number_value("pages")?, "pages")? {
        theirs if theirs == u64::from(page::PAGE_VERSION) => Ok(()),
        theirs => Err(WireError::Pages { theirs }),
    }
}

const fn mode_word(mode: Mode) -> &'static str {
    let [enforce, observe, off] = Mode::WORDS;
    match mode {
        Mode::Enforce => enforce,
        Mode::Observe => observe,
        Mode::Off => off,
    }
}

fn read_mode(object: &JsonObject) -> Result<Mode, WireError> {
    let mode = require_value(object.string_value("mode")?, "mode")?;
    match Mode::WORDS.iter().position(|word| *word == mode) {
        Some(0) => Ok(Mode::Enforce),
        Some(1) => Ok(Mode::Observe),
        Some(_) => Ok(Mode::Off),
        None => Err(WireError::WrongKind { key: "mode", expected: "enforce, observe or off" }),
    }
}

const fn on_error_word(open: bool) -> &'static str {
    if open { "open" } else { "closed" }
}

fn read_on_error(object: &JsonObject) -> Result<bool, WireError> {
    match object.string_value("on_error")? {
        None | Some("closed") => Ok(false),
        Some("open") => Ok(true),
        Some(_) => Err(WireError::WrongKind { key: "on_error", expected: "closed or open" }),
    }
}

fn on_loss_word(on_loss: OnLoss) -> &'static str {
    ON_LOSS.iter().find(|(known, _)| *known == on_loss).map_or("block", |(_, word)| word)
}

fn read_on_loss(object: &JsonObject) -> Result<OnLoss, WireError> {
    let on_loss = require_value(object.string_value("on_loss")?, "on_loss")?;
    let known = ON_LOSS.iter().find(|(_, word)| *word == on_loss).map(|(on_loss, _)| *on_loss);
    known.ok_or(WireError::WrongKind { key: "on_loss", expected: "local, open or block" })
}

fn descriptor_word(descriptor: Descriptor) -> &'static str {
    DESCRIPTORS.iter().find(|(known, _)| *known == descriptor).map_or("unknown", |(_, word)| word)
}

fn parse_descriptors(words: &str) -> Result<Vec<Descriptor>, WireError> {
    let mut read = Vec::new();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let known = DESCRIPTORS.iter().find(|(_, known)| *known == word);
        let descriptor = known.map_or(Descriptor::Unknown, |(descriptor, _)| *descriptor);
        if read.len() == MAX_DESCRIPTORS || descriptor != Descriptor::Unknown && read.contains(&descriptor) {
            let expected = "at most 16 words, none of them twice";
            return Err(WireError::WrongKind { key: "descriptors", expected });
        }
        read.push(descriptor);
    }
    Ok(read)
}

fn read_pid(object: &JsonObject) -> Result<u32, WireError> {
    let pid = object.number_value("pid")?.ok_or(WireError::Missing("pid"))?;
    let out = WireError::OutOfRange { key: "pid", value: pid, accepted: "1 to 4294967295" };
    u32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(out)
}

fn write_terms(terms: &Terms, line: &mut JsonWriter) {
    line.write_string("tenant", &terms.tenant);
    write_limits(terms.memory_limit, terms.sm_limit, line);
}

fn write_limits(memory_limit: Option<Bytes>, sm_limit: Option<Share>, line: &mut JsonWriter) {
    line.number_or_null("memory_limit", memory_limit.map(Bytes::get));
    line.share_or_null("sm_limit", sm_limit);
}

fn read_terms(object: &JsonObject) -> Result<Terms, WireError> {
    let tenant = object.string_value("tenant")?.ok_or(WireError::Missing("tenant"))?.to_owned();
    let (memory_limit, sm_limit) = read_limits(object)?;
    Ok(Terms { tenant, memory_limit, sm_limit })
}

fn read_limits(object: &JsonObject) -> Result<(Option<Bytes>, Option<Share>), WireError> {
    let memory_limit = match object.number_value("memory_limit")? {
        Some(0) => return Err(WireError::OutOfRange { key: "memory_limit", value: 0, accepted: "1 byte or more" }),
        other => other.map(Bytes),
    };
    let sm_limit = object.tenths_value("sm_limit")?.map(|tenths| parse_share_value("sm_limit", tenths)).transpose()?;
    Ok((memory_limit, sm_limit))
}

/// The first [`MAX_ERROR`] bytes of a text, or fewer so that no character is cut.
fn cut_error(words: &str) -> &str {
    let mut end = words.len().min(MAX_ERROR);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

/// A share of device time from the line's tenths of a percent.
fn parse_share_value(key: &'static str, permille: u64) -> Result<Share, WireError> {
    u32::try_from(permille)
        .ok()
        .filter(|permille| *permille >= 10)
        .and_then(Share::from_permille)
        .ok_or(WireError::OutOfRange { key, value: permille / 10, accepted: "1 to 100 percent" })
}
