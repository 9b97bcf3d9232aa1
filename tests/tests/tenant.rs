//! The owner and the place of charges: users, directories, names.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use vgpu_tests::lab::charged;
use vgpu_tests::{GIB, Lab, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, is_root, optional};

fn limited() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").with("VGPU_TENANT", "team")
}

/// Ledger files in a directory.
fn ledgers(place: &Path) -> Vec<PathBuf> {
    fs::read_dir(place)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "ledger"))
        .collect()
}

/// Requires that both initialisations are refused and that `member` printed exactly one line with these words.
#[track_caller]
fn refused(mut member: Member, words: &[&str]) {
    assert_eq!(member.code("init"), NOT_PERMITTED, "{}", member.errors());
    assert_eq!(member.code("nvinit"), NO_PERMISSION, "{}", member.errors());
    let said = member.errors();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} in {said}");
    }
}

fn needs_root() -> bool {
    if !is_root() {
        optional::skipped("users other than this one: needs root");
    }
    is_root()
}

#[test]
fn an_ordinary_user_is_a_tenant_like_any_other() {
    if !needs_root() {
        return;
    }
    let mut lab = limited().for_every_user();
    lab.become_user(1000);
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.info().1, 4 * GIB, "{}", m.errors());
    assert_eq!(m.code(&format!("alloc {}", 4 * GIB)), OUT_OF_MEMORY);
    m.alloc(GIB);
    let ledger = fs::metadata(&ledgers(&lab.state())[0]).unwrap();
    assert_eq!((ledger.uid(), ledger.mode() & 0o777), (1000, 0o600), "theirs alone");
}

#[test]
fn a_second_user_of_a_tenant_gets_a_clear_error_and_no_second_limit() {
    if !needs_root() {
        return;
    }
    let mut lab = limited().for_every_user();
    lab.become_user(1000);
    let mut first = lab.member();
    first.begin();
    first.alloc(GIB);
    lab.become_user(1001);
    refused(lab.member(), &["belongs to user 1000", "VGPU_SHARED_UIDS=1", "ledger"]);
    assert_eq!(ledgers(&lab.state()).len(), 1);
    assert_eq!(lab.device(0).processes.len(), 1, "the second got nothing");
    first.alloc(GIB);
}

#[test]
fn users_share_one_limit_where_that_was_asked_for() {
    if !needs_root() {
        return;
    }
    let mut lab = limited().for_every_user().with("VGPU_SHARED_UIDS", "1");
    lab.become_user(1000);
    let mut first = lab.member();
    first.begin();
    lab.become_user(1001);
    let mut second = lab.member();
    second.begin();
    assert_eq!(ledgers(&lab.state()).len(), 1);
    first.alloc(2 * GIB);
    assert_eq!(second.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    assert_eq!(first.info(), second.info());
    let ledger = fs::metadata(&ledgers(&lab.state())[0]).unwrap();
    assert_eq!(ledger.mode() & 0o777, 0o666);
    assert_eq!(first.used(), charged(&lab.device(0)));
}

#[test]
fn a_place_that_cannot_be_written_is_an_error_that_names_it() {
    if !needs_root() {
        return;
    }
    let mut lab = limited().for_every_user();
    fs::set_permissions(lab.state(), Permissions::from_mode(0o755)).unwrap();
    lab.become_user(1000);
    let place = lab.state();
    refused(lab.member(), &["VGPU_STATE_DIR", place.to_str().unwrap(), "Permission denied"]);
}

#[test]
fn a_place_that_is_not_there_is_an_error_that_names_it() {
    let lab = limited().with("VGPU_STATE_DIR", "/no/such/place");
    refused(lab.member(), &["VGPU_STATE_DIR", "/no/such/place", "No such file"]);
}

/// Runs `set_up` in a private mount namespace of the child before the program begins.
fn in_own_mounts(lab: &Lab, set_up: impl Fn() -> Result<(), Error> + Send + Sync + 'static) -> std::process::Command {
    let mut c = lab.command(vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]));
    c.arg("dlsym");
    let prepare = move || {
        // SAFETY: only system calls with constant strings; the private namespace keeps other mounts unchanged.
        let ok = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    core::ptr::null(),
                    c"/".as_ptr(),
                    core::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    core::ptr::null(),
                ) == 0
        };
        if ok { set_up() } else { Err(Error::last_os_error()) }
    };
    // SAFETY: `prepare` makes only async-signal-safe calls.
    unsafe { c.pre_exec(prepare) };
    c
}

fn mount_tmpfs(at: &CString, options: &CString) -> Result<(), Error> {
    // SAFETY: the C strings live through the call.
    let done = unsafe { libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn c_text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// True if this machine permits a test to mount.
fn may_mount(lab: &Lab) -> bool {
    let may = is_root() && in_own_mounts(lab, || Ok(())).stdin(std::process::Stdio::null()).output().is_ok();
    if !may {
        optional::skipped("a full file system: mounting is refused here");
    }
    may
}

#[test]
fn a_full_file_system_is_an_error_at_the_start_and_not_a_crash_later() {
    let lab = limited();
    if !may_mount(&lab) {
        return;
    }
    let (at, options) = (c_text(&lab.state()), CString::new("size=4k").unwrap());
    let full = in_own_mounts(&lab, move || mount_tmpfs(&at, &options));
    refused(Member::start(&mut { full }), &["No space left", lab.state().to_str().unwrap()]);
    // Positive control: the member starts if the file system has enough space.
    let (at, options) = (c_text(&lab.state()), CString::new("size=4m").unwrap());
    let roomy = in_own_mounts(&lab, move || mount_tmpfs(&at, &options));
    let mut m = Member::start(&mut { roomy });
    m.begin();
    assert_eq!(m.info().1, 4 * GIB);
}

#[test]
fn a_read_only_place_is_an_error_even_for_root() {
    let lab = limited();
    if !may_mount(&lab) {
        return;
    }
    let (at, options) = (c_text(&lab.state()), CString::new("size=4m,ro").unwrap());
    let read_only = in_own_mounts(&lab, move || mount_tmpfs(&at, &options).and_then(|()| remount_read_only(&at)));
    refused(Member::start(&mut { read_only }), &["Read-only file system"]);
}

fn remount_read_only(at: &CString) -> Result<(), Error> {
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    // SAFETY: the C string lives through the call.
    let done = unsafe { libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), flags, core::ptr::null()) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A relative directory would be another ledger with a full limit in each directory that a program starts in.
#[test]
fn a_state_dir_that_is_not_absolute_is_refused_wherever_the_program_starts() {
    let lab = limited().with("VGPU_STATE_DIR", "state");
    for dir in ["one", "two"] {
        let dir = lab.path().join(dir);
        fs::create_dir_all(dir.join("state")).unwrap();
        let mut c = lab.command(vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]));
        refused(Member::start(c.arg("dlsym").current_dir(dir)), &["VGPU_STATE_DIR=\"state\"", "absolute"]);
    }
}

/// Without VGPU_STATE_DIR the ledger is next to HAMi's cache file, else in /dev/shm, else in /tmp: the first directory
/// that is writable. A full file system counts as writable. Moving on from there would give a second limit to the
/// processes that start while it is full.
#[test]
fn the_ledger_stands_where_hamis_cache_would_and_falls_back_in_order() {
    let mut lab = limited();
    if !may_mount(&lab) {
        return;
    }
    let cache = lab.path().join("cache");
    fs::create_dir(&cache).unwrap();
    lab.set("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache.join("usage.cache"));
    let mut c = lab.command(vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]));
    let mut m = Member::start(c.arg("dlsym").env_remove("VGPU_STATE_DIR"));
    m.begin();
    assert_eq!(ledgers(&cache).len(), 1);
    drop(m);
    lab.unset("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    let name = format!("fallback-{}", std::process::id());
    lab.set("VGPU_TENANT", &name);
    let with_shm = |options: &str, read_only: bool| {
        let (shm, options) = (c"/dev/shm".to_owned(), CString::new(options).unwrap());
        let mut c = in_own_mounts(&lab, move || {
            mount_tmpfs(&shm, &options).and_then(|()| if read_only { remount_read_only(&shm) } else { Ok(()) })
        });
        Member::start(c.env_remove("VGPU_STATE_DIR"))
    };
    refused(with_shm("size=4k", false), &["/dev/shm/", "No space left"]);
    let mut m = with_shm("size=4m", true);
    m.begin();
    let left: Vec<PathBuf> =
        ledgers(Path::new("/tmp")).into_iter().filter(|p| p.to_string_lossy().contains(&name)).collect();
    left.iter().for_each(|p| fs::remove_file(p).unwrap());
    assert_eq!(left.len(), 1);
}

#[test]
fn members_of_one_tenant_may_have_different_limits() {
    let mut lab = limited();
    let mut wide = lab.member();
    wide.begin();
    lab.set("VGPU_MEMORY_LIMIT", "3GiB");
    let mut narrow = lab.member();
    narrow.begin();
    assert_eq!((wide.info().1, narrow.info().1), (4 * GIB, 3 * GIB));
    wide.alloc(GIB);
    assert_eq!(wide.used(), narrow.used(), "one sum");
    assert_eq!(narrow.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "the common sum against its own limit");
    wide.alloc(GIB);
    assert_eq!(narrow.info().0, 0, "more than its limit is in use");
    assert_eq!(narrow.code("alloc 1"), OUT_OF_MEMORY);
}

#[test]
fn tenants_by_name_are_independent() {
    let mut lab = limited();
    let mut a = lab.member();
    a.begin();
    lab.set("VGPU_TENANT", "others");
    let mut b = lab.member();
    b.begin();
    let before = b.info();
    let (free, _) = a.info();
    a.alloc(free);
    assert_eq!(b.info(), before);
    b.alloc(before.0);
    assert_eq!(charged(&lab.device(0)), 8 * GIB);
    assert_eq!(ledgers(&lab.state()).len(), 2);
}

#[test]
fn without_a_name_processes_of_one_user_here_are_one_tenant() {
    let mut lab = limited();
    lab.unset("VGPU_TENANT");
    let (mut a, mut b) = (lab.member(), lab.member());
    a.begin();
    b.begin();
    a.alloc(GIB);
    assert_eq!(a.info(), b.info());
    assert_eq!(ledgers(&lab.state()).len(), 1);
}

/// A member of the tenant with that name, with a context.
fn begin(lab: &mut Lab, tenant: &str) -> Member {
    lab.set("VGPU_TENANT", tenant);
    let mut m = lab.member();
    m.begin();
    m
}

/// Tenants that have ledgers in a directory, sorted.
fn tenants(place: &Path) -> Vec<String> {
    let name = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        name.strip_prefix("vgpu-t-").unwrap().split_once("-GPU-").unwrap().0.to_owned()
    };
    let mut all: Vec<String> = ledgers(place).into_iter().map(name).collect();
    all.sort_unstable();
    all
}

/// Otherwise /dev/shm would fill with ledgers of past tenants: processes end by SIGKILL and cannot clean up.
#[test]
fn the_first_member_of_a_new_ledger_removes_those_that_ended() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    for round in 0..40 {
        begin(&mut lab, &format!("ended-{round:02}")).kill();
    }
    let mut living = begin(&mut lab, "living");
    // A member that joins an existing ledger checks no other ledger, so the copied file stays.
    fs::copy(&ledgers(&lab.state())[0], lab.state().join("vgpu-t-copied-GPU-1.ledger")).unwrap();
    drop(begin(&mut lab, "living"));
    assert_eq!(tenants(&lab.state()), ["copied", "living"]);
    // A file that is no ledger, or has another version, stays: it may belong to another program.
    fs::write(lab.state().join("vgpu-t-strange-GPU-1.ledger"), vec![7; 266_240]).unwrap();
    fs::write(lab.state().join("vgpu-t-short-GPU-1.ledger"), b"vgpuledg").unwrap();
    fs::write(lab.state().join("precious"), b"").unwrap();
    let fresh = begin(&mut lab, "fresh");
    assert_eq!(tenants(&lab.state()), ["fresh", "living", "short", "strange"]);
    assert!(lab.state().join("precious").exists());
    living.alloc(GIB);
    drop((living, fresh));
}

/// Otherwise a tenant that used more than its ceiling could escape the debt by ending.
#[test]
fn the_ledger_of_an_ended_tenant_that_owes_device_time_stays_until_that_is_over() {
    let mut lab = Lab::new("h200").with("VGPU_SM_LIMIT", "10");
    let mut m = begin(&mut lab, "debtor");
    m.ok("launch 300000000"); // 3 s at a ceiling of a tenth
    m.kill();
    drop(begin(&mut lab, "first"));
    assert_eq!(tenants(&lab.state()), ["debtor", "first"]);
    std::thread::sleep(std::time::Duration::from_secs(4));
    drop(begin(&mut lab, "second"));
    assert_eq!(tenants(&lab.state()), ["second"]);
}

#[test]
fn the_ended_ledgers_of_other_users_are_left_to_them() {
    if !needs_root() {
        return;
    }
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").for_every_user();
    lab.become_user(1000);
    drop(begin(&mut lab, "theirs"));
    lab.become_user(0);
    drop(begin(&mut lab, "ours"));
    assert_eq!(tenants(&lab.state()), ["ours", "theirs"]);
}

/// Ledgers of one tenant are created and removed while other tenants create theirs. No member may end up with a file
/// that has no name any more.
#[test]
fn who_joins_while_ended_ledgers_are_removed_shares_its_tenants_limit() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let program = vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]);
    let start = |tenant: &str| Member::start(lab.command(&program).arg("dlsym").env("VGPU_TENANT", tenant));
    for round in 0..40 {
        // All at the same time: two members of the tenant, which ended a moment ago, and two members that create
        // ledgers and remove the tenant's last one.
        let mut all = ["team", "team", &format!("a-{round}"), &format!("b-{round}")].map(start);
        all.iter_mut().for_each(|m| m.tell("init"));
        assert!(all.iter_mut().all(|m| m.answer().code == 0), "round {round}");
        let [a, b, ..] = &mut all;
        a.ok("retain 0");
        b.ok("retain 0");
        a.alloc(2 * GIB);
        assert_eq!(b.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY, "round {round}: one limit");
    }
}

#[test]
fn a_link_planted_in_the_ledgers_place_is_refused_and_its_target_untouched() {
    let lab = limited();
    let mut m = lab.member();
    m.begin();
    drop(m);
    let [ledger] = &ledgers(&lab.state())[..] else { panic!("one ledger") };
    fs::remove_file(ledger).unwrap();
    let target = lab.path().join("target");
    fs::write(&target, b"precious").unwrap();
    symlink(&target, ledger).unwrap();
    refused(lab.member(), &["ledger", "symbolic link"]);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    fs::remove_file(ledger).unwrap();
    symlink(lab.path().join("made"), ledger).unwrap();
    refused(lab.member(), &["ledger", "symbolic link"]);
    assert!(!lab.path().join("made").exists(), "nothing is made at the end of a link");
}

/// Without a daemon the library cannot know whether that user belongs to the tenant. The line contains the facts that a
/// person needs to decide it.
#[test]
fn a_file_of_another_user_in_the_ledgers_place_is_named_with_its_owner_and_the_remedy() {
    if !needs_root() {
        return;
    }
    let mut lab = limited().for_every_user();
    lab.become_user(1000);
    drop(begin(&mut lab, "team"));
    let [path] = &ledgers(&lab.state())[..] else { panic!("one ledger") };
    fs::remove_file(path).unwrap();
    let file = |mode| {
        fs::write(path, "").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let plants: [&dyn Fn(); 4] = [&|| file(0o600), &|| file(0o666), &|| symlink("/etc/passwd", path).unwrap(), &|| {
        fs::create_dir(path).unwrap()
    }];
    for plant in plants {
        plant();
        lchown(path, Some(1001), Some(1001)).unwrap();
        refused(lab.member(), &[path.to_str().unwrap(), "it belongs to user 1001: remove it", "VGPU_SHARED_UIDS=1"]);
        let _ = fs::remove_file(path);
    }
}

#[test]
fn what_is_not_a_ledger_is_refused_and_kept() {
    let lab = limited();
    let mut m = lab.member();
    m.begin();
    drop(m);
    let [ledger] = &ledgers(&lab.state())[..] else { panic!("one ledger") };
    let size = usize::try_from(fs::metadata(ledger).unwrap().len()).unwrap();
    for content in [b"short".to_vec(), vec![b'x'; size]] {
        fs::write(ledger, &content).unwrap();
        refused(lab.member(), &["ledger"]);
        assert_eq!(fs::read(ledger).unwrap(), content);
    }
    fs::remove_file(ledger).unwrap();
    fs::create_dir(ledger).unwrap();
    refused(lab.member(), &["ledger"]);
}
