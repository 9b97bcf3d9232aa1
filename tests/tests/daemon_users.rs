//! Users of one machine under the daemon's `uids`: an unlisted user never gets in, and never keeps a listed one out.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::PathBuf;

use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, Lab, NO_PERMISSION, NOT_PERMITTED, is_root, optional};

/// The user that `uids` lists.
const LISTED: u32 = 4711;
/// A user that `uids` does not list.
const UNLISTED: u32 = 4712;
/// Starts of the unlisted user. The refusal was lost in most starts, not in all.
const STARTS: usize = 30;

fn needs_root() -> bool {
    if !is_root() {
        optional::skipped("users other than this one: needs root");
    }
    is_root()
}

fn world() -> (Lab, Daemon) {
    let mut lab = Lab::new("t4").for_every_user();
    let lines = format!("memory_limit = \"4GiB\"\nuids = [{LISTED}]");
    let plan = Plan { device: lab.device(0).uuid, time: String::new(), tenants: vec![("a".into(), lines)] };
    let daemon = Daemon::start(lab.path(), &plan);
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    (lab, daemon)
}

/// Starts the unlisted user's program: cuInit and nvmlInit are refused, with one line that names the user.
#[track_caller]
fn is_refused(lab: &mut Lab, call: &str, code: i64) {
    lab.become_user(UNLISTED);
    let mut member = lab.member();
    assert_eq!(member.code(call), code, "{}", member.errors());
    let said = member.errors();
    assert!(said.contains(&format!("tenant a does not accept user {UNLISTED}")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn begins(lab: &mut Lab) {
    lab.become_user(LISTED);
    let mut member = lab.member();
    member.begin();
    assert_eq!(member.info().1, 4 * GIB, "{}", member.errors());
    member.alloc(GIB);
    assert_eq!(member.errors(), "");
}

/// The tenant's ledger of the one device.
fn ledger(lab: &Lab) -> PathBuf {
    lab.state().join(format!("vgpu-t-a-{}.ledger", lab.device(0).uuid))
}

#[test]
fn an_unlisted_user_is_refused_at_every_start_with_the_daemon_and_without_it() {
    if !needs_root() {
        return;
    }
    let (mut lab, mut daemon) = world();
    for start in 0..STARTS {
        let (call, code) = if start % 2 == 0 { ("init", NOT_PERMITTED) } else { ("nvinit", NO_PERMISSION) };
        is_refused(&mut lab, call, code);
    }
    begins(&mut lab);
    daemon.kill();
    is_refused(&mut lab, "init", NOT_PERMITTED);
    is_refused(&mut lab, "nvinit", NO_PERMISSION);
    begins(&mut lab);
}

/// Everything that another user can leave under the ledger's name, in a directory that is writable by all.
#[test]
fn a_file_that_an_unlisted_user_put_in_the_ledgers_place_keeps_no_listed_user_out() {
    if !needs_root() {
        return;
    }
    let (mut lab, _daemon) = world();
    let path = ledger(&lab);
    let own = |path: &PathBuf| lchown(path, Some(UNLISTED), Some(UNLISTED)).unwrap();
    let plant: [(&str, &dyn Fn()); 5] = [
        ("a file that only they may open", &|| {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }),
        ("a file that everybody may open", &|| {
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        }),
        ("a link to nothing", &|| symlink("/does/not/exist", &path).unwrap()),
        ("a link to a file", &|| symlink("/etc/passwd", &path).unwrap()),
        ("a directory with something in it", &|| {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("x"), "").unwrap();
        }),
    ];
    for (what, plant) in plant {
        let _ = fs::remove_file(&path);
        plant();
        own(&path);
        eprintln!("{what}");
        begins(&mut lab);
        let there = fs::symlink_metadata(&path).unwrap();
        assert!(there.is_file(), "{what}");
        assert_eq!((there.uid(), there.mode() & 0o777), (LISTED, 0o600), "{what}: theirs alone");
    }
    let passwd = fs::metadata("/etc/passwd").unwrap();
    assert_eq!(passwd.uid(), 0, "what a link leads to is left alone");
}

/// The daemon takes the name back from users that it does not list, and from nobody else.
#[test]
fn a_ledger_of_a_listed_user_stays_where_it_is() {
    if !needs_root() {
        return;
    }
    let mut lab = Lab::new("t4").for_every_user();
    let lines = format!("memory_limit = \"4GiB\"\nuids = [{LISTED}, {UNLISTED}]");
    let plan = Plan { device: lab.device(0).uuid, time: String::new(), tenants: vec![("a".into(), lines)] };
    let daemon = Daemon::start(lab.path(), &plan);
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    lab.become_user(LISTED);
    let mut first = lab.member();
    first.begin();
    first.alloc(GIB);
    let before = fs::metadata(ledger(&lab)).unwrap().ino();
    lab.become_user(UNLISTED);
    let mut second = lab.member();
    assert_eq!(second.code("init"), NOT_PERMITTED, "{}", second.errors());
    assert!(second.errors().contains("VGPU_SHARED_UIDS=1"), "{}", second.errors());
    assert_eq!(fs::metadata(ledger(&lab)).unwrap().ino(), before);
    first.alloc(GIB);
}
