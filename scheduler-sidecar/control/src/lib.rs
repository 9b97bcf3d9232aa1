//! The administrative protocol: requests of `vgpu` to the daemon, and its answers.
//!
//! A request and its answer are one line of JSON each, on the administrative socket. Only the daemon's own user and
//! root can open that socket. Members use [`vgpu_core::protocol::wire`] instead, on their tenant's socket, where
//! [`own`] is the only other request.
//!
//! ```text
//! -> {"hello":2,"ask":"status"}                          <- {"hello":2,"status":{...}}
//! -> {"hello":2,"ask":"ps"}                              <- {"hello":2,"members":[...]}
//! -> {"hello":2,"ask":"set","tenant":"a","device":"0","change":{"sm_limit":"30"}}
//!                                                        <- {"hello":2,"done":{...}}
//! -> {"hello":2,"ask":"pause","tenant":"a"}              <- {"hello":2,"done":{...}}       and `resume`
//! -> {"hello":2,"ask":"label","tenant":"a","labels":{"pod":"x","user":null}}
//!                                                        <- {"hello":2,"done":{...}}
//! -> {"hello":2,"ask":"add","section":{"name":"a","gpu":"0.25"},"pid":71}
//!                                                        <- {"hello":2,"tenant":{...}}
//! -> {"hello":2,"ask":"remove","tenant":"a"}             <- {"hello":2,"tenant":{...}}
//! -> {"hello":2,"ask":"suspensions","suspended":[{"pid":71,"began":9}],"read":8000000000}
//!                                                        <- {"hello":2,"suspensions":[...]}
//! -> {"hello":2,"ask":"queue"}                           <- {"hello":2,"queue":{...}}
//! -> {"hello":2,"ask":"explain","tenant":"a"}            <- {"hello":2,"explained":[...]}
//! -> {"hello":2,"ask":"events","since":0,"follow":true}  <- {"hello":2,"following":{...}}  then a line for each event
//!                                                        <- {"hello":2,"error":"..."}      to any of them
//! ```
//!
//! A request with another protocol number is refused with a message that names both numbers, and so is such an
//! answer. [`status`], [`service`], [`tenant`] and [`explain`] define the answers, [`vgpu_config::change`] the changes,
//! [`vgpu_config::added`] the tenants that a command adds, [`finding`] the findings of the enforcement check.
#![forbid(unsafe_code)]

pub mod event;
pub mod explain;
pub mod finding;
pub mod own;
pub mod place;
pub mod service;
pub mod status;
pub mod tenant;

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::{Deserialize, Serialize};

use vgpu_config::added::TenantSection;
use vgpu_config::bearer::LabelChanges;
use vgpu_config::change::WrittenChange;
use vgpu_config::schedule::WrittenBooking;

use finding::ProcessId;

pub use explain::DeviceExplanation;
pub use status::{
    ActionStatus, AddedStatus, AuditStatus, ConfigurationStatus, CordonStatus, CordonedMember, DaemonFault,
    DaemonStatus, DeadlineStatus, DeviceStatus, EnergyStatus, IdleStatus, MemberDevice, MemberStatus, ProcessStatus,
    RecordStatus, SuspensionStatus, TenantStatus, TermsStatus, TimeStatus,
};

/// Version number of the administrative protocol.
pub const CONTROL_PROTOCOL: u64 = 2;

/// Longest request in bytes, its newline included. A section with 16 labels of 256 four-byte letters has 18 KiB; the
/// rest is for lists of users and devices. The daemon's file of a tenant has the same bound.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ControlRequest {
    /// Protocol version of the sender; see [`CONTROL_PROTOCOL`].
    pub hello: u64,
    /// The request, with its own fields.
    #[serde(flatten)]
    pub ask: ControlCommand,
}

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlCommand {
    /// Returns everything about devices, tenants and members.
    Status,
    /// Lists the members (connected processes) of all tenants.
    Ps,
    /// Changes a tenant's limits and share of time (terms).
    Set {
        /// Name of the tenant.
        tenant: String,
        /// Only this device, by UUID or as the file names it; absent: all of the tenant's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// New values of the tenant's settings.
        change: Box<WrittenChange>,
        /// End and reason; without an end until the file is read again.
        #[serde(default, skip_serializing_if = "ChangeLasting::is_open")]
        lasting: ChangeLasting,
    },
    /// Grants a tenant no more leases.
    Pause {
        /// Name of the tenant.
        tenant: String,
        /// End and reason; without an end until the tenant is resumed.
        #[serde(default, skip_serializing_if = "ChangeLasting::is_open")]
        lasting: ChangeLasting,
    },
    /// Pauses the other tenants on the devices of this one.
    Exclusive {
        /// Name of the tenant.
        tenant: String,
        /// End and reason; without an end until it is unset.
        #[serde(default, skip_serializing_if = "ChangeLasting::is_open")]
        lasting: ChangeLasting,
    },
    /// Ends all changes that administrators made to a tenant, its pause included.
    Unset {
        /// Name of the tenant.
        tenant: String,
    },
    /// Sets labels of a tenant, which reports group usage by, from now on.
    Label {
        /// Name of the tenant.
        tenant: String,
        /// New values by name; null takes back the label that a command set.
        labels: LabelChanges,
    },
    /// Books a part of devices for a tenant.
    Book {
        /// The booking.
        booking: Box<WrittenBooking>,
    },
    /// Lists the bookings that are not over.
    Bookings,
    /// Cancels a booking that a command made.
    Cancel {
        /// Name of the booking.
        booking: String,
    },
    /// Lets nobody new on a device or into a tenant.
    Cordon {
        /// The device or the tenant.
        subject: SubjectName,
        /// Asks the members there to end; absent: they go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        evacuation: Option<EvacuationOptions>,
        /// End and reason; without an end until `uncordon`.
        #[serde(default, skip_serializing_if = "ChangeLasting::is_open")]
        lasting: ChangeLasting,
    },
    /// Ends a cordon.
    Uncordon {
        /// The device or the tenant.
        subject: SubjectName,
    },
    /// Ends the pause of a tenant.
    Resume {
        /// Name of the tenant.
        tenant: String,
    },
    /// Tells which processes are off their devices and which run there, after `vgpu-checkpoint` moved them, and which
    /// it is about to move back. Processes that are members of no tenant are ignored.
    Suspensions(SuspensionReport),
    /// Adds a tenant without changing the file; the same request again changes nothing.
    Add {
        /// Settings of the tenant.
        section: Box<TenantSection>,
        /// Process with whose end the tenant is removed, by its ID in the daemon's pid namespace.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// Seconds after which the tenant is removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<u64>,
        /// True to replace a tenant that was added with other settings.
        #[serde(default)]
        replace: bool,
        /// True if the caller asks again until the tenant fits, so that it counts as waiting.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        waits: bool,
    },
    /// Removes a tenant that a command added.
    Remove {
        /// Name of the tenant.
        tenant: String,
        /// True to describe a tenant that was removed before, and to remove nothing.
        #[serde(default)]
        only_look: bool,
    },
    /// Lists the tenants that wait for device time, and those that wait until they fit.
    Queue,
    /// Explains why a tenant gets the time it gets.
    Explain {
        /// Name of the tenant.
        tenant: String,
    },
    /// Sends events, one line each, after the answer ([`event`]).
    Events {
        /// First number to send; 0: all events that are kept.
        #[serde(default)]
        since: u64,
        /// True: continues with new events until the connection is closed.
        #[serde(default)]
        follow: bool,
    },
}

impl ControlCommand {
    /// Names of the requests.
    pub const COMMAND_WORDS: [&str; 19] = [
        "status",
        "ps",
        "set",
        "pause",
        "resume",
        "exclusive",
        "unset",
        "label",
        "book",
        "bookings",
        "cancel",
        "cordon",
        "uncordon",
        "suspensions",
        "add",
        "remove",
        "queue",
        "explain",
        "events",
    ];
}

/// A device or a tenant, as a person names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectName {
    /// Number or UUID of a device, or name of a tenant.
    pub name: String,
    /// True: the name is a tenant's, also if a device has it.
    #[serde(default)]
    pub is_tenant: bool,
}

/// States of processes, as `vgpu-checkpoint` read them from the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspensionReport {
    /// Processes whose memory is on the host and whose calls wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<ProcessId>,
    /// Processes whose calls wait and whose memory is on the device: the caller could lead them neither forward nor
    /// back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locked: Vec<ProcessId>,
    /// Processes whose calls are answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<ProcessId>,
    /// Suspended processes that the caller begins to resume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resuming: Vec<ProcessId>,
    /// Time before the states were read, in ns of the host's monotonic clock. A report is ignored for a process of
    /// which a later one arrived before; 0: the report was made now.
    #[serde(default)]
    pub read: u64,
}

/// How members are asked to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvacuationOptions {
    /// Seconds after which members get SIGTERM; absent: they get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate_after: Option<u64>,
}

/// How long a change lasts, and why it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeLasting {
    /// Seconds until it ends; absent: it has no end of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ChangeLasting {
    /// True if there is neither an end nor a reason.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

/// A booking that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookingStatus {
    /// The booking.
    pub booking: WrittenBooking,
    /// True if the file has it; then only the file can end it.
    pub of_file: bool,
    /// True if it is in force now, and the tenant has what was booked.
    pub holds: bool,
    /// True if it is in force now, and an override gives the tenant less than was booked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overridden: bool,
    /// Why it has no effect; absent: it has, or will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// An answer: `hello` and one other field.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ControlAnswer {
    /// Protocol of the daemon.
    pub hello: u64,
    /// Answer to the request `status`; absent for other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DaemonStatus>,
    /// Answer to the request `ps`; absent for other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<ProcessStatus>>,
    /// The answer to `set`, `label`, `pause` and `resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<ChangeResult>,
    /// The answer to `add` and `remove`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<tenant::TenantAnswer>,
    /// The answer to `book`, `bookings` and `cancel`: the bookings that are not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bookings: Option<Vec<BookingStatus>>,
    /// The answer to `cordon` and `uncordon`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<CordonStatus>,
    /// The answer to `suspensions`: those of the named processes that are members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspensions: Option<Vec<SuspensionStatus>>,
    /// With `suspensions`: true while the daemon has just started, and members of the last one may connect again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub members_may_return: bool,
    /// Hints for the caller of `book`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Answer to the request `queue`; absent for other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<service::QueueAnswer>,
    /// Answer to the request `explain`; absent for other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Vec<DeviceExplanation>>,
    /// The answer to `events`; the events follow, one line each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub following: Option<event::EventPosition>,
    /// Why the request was not carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Kind of the error, for programs; absent if there is no error or no kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<tenant::RefusalKind>,
}

/// The result of a change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangeResult {
    /// Name of the tenant.
    pub tenant: String,
    /// Keys that have new values; empty: all had these values before.
    pub changed: Vec<String>,
    /// True if the tenant is paused now.
    pub paused: bool,
    /// Mode of the tenant: `enforce` or `observe`.
    #[serde(default = "status::enforce")]
    pub mode: String,
    /// True if bypasses of the library are refused.
    #[serde(default)]
    pub strict: bool,
    /// Limits and share of time (terms) of the tenant on each device now, changed or not.
    pub devices: Vec<TermsStatus>,
    /// Labels of the tenant now, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Hints for the caller: how long the change lasts, which processes it does not reach.
    pub notes: Vec<String>,
}

/// Sends a request to the daemon behind an administrative socket.
///
/// # Errors
/// Any error of connecting, writing, reading (at most 2 s each) or parsing. An error of the daemon becomes
/// [`io::ErrorKind::Other`] with a [`tenant::DaemonRefusal`] inside.
pub fn ask_daemon(socket: &Path, ask: &ControlCommand) -> io::Result<ControlAnswer> {
    let mut line = serde_json::to_vec(&ControlRequest { hello: CONTROL_PROTOCOL, ask: ask.clone() })?;
    line.push(b'\n');
    // A daemon closes the connection before it has read such a line, so its answer may be lost.
    if line.len() > MAX_REQUEST_BYTES {
        let words = format!("the request has {} bytes; accepted: at most {MAX_REQUEST_BYTES}", line.len());
        let kind = Some(tenant::RefusalKind::BadTerms);
        return Err(io::Error::other(tenant::DaemonRefusal { words, kind }));
    }
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(own::PATIENCE))?;
    stream.set_write_timeout(Some(own::PATIENCE))?;
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection without an answer"));
    }
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    // Read the error first: a caller without permission gets the members' kind of refusal, which has no number.
    if let Some(words) = answer["error"].as_str() {
        let kind = serde_json::from_value(answer["refusal"].clone()).ok();
        return Err(io::Error::other(tenant::DaemonRefusal { words: words.to_owned(), kind }));
    }
    // The fields of another protocol's answer are not known.
    match answer["hello"].as_u64() {
        Some(CONTROL_PROTOCOL) => Ok(serde_json::from_value(answer)?),
        theirs => Err(io::Error::other(format!(
            "the daemon speaks administrative protocol {}, this program speaks {CONTROL_PROTOCOL}; use the vgpu of its version",
            theirs.unwrap_or_default()
        ))),
    }
}

/// Requests the status.
///
/// # Errors
/// As [`ask_daemon`].
pub fn ask_status(socket: &Path) -> io::Result<DaemonStatus> {
    let answer = ask_daemon(socket, &ControlCommand::Status)?;
    answer.status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer holds no status"))
}
