//! A thread that asks the daemon and the record, so that the view never waits.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::history::{self, MINUTES_SHOWN};
use super::row::{self, RowKey, StatusLook};
use super::state::{TopEffect, TopInput, TopOptions};
use crate::ps::names::ContainerNames;
use crate::{ask, status};
use vgpu_accounting::record::ask::{GroupBy, UsageQuestion};
use vgpu_control::{self as control, ControlCommand, MemberStatus};
use vgpu_output::say::{EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Longest pause before asking again a daemon that did not answer.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Least time between two readings of the record, whose rows are minutes.
const RECORD_INTERVAL: Duration = Duration::from_secs(20);

/// Asks the daemon once.
///
/// # Errors
/// As [`control::ask_daemon`].
pub fn ask_once(socket: &Path, began: Instant) -> io::Result<StatusLook> {
    let answer = control::ask_daemon(socket, &ControlCommand::Status)?;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "the answer holds no status");
    let status = status::fill_memory(answer.status.ok_or_else(missing)?);
    Ok(StatusLook { status, at: began.elapsed() })
}

/// Returns the first answer, and the options with the device's name as the daemon uses it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such device.
pub fn first_look(socket: &Path, began: Instant, wishes: &TopOptions) -> Result<(StatusLook, TopOptions), Failure> {
    let look =
        ask_once(socket, began).map_err(|why| Failure::new(EXIT_FINDINGS, ask::explain_failure(socket, &why)))?;
    let named = wishes.device.as_deref().map(|name| row::device_called(&look.status, name));
    let device = named.transpose().map_err(|words| Failure::new(EXIT_USAGE, words))?;
    Ok((look, TopOptions { device, ..wishes.clone() }))
}

/// State of the thread that asks the daemon and carries out changes.
struct TopFeed {
    socket: PathBuf,
    began: Instant,
    interval: Duration,
    to: Sender<TopInput>,
    /// Directory of the record, from the last answer.
    record: Option<PathBuf>,
    /// Time of the last reading of the record.
    read: Option<Instant>,
    /// Processes of the last answer, by tenant, each with its process ids on the host and inside.
    members: BTreeMap<String, Vec<(u32, u32)>>,
    names: ContainerNames,
}

/// Starts the thread. It ends when either side of its channels is dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    socket: PathBuf,
    (first, began): (&StatusLook, Instant),
    interval: Duration,
    to: Sender<TopInput>,
) -> io::Result<Sender<TopEffect>> {
    let (orders, taken) = mpsc::channel();
    let record = first.status.record.as_ref().and_then(|record| record.dir.clone());
    let (members, names) = (visible_members(first), ContainerNames::on_this_host());
    let mut feed = TopFeed { socket, began, interval, to, record, read: None, members, names };
    std::thread::Builder::new().name("vgpu-top-feed".into()).spawn(move || feed.run(&taken))?;
    Ok(orders)
}

impl TopFeed {
    fn run(&mut self, orders: &Receiver<TopEffect>) {
        let mut next = Instant::now() + self.interval;
        loop {
            let told = match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(order) => {
                    let changes = matches!(order, TopEffect::Change(_));
                    let told = self.carry_out(order);
                    // Ask the daemon again at once, so that a change is shown without delay.
                    if changes { told.and_then(|()| self.look_again(&mut next)) } else { told }
                }
                Err(RecvTimeoutError::Timeout) => self.look_again(&mut next),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if told.is_none() {
                return;
            }
        }
    }

    /// Asks the daemon and sets the time of the next query. `None` if the view has ended.
    fn look_again(&mut self, next: &mut Instant) -> Option<()> {
        let input = match ask_once(&self.socket, self.began) {
            Ok(look) => {
                *next = Instant::now() + self.interval;
                self.members = visible_members(&look);
                self.record = look.status.record.as_ref().and_then(|record| record.dir.clone());
                TopInput::Look(Box::new(look))
            }
            Err(why) => {
                *next = Instant::now() + self.interval.min(MAX_RETRY_PAUSE);
                TopInput::Lost(ask::explain_failure(&self.socket, &why))
            }
        };
        self.to.send(input).ok()
    }

    fn carry_out(&mut self, order: TopEffect) -> Option<()> {
        let words = |why: io::Error| ask::explain_failure(&self.socket, &why);
        let other = || "the daemon answered another question; is it older than this program?".to_owned();
        let input = match order {
            TopEffect::Change(ask) => {
                let answer = control::ask_daemon(&self.socket, &ask).map_err(words);
                TopInput::Done(answer.and_then(|answer| answer.done.map(Box::new).ok_or_else(other)))
            }
            TopEffect::Explain(tenant) => {
                let answer = control::ask_daemon(&self.socket, &ControlCommand::Explain { tenant: tenant.clone() })
                    .map_err(words);
                TopInput::Explained(tenant, answer.and_then(|answer| answer.explained.ok_or_else(other)))
            }
            TopEffect::Places(tenant) => {
                self.names.begin_look();
                let all = self.members.get(&tenant).cloned().unwrap_or_default().into_iter();
                let place = |(pid, inside)| Some((pid, self.names.place_of(pid, inside).short_text()?));
                TopInput::Places(all.filter_map(place).collect())
            }
            TopEffect::Hour if self.read.is_some_and(|read| read.elapsed() < RECORD_INTERVAL) => return Some(()),
            TopEffect::Hour => {
                self.read = Some(Instant::now());
                TopInput::Hour(read_hour(self.record.as_deref()))
            }
            TopEffect::Quit | TopEffect::Suspend => return Some(()),
        };
        self.to.send(input).ok()
    }
}

/// Returns the processes of an answer whose host process ids are known.
fn visible_members(look: &StatusLook) -> BTreeMap<String, Vec<(u32, u32)>> {
    let all = look.status.tenants.iter();
    let numbers = |member: &MemberStatus| Some((member.pid?, member.pid_inside));
    all.map(|tenant| (tenant.name.clone(), tenant.members.iter().filter_map(numbers).collect())).collect()
}

/// Returns the last hour of the record.
fn read_hour(dir: Option<&Path>) -> Result<BTreeMap<RowKey, Vec<f64>>, String> {
    let dir = dir.ok_or("the daemon keeps no record of usage")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let minutes = i64::try_from(MINUTES_SHOWN).unwrap_or(60);
    let span = (now.div_euclid(60).saturating_sub(minutes) * 60, i64::MAX);
    let question = UsageQuestion { tenants: Vec::new(), devices: true, span, by: GroupBy::Minute };
    let answer = vgpu_accounting::record::ask::ask_record(dir, &question).map_err(|why| why.to_string())?;
    Ok(history::minutes_of_hour(&answer.rows, now))
}
