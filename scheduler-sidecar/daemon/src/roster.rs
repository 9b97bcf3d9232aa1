//! A list of members for the next daemon: the processes that said hello, and their tenants' memory limits.
//!
//! A member without memory and launches does not notice that the daemon was replaced, and a stopped one cannot. Without
//! this list the next daemon would report both as unregistered. Each change appends a line ([`line`]) to a file next to
//! the administrative socket, which no container sees. The file is rewritten when the daemon starts and when it has
//! grown.

mod line;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tracing::warn;

use self::line::{RosterLine, limit_lines};
use super::config::TenantConfig;
use crate::proof::image::Image;
use crate::proof::limits::{LimitsByDevice, raise_limits};
use crate::proof::processes;

/// Name of the file, in the directory of the sockets.
const ROSTER_NAME: &str = "members";

/// Largest file that is read, in bytes: 100 for each line, ten times as many members as a daemon serves.
const MAX_ROSTER_BYTES: u64 = 16 << 20;

/// Lines beyond four times the number at the last rewrite, after which the file is rewritten. Rewrites are so rare
/// that a hello costs one line.
const REWRITE_SLACK_LINES: usize = 4096;

/// A process that said hello to the previous daemon and has not yet said hello to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorMember {
    /// Tenant that the process belonged to under the previous daemon.
    pub tenant: String,
    /// Program that said hello, to recognise the process when it connects again.
    pub image: Image,
    /// UUIDs of the devices that it joined; empty: they are not known.
    pub devices: BTreeSet<String>,
}

/// A member of this daemon.
#[derive(Debug, Default)]
struct PresentMember {
    /// Number of its connections. A member that says hello again has two for a moment.
    connections: usize,
    /// UUIDs of the devices that it joined.
    devices: BTreeSet<String>,
}

/// List of members and limits, in memory and in its file, by which the next daemon knows them.
#[derive(Debug, Default)]
pub struct MemberRoster {
    /// `None`: there is no directory, or the enforcement check is off.
    path: Option<PathBuf>,
    file: Option<File>,
    /// Lines of the file now, and after its last rewrite.
    lines: (usize, usize),
    present: HashMap<Image, PresentMember>,
    /// Members of the previous daemon that have not said hello again, by process ID.
    prior: HashMap<u32, PriorMember>,
    limits: HashMap<String, LimitsByDevice>,
}

/// A tenant's memory limits for this list and the enforcement check. A tenant that is only observed has none.
pub fn limits_of(tenant: &TenantConfig) -> LimitsByDevice {
    let is_kept = tenant.mode == vgpu_core::limits::Mode::Enforce;
    let limit = |memory: Option<vgpu_core::units::bytes::Bytes>| memory.filter(|_| is_kept).map_or(u64::MAX, u64::from);
    tenant.on.iter().map(|on| (on.device.to_string(), limit(on.memory))).collect()
}

impl MemberRoster {
    /// Reads the list of the previous daemon. Keeps the processes that are alive and run the same program.
    pub fn open(dir: Option<&Path>) -> Self {
        let mut roster = Self { path: dir.map(|dir| dir.join(ROSTER_NAME)), ..Self::default() };
        let Some(path) = &roster.path else { return roster };
        match read(path) {
            Ok(text) => roster.read_lines(&text),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => {
                warn!(file = %path.display(), %why, "members of the previous daemon are not known; idle ones will be \
                     reported as unregistered");
            }
        }
        roster.prior.retain(|pid, prior| processes::read_image(*pid) == Some(prior.image));
        roster
    }

    fn read_lines(&mut self, text: &str) {
        for line in line::parse_lines(text) {
            match line {
                RosterLine::Member { image, tenant } => {
                    let (tenant, devices) = (tenant.to_owned(), BTreeSet::new());
                    self.prior.insert(image.process.pid, PriorMember { tenant, image, devices });
                }
                RosterLine::Left { image, .. } => {
                    if self.prior.get(&image.process.pid).is_some_and(|prior| prior.image == image) {
                        self.prior.remove(&image.process.pid);
                    }
                }
                RosterLine::On { process, device } => {
                    let prior = self.prior.get_mut(&process.pid).filter(|prior| prior.image.process == process);
                    if let Some(prior) = prior {
                        prior.devices.insert(device.to_owned());
                    }
                }
                RosterLine::Limit { bytes, device, tenant } => {
                    raise_limits(self.limits.entry(tenant.to_owned()).or_default(), [(device.to_owned(), bytes)]);
                }
            }
        }
    }

    /// Members of the previous daemon that have not said hello again.
    pub fn prior_members(&self) -> impl Iterator<Item = &PriorMember> {
        self.prior.values()
    }

    /// The prior members that still run the program that said hello.
    ///
    /// # Cost
    /// Reads /proc for each prior member.
    pub fn living_members(&self) -> impl Iterator<Item = &PriorMember> {
        self.prior_members().filter(|prior| processes::read_image(prior.image.process.pid) == Some(prior.image))
    }

    /// True if the tenant has members of the previous daemon that have not said hello again.
    pub fn has_prior(&self, tenant: &str) -> bool {
        self.prior.values().any(|prior| prior.tenant == tenant)
    }

    /// The highest limits of a tenant under the previous daemon.
    pub fn prior_limits(&self, tenant: &str) -> LimitsByDevice {
        self.limits.get(tenant).cloned().unwrap_or_default()
    }

    /// Rewrites the file with the members and with each tenant's limits.
    pub fn rewrite_file<'t>(
        &mut self,
        members: impl Iterator<Item = (&'t str, Image)>,
        limits: impl Iterator<Item = (&'t str, LimitsByDevice)>,
    ) {
        let Some(path) = &self.path else { return };
        let line = |tenant: &str, image| RosterLine::Member { image, tenant }.to_text();
        let mut text: String = self.prior.values().map(|prior| line(&prior.tenant, prior.image)).collect();
        members.for_each(|(tenant, image)| text.push_str(&line(tenant, image)));
        let prior = self.prior.values().map(|prior| (&prior.image, &prior.devices));
        let present = self.present.iter().map(|(image, member)| (image, &member.devices));
        let on = prior.chain(present).flat_map(|(image, devices)| devices.iter().map(move |device| (image, device)));
        on.for_each(|(image, device)| text.push_str(&RosterLine::On { process: image.process, device }.to_text()));
        limits.for_each(|(tenant, limits)| text.push_str(&limit_lines(tenant, &limits)));
        self.lines = (text.lines().count(), text.lines().count());
        match create_file(path, &text) {
            Ok(file) => self.file = Some(file),
            Err(why) => log_failure(path, &why),
        }
    }

    /// True if the file has grown so much that it should be rewritten.
    pub fn is_long(&self) -> bool {
        self.file.is_some() && self.lines.0 > REWRITE_SLACK_LINES + 4 * self.lines.1
    }

    /// Notes that a process said hello.
    pub fn note_joined(&mut self, tenant: &str, image: &Image) {
        self.prior.remove(&image.process.pid);
        let member = self.present.entry(*image).or_default();
        member.connections += 1;
        let on = member.devices.iter().map(|device| RosterLine::On { process: image.process, device });
        let text: String =
            [RosterLine::Member { image: *image, tenant }].into_iter().chain(on).map(RosterLine::to_text).collect();
        self.append_line(&text);
    }

    /// Notes that a process joined a device.
    pub fn note_device(&mut self, image: &Image, device: &str) {
        let Some(member) = self.present.get_mut(image) else { return };
        if member.devices.insert(device.to_owned()) {
            self.append_line(&RosterLine::On { process: image.process, device }.to_text());
        }
    }

    /// Notes that a connection of a member ended.
    pub fn note_left(&mut self, tenant: &str, image: &Image) {
        let Some(member) = self.present.get_mut(image) else { return };
        member.connections -= 1;
        if member.connections == 0 {
            self.present.remove(image);
            self.append_line(&RosterLine::Left { image: *image, tenant }.to_text());
        }
    }

    /// Notes a tenant's new limits.
    pub fn note_limits(&mut self, tenant: &str, limits: &LimitsByDevice) {
        self.append_line(&limit_lines(tenant, limits));
    }

    fn append_line(&mut self, text: &str) {
        let (Some(file), Some(path)) = (&mut self.file, &self.path) else { return };
        self.lines.0 += text.lines().count();
        if let Err(why) = file.write_all(text.as_bytes()) {
            log_failure(path, &why);
            self.file = None;
        }
    }
}

fn log_failure(path: &Path, why: &io::Error) {
    warn!(file = %path.display(), %why, "the list of members cannot be written; after a restart idle members will be \
         reported as unregistered");
}

fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(MAX_ROSTER_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Creates the file complete or not at all: it is written under another name and renamed.
fn create_file(path: &Path, text: &str) -> io::Result<File> {
    let temporary = path.with_file_name(format!(".{ROSTER_NAME}-{}", std::process::id()));
    // Left by a killed daemon with the same process ID.
    let _ = std::fs::remove_file(&temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600))?);
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    match written {
        Ok(()) => Ok(file),
        Err(why) => {
            let _ = std::fs::remove_file(&temporary);
            Err(why)
        }
    }
}

#[cfg(test)]
mod tests {
    use vgpu_control::finding::ProcessId;

    use super::*;

    fn member_line(tenant: &str, image: &Image) -> String {
        RosterLine::Member { image: *image, tenant }.to_text()
    }

    fn own() -> Image {
        processes::read_image(std::process::id()).unwrap()
    }

    /// Waits until child process `pid` runs another program than this one, and returns its image. `spawn` returns while
    /// the kernel still builds the new program's memory.
    fn wait_for_image(pid: u32) -> Image {
        let read = || processes::read_image(pid).filter(|image| image.program != own().program && image.stack != 0);
        std::iter::repeat_with(read).find_map(|image| image).unwrap()
    }

    #[test]
    fn the_next_daemon_knows_the_members_that_live_and_run_what_they_ran() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = MemberRoster::open(Some(dir.path()));
        first.rewrite_file(std::iter::empty(), [("a", vec![("*".to_owned(), 8)])].into_iter());
        first.note_limits("a", &vec![("*".to_owned(), 2)]);
        let ended = Image { process: ProcessId { pid: u32::MAX, began: 1 }, ..own() };
        first.note_joined("a", &own());
        first.note_joined("a", &ended);
        let mut second = MemberRoster::open(Some(dir.path()));
        let prior = PriorMember { tenant: "a".into(), image: own(), devices: BTreeSet::new() };
        assert_eq!(second.prior_members().collect::<Vec<_>>(), [&prior]);
        assert!(second.has_prior("a") && !second.has_prior("b"));
        assert_eq!(second.prior_limits("a"), [("*".to_owned(), 8)], "the highest");
        // A member that has not said hello again is known to the third daemon too, until it leaves.
        second.rewrite_file(std::iter::empty(), std::iter::empty());
        let mut third = MemberRoster::open(Some(dir.path()));
        assert_eq!(third.prior_members().collect::<Vec<_>>(), [&prior]);
        third.rewrite_file(std::iter::empty(), std::iter::empty());
        third.note_joined("a", &own());
        assert_eq!(third.prior_members().count(), 0, "it came back");
        third.note_joined("a", &own());
        third.note_left("a", &own());
        assert_eq!(
            MemberRoster::open(Some(dir.path())).prior_members().count(),
            1,
            "it said hello again before its first connection ended"
        );
        third.note_left("a", &own());
        assert_eq!(MemberRoster::open(Some(dir.path())).prior_members().count(), 0);
    }

    #[test]
    fn the_next_daemon_knows_the_devices_that_a_member_joined() {
        let dir = tempfile::tempdir().unwrap();
        let read = || {
            let roster = MemberRoster::open(Some(dir.path()));
            let devices: Vec<_> = roster.prior_members().map(|prior| prior.devices.clone()).collect();
            (roster, devices)
        };
        let on = |devices: &[&str]| vec![devices.iter().map(|device| (*device).to_owned()).collect::<BTreeSet<_>>()];
        let (mut first, _) = read();
        first.rewrite_file(std::iter::empty(), std::iter::empty());
        first.note_joined("a", &own());
        first.note_device(&own(), "GPU-1");
        first.note_device(&own(), "GPU-1");
        first.append_line(&format!("on {} 1 GPU-9\non x 1 GPU-9\n", own().process.pid));
        let (mut second, devices) = read();
        assert_eq!((devices, first.lines.0), (on(&["GPU-1"]), 4));
        second.rewrite_file(std::iter::empty(), std::iter::empty());
        let (mut third, devices) = read();
        assert_eq!(devices, on(&["GPU-1"]), "it has not come back");
        third.rewrite_file(std::iter::empty(), std::iter::empty());
        third.note_joined("a", &own());
        third.note_device(&own(), "GPU-2");
        third.note_joined("a", &own());
        assert_eq!(read().1, on(&["GPU-2"]), "it said hello again");
        third.rewrite_file([("a", own())].into_iter(), std::iter::empty());
        assert_eq!(read().1, on(&["GPU-2"]));
    }

    #[test]
    fn a_member_of_the_former_daemon_counts_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut first = MemberRoster::open(Some(dir.path()));
        first.rewrite_file(std::iter::empty(), std::iter::empty());
        first.note_joined("a", &wait_for_image(child.id()));
        let second = MemberRoster::open(Some(dir.path()));
        let running = || second.living_members().map(|prior| prior.tenant.as_str()).collect::<Vec<_>>();
        assert_eq!(running(), ["a"]);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(second.has_prior("a") && running().is_empty());
    }

    #[test]
    fn another_program_in_the_same_process_is_no_member_of_the_former_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = MemberRoster::open(Some(dir.path()));
        first.rewrite_file(std::iter::empty(), std::iter::empty());
        first.note_joined("a", &Image { stack: own().stack + 16, ..own() });
        assert_eq!(MemberRoster::open(Some(dir.path())).prior_members().count(), 0);
    }

    #[test]
    fn a_prior_member_that_ends_later_is_no_living_member() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let line = member_line("a", &wait_for_image(child.id())) + &member_line("a", &own());
        std::fs::write(dir.path().join(ROSTER_NAME), line).unwrap();
        let roster = MemberRoster::open(Some(dir.path()));
        assert_eq!(roster.living_members().count(), 2);
        child.kill().unwrap();
        child.wait().unwrap();
        let left: Vec<Image> = roster.living_members().map(|prior| prior.image).collect();
        assert_eq!((left, roster.prior_members().count()), (vec![own()], 2));
    }

    #[test]
    fn lines_that_are_no_lines_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let whole = member_line("a", &own());
        let text = format!("member\nmember x 1 2 3 4 5 a\nleft\nlimit 5 *\n\u{0}\nlimit 7 * a\n{whole}limit 9 * a");
        std::fs::write(dir.path().join(ROSTER_NAME), text).unwrap();
        let roster = MemberRoster::open(Some(dir.path()));
        assert_eq!((roster.prior_members().count(), roster.prior_limits("a")), (1, vec![("*".to_owned(), 7)]));
        assert_eq!(MemberRoster::open(Some(&dir.path().join("none"))).prior_members().count(), 0);
        let mut nowhere = MemberRoster::open(None);
        nowhere.rewrite_file(std::iter::empty(), std::iter::empty());
        nowhere.note_joined("a", &own());
        assert!(!nowhere.is_long());
    }

    #[test]
    fn the_list_is_written_anew_when_it_has_grown() {
        let dir = tempfile::tempdir().unwrap();
        let mut roster = MemberRoster::open(Some(dir.path()));
        roster.rewrite_file(std::iter::empty(), std::iter::empty());
        for _ in 0..=REWRITE_SLACK_LINES / 2 {
            roster.note_joined("a", &own());
            roster.note_left("a", &own());
        }
        assert!(roster.is_long());
        roster.rewrite_file([("a", own())].into_iter(), std::iter::empty());
        assert!(!roster.is_long());
        assert_eq!(std::fs::read_to_string(dir.path().join(ROSTER_NAME)).unwrap(), member_line("a", &own()));
    }
}
