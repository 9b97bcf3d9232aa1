//! Tests of a tenant's mode and strictness, in the answers to members, the terms file, `vgpu` and `--check`.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;

use member::Member;
use serde_json::Value;
use support::world::World;
use support::{Guard, Peer, eventually, texts, vgpu, vgpud};
use vgpu_control::ChangeResult;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::terms_file::TermsFile;
use vgpu_core::units::bytes::Bytes;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

const FILE: &str = "
[template.new]
mode = \"observe\"
[[tenant]]
name = \"seen\"
template = \"new\"
memory_limit = \"1GiB\"
sm_limit = 20
[[tenant]]
name = \"kept\"
memory_limit = \"2GiB\"
strict = true
";

fn says(world: &World, words: &[&str]) -> String {
    let output = vgpu().args(words).arg("--socket").arg(world.admin()).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{words:?}: {err}");
    out
}

fn terms(world: &World, tenant: &str) -> TermsFile {
    TermsFile::decode(&fs::read(world.socket(tenant).with_file_name("terms.json")).unwrap()).unwrap()
}

#[test]
fn members_boards_and_terms_files_say_the_mode_and_what_is_strict() {
    let world = World::start(FILE);
    for (tenant, mode, strict) in [("seen", Mode::Observe, false), ("kept", Mode::Enforce, true)] {
        let member = Member::hello(&world.socket(tenant));
        assert_eq!((member.welcome.mode, member.welcome.strict), (mode, strict), "{tenant}");
        assert_eq!(member.join(GPU).allowed().mode, mode, "{tenant}");
        let file = terms(&world, tenant);
        assert_eq!((file.mode, file.strict), (mode, strict), "{tenant}");
    }
    let told = |tenant: &str| Peer::connect(&world.socket(tenant)).terms();
    assert_eq!(told("seen"), Ok(support::terms("seen", None, None)));
    assert_eq!(told("kept"), Ok(support::terms("kept", Some(2 << 30), None)));
}

#[test]
fn a_live_change_of_the_mode_reaches_members_that_are_there_and_the_file_takes_it_back() {
    let world = World::start(FILE);
    let (member, old) = (Member::hello(&world.socket("kept")).join(GPU), world.socket("kept"));
    assert_eq!(member.allowed().mode, Mode::Enforce);
    let done: ChangeResult =
        serde_json::from_str(&says(&world, &["set", "kept", "--mode", "observe", "--strict", "false", "--json"]))
            .unwrap();
    assert_eq!(
        (done.mode.as_str(), done.strict, done.changed.as_slice()),
        ("observe", false, &["mode".to_owned(), "strict".to_owned()][..])
    );
    assert_eq!((member.allowed().mode, member.allowed().memory), (Mode::Observe, Some(Bytes(2 << 30))));
    assert_eq!((terms(&world, "kept").mode, Member::hello(&old).welcome.strict), (Mode::Observe, false));
    let status: Value = serde_json::from_str(&says(&world, &["status", "--json"])).unwrap();
    assert_eq!((&status["tenants"][1]["mode"], &status["tenants"][1]["strict"]), (&"observe".into(), &false.into()));
    assert!(says(&world, &["explain", "kept"]).contains("only observed"), "{}", says(&world, &["explain", "kept"]));
    assert!(
        says(&world, &["status"])
            .contains("kept: changed live on device GPU-00000000-0000-0000-0000-000000000001: mode, strict; until")
    );
    assert!(says(&world, &["set", "kept", "--mode", "observe"]).contains("it was so already"));
    world.reload(FILE);
    eventually("the file's mode holds", || member.allowed().mode == Mode::Enforce);
}

#[test]
fn a_device_that_only_observed_tenants_use_is_not_given_out_in_leases() {
    let arbitrated = |world: &World| {
        drop(Member::hello(&world.socket("seen")).join(GPU));
        world.status().devices.iter().any(|device| device.uuid.as_deref() == Some(GPU) && device.arbitrated)
    };
    let world = World::start("[[tenant]]\nname = \"seen\"\nmode = \"observe\"\n");
    assert!(!arbitrated(&world));
    says(&world, &["set", "seen", "--mode", "enforce"]);
    assert!(arbitrated(&world));
}

/// All devices are shared by leases by default. With arbitrate = false, only devices with an sm_limit are.
#[test]
fn a_device_is_given_out_in_leases_unless_the_file_says_no_and_nobody_has_a_ceiling() {
    let arbitrated = |lines: &str| {
        let world = World::start(&format!("[[tenant]]\nname = \"a\"\n{lines}\n"));
        drop(Member::hello(&world.socket("a")).join(GPU));
        world.status().devices.iter().any(|device| device.uuid.as_deref() == Some(GPU) && device.arbitrated)
    };
    for (lines, leases) in [("", true), ("weight = 2", false), ("sm_limit = 50", true)] {
        assert!(arbitrated(lines), "{lines}");
        assert_eq!(arbitrated(&format!("{lines}\n[time]\narbitrate = false")), leases && !lines.is_empty(), "{lines}");
    }
}

#[test]
fn check_and_options_say_and_take_them_and_refuse_what_is_none() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("vgpud.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = vgpud().arg("--check").arg(&file).args(["--driver", "none", "--json"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let plan = check(FILE);
    assert_eq!((&plan["tenants"][0]["mode"], &plan["tenants"][1]["strict"]), (&"observe".into(), &true.into()));
    for (line, what) in [
        ("mode = \"off\"", "is not for a tenant of the daemon"),
        ("mode = \"watch\"", "is not known"),
        ("mode = true", "is a boolean"),
        ("strict = \"true\"", "is a string"),
        ("strict = 1", "is a number"),
    ] {
        let problem = &check(&format!("[[tenant]]\nname = \"a\"\n{line}\n"))["problems"][0];
        assert_eq!(problem["what"], what, "{line}: {problem}");
    }
    for (words, what) in [("a:mode=off", "not for a tenant"), ("a:strict=1", "is not a boolean")] {
        let output = vgpud().args(["--tenant", words]).output().unwrap();
        assert!(output.status.code() == Some(2) && texts(&output).1.contains(what), "{}", texts(&output).1);
    }
    let socket = dir.path().join("a/s");
    let tenant = format!("b:mode=observe,strict=true,socket={}", socket.display());
    let _daemon = Guard(vgpud().args(["--log", "off", "--tenant", &tenant]).spawn().unwrap());
    eventually("it serves", || Peer::try_hello(&socket).is_some());
    let welcome = Member::hello(&socket).welcome;
    assert_eq!((welcome.mode, welcome.strict), (Mode::Observe, true));
}
