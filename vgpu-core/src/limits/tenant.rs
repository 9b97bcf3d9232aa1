//! Derives the tenant of a process when no daemon names it, and the file name of the tenant's ledger.
//!
//! The caller reads the facts (environment, namespaces, uid) and chooses the directory. The key is part of the file
//! name; the ledger's header stores its hash for comparison.

use core::fmt;

use crate::limits::escape_bytes;

/// Longest name in `VGPU_TENANT`, in bytes.
pub const MAX_NAME: usize = 64;

/// Properties of a process that determine its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFacts<'a> {
    /// Value of `VGPU_TENANT` in the environment.
    pub name: Option<&'a [u8]>,
    /// Inode number of the mount namespace.
    pub mount_namespace: u64,
    /// Inode number of the pid namespace.
    pub pid_namespace: u64,
    /// True if these are the host's own namespaces, so that there is no container.
    pub host: bool,
    /// Effective user id; it counts only on the host.
    pub uid: u32,
}

/// A tenant's key: short, stable, safe in a file name.
///
/// The prefix keeps keys of different origin apart: `t-` a name, `c-` a container, `u-` a user on the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TenantKey(String);

/// `VGPU_TENANT` is not a valid name. `Display` writes one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantError {
    value: String,
    problem: &'static str,
}

impl fmt::Display for TenantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, problem } = self;
        write!(f, "VGPU_TENANT=\"{value}\" {problem}; accepted: 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -")
    }
}

impl core::error::Error for TenantError {}

impl TenantKey {
    /// The key of a process with these facts.
    ///
    /// # Errors
    /// [`TenantError`] if `VGPU_TENANT` is set to an invalid name.
    pub fn from_facts(facts: &ProcessFacts<'_>) -> Result<Self, TenantError> {
        let Some(name) = facts.name else {
            return Ok(Self(if facts.host {
                format!("u-{}-{:x}-{:x}", facts.uid, facts.mount_namespace, facts.pid_namespace)
            } else {
                format!("c-{:x}-{:x}", facts.mount_namespace, facts.pid_namespace)
            }));
        };
        let refused = |problem| TenantError { value: escape_bytes(name), problem };
        if name.is_empty() {
            return Err(refused("is empty"));
        }
        if !name.iter().all(|byte| is_safe(*byte)) {
            return Err(refused("is not a tenant name"));
        }
        if name.len() > MAX_NAME {
            return Err(refused("is too long"));
        }
        Ok(Self(format!("t-{}", String::from_utf8_lossy(name))))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key's hash, as a ledger's header stores it.
    #[must_use]
    pub fn hash(&self) -> u64 {
        hash64(self.0.as_bytes())
    }

    /// File name of this tenant's ledger for the device with this UUID: `vgpu-<key>-<uuid>.ledger`.
    ///
    /// A UUID that is not safe in a file name is replaced by its hash.
    #[must_use]
    pub fn ledger_file(&self, uuid: &str) -> String {
        let fit = !uuid.is_empty() && uuid.len() <= 96 && uuid.bytes().all(is_safe);
        if fit {
            format!("vgpu-{}-{uuid}.ledger", self.0)
        } else {
            format!("vgpu-{}-x{:016x}.ledger", self.0, hash64(uuid.as_bytes()))
        }
    }
}

impl fmt::Display for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The user's id in the parent user namespace, from the text of `/proc/self/uid_map`. `None`: it has none there.
#[must_use]
pub fn uid_in_parent(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let at = uid.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    })
}

fn is_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// 64-bit FNV-1a. It detects files mixed up by accident; it does not protect against intent.
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTAINER: ProcessFacts<'_> =
        ProcessFacts { name: None, mount_namespace: 0xf000_0123, pid_namespace: 0xf000_0124, host: false, uid: 1000 };

    fn named(name: &[u8]) -> Result<String, String> {
        let facts = ProcessFacts { name: Some(name), ..CONTAINER };
        TenantKey::from_facts(&facts).map(|key| key.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_wins_over_namespaces() {
        assert_eq!(named(b"web-1.prod_A").unwrap(), "t-web-1.prod_A");
        assert_eq!(named(&[b'a'; 64]).unwrap().len(), 66);
    }

    #[test]
    fn a_bad_name_is_told_in_one_line() {
        let accepted = "; accepted: 1 to 64 of A-Z a-z 0-9 . _ -";
        for (name, line) in [
            (&b""[..], r#"VGPU_TENANT="" is empty"#),
            (b"a/b", r#"VGPU_TENANT="a/b" is not a tenant name"#),
            (b"../up", r#"VGPU_TENANT="../up" is not a tenant name"#),
            (b"a b", r#"VGPU_TENANT="a b" is not a tenant name"#),
            (b"a\nb", r#"VGPU_TENANT="a\nb" is not a tenant name"#),
            (b"\xff", r#"VGPU_TENANT="\xff" is not a tenant name"#),
            ("m\u{fc}ller".as_bytes(), r#"VGPU_TENANT="m\u{fc}ller" is not a tenant name"#),
            (&[b'a'; 65], r#"VGPU_TENANT="aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..." is too long"#),
        ] {
            assert_eq!(named(name), Err(format!("{line}{accepted}")));
        }
    }

    #[test]
    fn a_container_is_its_namespaces_and_the_uid_counts_on_the_host_only() {
        let key = |facts: ProcessFacts<'_>| TenantKey::from_facts(&facts).unwrap();
        assert_eq!(key(CONTAINER).as_str(), "c-f0000123-f0000124");
        assert_eq!(key(CONTAINER), key(ProcessFacts { uid: 0, ..CONTAINER }));
        assert_ne!(key(CONTAINER), key(ProcessFacts { pid_namespace: 1, ..CONTAINER }));
        assert_ne!(key(CONTAINER), key(ProcessFacts { mount_namespace: 1, ..CONTAINER }));
        let host = ProcessFacts { host: true, ..CONTAINER };
        assert_eq!(key(host).as_str(), "u-1000-f0000123-f0000124");
        assert_ne!(key(host), key(ProcessFacts { uid: 0, ..host }));
    }

    #[test]
    fn the_file_name_holds_key_and_device() {
        let key = TenantKey::from_facts(&ProcessFacts { name: Some(b"a"), ..CONTAINER }).unwrap();
        assert_eq!(key.ledger_file("GPU-1234"), "vgpu-t-a-GPU-1234.ledger");
        for odd in ["", "a/b", "..\0", "\u{fc}", &"x".repeat(97)] {
            let file = key.ledger_file(odd);
            assert!(file.starts_with("vgpu-t-a-x") && file.len() == "vgpu-t-a-x.ledger".len() + 16, "{file}");
        }
    }

    #[test]
    fn a_user_of_a_user_namespace_is_known_by_its_number_outside() {
        let map = "         0     100000       1000\n      1000       4711          1\nnonsense\n";
        for (inside, outside) in [(0, Some(100_000)), (999, Some(100_999)), (1000, Some(4711)), (1001, None)] {
            assert_eq!(uid_in_parent(map, inside), outside, "{inside}");
        }
        assert_eq!(uid_in_parent("0 0 4294967295\n", 4711), Some(4711), "the initial namespace");
        assert_eq!(uid_in_parent("0 4294967295 2\n", 1), None, "a number that does not exist");
        assert_eq!(uid_in_parent("", 0), None);
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // Published test vectors: the hash is part of the file format and must not drift.
        assert_eq!(hash64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    proptest! {
        #[test]
        fn keys_of_different_origin_never_meet_and_are_safe(name in "[A-Za-z0-9._-]{1,64}", mount: u64, pid: u64, uid: u32) {
            let facts = ProcessFacts { name: None, mount_namespace: mount, pid_namespace: pid, host: false, uid };
            let keys = [
                TenantKey::from_facts(&ProcessFacts { name: Some(name.as_bytes()), ..facts }).unwrap(),
                TenantKey::from_facts(&facts).unwrap(),
                TenantKey::from_facts(&ProcessFacts { host: true, ..facts }).unwrap(),
            ];
            prop_assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
            for key in keys {
                let file = key.ledger_file("GPU-6b3a2f0e-0000-0000-0000-000000000000");
                prop_assert!(file.bytes().all(is_safe) && file.len() < 255, "{}", file);
            }
        }

        #[test]
        fn no_name_breaks_the_line(name: Vec<u8>) {
            if let Err(line) = named(&name) {
                prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", line);
            }
        }
    }
}
