//! The name of a tenant's ledger, taken back from a user that the tenant does not list.
//!
//! Ledgers lie in directories that every user of a container can write, such as /dev/shm: whoever is first there has the name. A
//! member that finds somebody else's file under the name sends the directory along with its join. If the file belongs to a user
//! that `uids` leaves out, an empty file of the member's user takes its place, in one step. Not here: who waits for that
//! (libvgpu's `device`), and the thread on which the directory is touched ([`super::apart`]).

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use vgpu_core::tenant::{Facts, TenantKey};

/// A member's claim to its tenant's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the ledger's file.
    pub file: String,
    /// Users who may be members; `None`: all.
    pub uids: Option<Vec<RangeInclusive<u32>>>,
    /// The member's user.
    pub uid: u32,
    /// The member's group.
    pub gid: u32,
}

impl Claim {
    /// The claim of a member with these credentials to the ledger of its tenant on this device, as it names the device.
    #[must_use]
    pub fn new(tenant: &str, device: &str, uids: Option<Vec<RangeInclusive<u32>>>, uid: u32, gid: u32) -> Option<Self> {
        let name = Some(tenant.as_bytes());
        let key = TenantKey::of(&Facts { name, mount_namespace: 0, pid_namespace: 0, host: true, uid }).ok()?;
        Some(Self { file: key.ledger_file(device), uids, uid, gid })
    }

    fn admits(&self, uid: u32) -> bool {
        self.uids.as_ref().is_none_or(|uids| uids.iter().any(|range| range.contains(&uid)))
    }

    fn owner(&self, dir: &OwnedFd, name: &str) -> rustix::io::Result<u32> {
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_uid)
    }

    /// Puts an empty file of the member's user in the place of what an unlisted user left under the ledger's name in `dir`.
    /// Returns that user; `None`: nothing is there, or it belongs to a user of the tenant.
    ///
    /// # Errors
    /// What the kernel says: a daemon that is not root may not do this in a directory of others.
    pub fn enforce(&self, dir: &OwnedFd) -> io::Result<Option<u32>> {
        let owner = match self.owner(dir, &self.file) {
            Ok(owner) if !self.admits(owner) => owner,
            Ok(_) | Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let spare = format!(".{}-{}", self.file, std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fresh = rustix::fs::openat(dir, &spare, flags, Mode::from_raw_mode(0o600))?;
        let placed = rustix::fs::fchown(&fresh, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
            .and_then(|()| self.exchange(dir, &spare));
        // Under this name lies what was there before, or the file that could not be placed. A directory that is not empty stays.
        if rustix::fs::unlinkat(dir, &spare, AtFlags::empty()).is_err() {
            let _ = rustix::fs::unlinkat(dir, &spare, AtFlags::REMOVEDIR);
        }
        Ok(placed?.then_some(owner))
    }

    /// Exchanges both names. False: a user of the tenant made the ledger meanwhile, which has its name again.
    fn exchange(&self, dir: &OwnedFd, spare: &str) -> rustix::io::Result<bool> {
        let exchange = || rustix::fs::renameat_with(dir, spare, dir, &self.file, RenameFlags::EXCHANGE);
        exchange()?;
        if self.owner(dir, spare).is_ok_and(|owner| self.admits(owner)) {
            exchange()?;
            return Ok(false);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    /// A directory, and the claim of this user to the ledger there, among users that do or do not include its owner.
    fn claim(listed: bool) -> (tempfile::TempDir, OwnedFd, Claim) {
        let dir = tempfile::tempdir().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let uids = if listed { vec![uid..=uid] } else { vec![u32::MAX - 1..=u32::MAX - 1] };
        let open = File::open(dir.path()).unwrap().into();
        (dir, open, Claim::new("a", "GPU-1", Some(uids), uid, gid).unwrap())
    }

    #[test]
    fn a_file_of_a_user_that_is_not_listed_gives_way_and_one_of_a_listed_user_stays() {
        for listed in [false, true] {
            let (dir, open, claim) = claim(listed);
            let path = dir.path().join("vgpu-t-a-GPU-1.ledger");
            assert_eq!(claim.enforce(&open).unwrap(), None, "nothing is there");
            fs::write(&path, "theirs").unwrap();
            let replaced = claim.enforce(&open).unwrap();
            assert_eq!(replaced, (!listed).then_some(claim.uid));
            assert_eq!(fs::read_to_string(&path).unwrap(), if listed { "theirs" } else { "" });
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left under another name");
            if !listed {
                let there = fs::metadata(&path).unwrap();
                assert_eq!((there.uid(), there.permissions().mode() & 0o777), (claim.uid, 0o600));
            }
        }
    }

    #[test]
    fn a_directory_of_an_unlisted_user_gives_way_too_and_keeps_its_content() {
        let (dir, open, claim) = claim(false);
        let path = dir.path().join(&claim.file);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "theirs").unwrap();
        assert!(claim.enforce(&open).unwrap().is_some());
        assert!(path.is_file());
        let aside = dir.path().join(format!(".{}-{}", claim.file, std::process::id()));
        assert_eq!(fs::read_to_string(aside.join("x")).unwrap(), "theirs");
    }
}
