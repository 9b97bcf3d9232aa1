//! A thread that asks the daemon and the record, so that the view never waits.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::history::{self, MINUTES};
use super::row::{self, Key, Look};
use super::state::{Effect, Input, Wishes};
use crate::ps::names::Names;
use crate::{ask, status};
use vgpu_accounting::record::ask::{By, Question};
use vgpu_control::{self as control, Ask, MemberStatus};
use vgpu_output::say::{FINDINGS, Failure, USAGE};

/// Longest pause before asking again a daemon that did not answer.
const AGAIN: Duration = Duration::from_secs(2);
/// Least time between two readings of the record, whose rows are minutes.
const HOUR_AGAIN: Duration = Duration::from_secs(20);

/// Asks the daemon once.
///
/// # Errors
/// As [`control::ask`].
pub fn look(socket: &Path, began: Instant) -> io::Result<Look> {
    let answer = control::ask(socket, &Ask::Status)?;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "the answer holds no status");
    let status = status::filled(answer.status.ok_or_else(missing)?);
    Ok(Look { status, at: began.elapsed() })
}

/// Returns the first answer, and the options with the device's name as the daemon uses it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such device.
pub fn first(socket: &Path, began: Instant, wishes: &Wishes) -> Result<(Look, Wishes), Failure> {
    let look = look(socket, began).map_err(|why| Failure::new(FINDINGS, ask::words(socket, &why)))?;
    let named = wishes.device.as_deref().map(|name| row::device_called(&look.status, name));
    let device = named.transpose().map_err(|words| Failure::new(USAGE, words))?;
    Ok((look, Wishes { device, ..wishes.clone() }))
}

/// State of the thread that asks the daemon and carries out changes.
struct Feed {
    socket: PathBuf,
    began: Instant,
    interval: Duration,
    to: Sender<Input>,
    /// Directory of the record, from the last answer.
    record: Option<PathBuf>,
    /// Time of the last reading of the record.
    read: Option<Instant>,
    /// Processes of the last answer, by tenant, each with its process ids on the host and inside.
    members: BTreeMap<String, Vec<(u32, u32)>>,
    names: Names,
}

/// Starts the thread. It ends when either side of its channels is dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    socket: PathBuf,
    (first, began): (&Look, Instant),
    interval: Duration,
    to: Sender<Input>,
) -> io::Result<Sender<Effect>> {
    let (orders, taken) = mpsc::channel();
    let record = first.status.record.as_ref().and_then(|record| record.dir.clone());
    let (members, names) = (members(first), Names::here());
    let mut feed = Feed { socket, began, interval, to, record, read: None, members, names };
    std::thread::Builder::new().name("vgpu-top-feed".into()).spawn(move || feed.run(&taken))?;
    Ok(orders)
}

impl Feed {
    fn run(&mut self, orders: &Receiver<Effect>) {
        let mut next = Instant::now() + self.interval;
        loop {
            let told = match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(order) => {
                    let changes = matches!(order, Effect::Change(_));
                    let told = self.does(order);
                    // Ask the daemon again at once, so that a change is shown without delay.
                    if changes { told.and_then(|()| self.looks(&mut next)) } else { told }
                }
                Err(RecvTimeoutError::Timeout) => self.looks(&mut next),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if told.is_none() {
                return;
            }
        }
    }

    /// Asks the daemon and sets the time of the next query. `None` if the view has ended.
    fn looks(&mut self, next: &mut Instant) -> Option<()> {
        let input = match look(&self.socket, self.began) {
            Ok(look) => {
                *next = Instant::now() + self.interval;
                self.members = members(&look);
                self.record = look.status.record.as_ref().and_then(|record| record.dir.clone());
                Input::Look(Box::new(look))
            }
            Err(why) => {
                *next = Instant::now() + self.interval.min(AGAIN);
                Input::Lost(ask::words(&self.socket, &why))
            }
        };
        self.to.send(input).ok()
    }

    fn does(&mut self, order: Effect) -> Option<()> {
        let words = |why: io::Error| ask::words(&self.socket, &why);
        let other = || "the daemon's answer is to something else; is it older than this program?".to_owned();
        let input = match order {
            Effect::Change(ask) => {
                let answer = control::ask(&self.socket, &ask).map_err(words);
                Input::Done(answer.and_then(|answer| answer.done.map(Box::new).ok_or_else(other)))
            }
            Effect::Explain(tenant) => {
                let answer = control::ask(&self.socket, &Ask::Explain { tenant: tenant.clone() }).map_err(words);
                Input::Explained(tenant, answer.and_then(|answer| answer.explained.ok_or_else(other)))
            }
            Effect::Places(tenant) => {
                self.names.again();
                let all = self.members.get(&tenant).cloned().unwrap_or_default().into_iter();
                let place = |(pid, inside)| Some((pid, self.names.place(pid, inside).shown()?));
                Input::Places(all.filter_map(place).collect())
            }
            Effect::Hour if self.read.is_some_and(|read| read.elapsed() < HOUR_AGAIN) => return Some(()),
            Effect::Hour => {
                self.read = Some(Instant::now());
                Input::Hour(hour(self.record.as_deref()))
            }
            Effect::Quit | Effect::Suspend => return Some(()),
        };
        self.to.send(input).ok()
    }
}

/// Returns the processes of an answer whose host process ids are known.
fn members(look: &Look) -> BTreeMap<String, Vec<(u32, u32)>> {
    let all = look.status.tenants.iter();
    let numbers = |member: &MemberStatus| Some((member.pid?, member.pid_inside));
    all.map(|tenant| (tenant.name.clone(), tenant.members.iter().filter_map(numbers).collect())).collect()
}

/// Returns the last hour of the record.
fn hour(dir: Option<&Path>) -> Result<BTreeMap<Key, Vec<f64>>, String> {
    let dir = dir.ok_or("the daemon keeps no record of usage")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let minutes = i64::try_from(MINUTES).unwrap_or(60);
    let span = (now.div_euclid(60).saturating_sub(minutes) * 60, i64::MAX);
    let question = Question { tenants: Vec::new(), devices: true, span, by: By::Minute };
    let answer = vgpu_accounting::record::ask::ask(dir, &question).map_err(|why| why.to_string())?;
    Ok(history::hour(&answer.rows, now))
}
