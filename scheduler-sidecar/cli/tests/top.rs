//! Tests of `vgpu top` without a terminal: the effect of keys on the state, and the drawn view at every size.
//!
//! The expected pictures are in `tests/top/`, and one of them in docs/top.md; `UPDATE=1` rewrites them.

#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use vgpu_cli::top::column::{RowOrder, TopColumn};
use vgpu_cli::top::keys::KEY_BINDINGS;
use vgpu_cli::top::plain;
use vgpu_cli::top::row::StatusLook;
use vgpu_cli::top::state::{KeyMode, TopEffect, TopInput, TopOptions, TopState};
use vgpu_cli::top::view::draw;
use vgpu_cli::top::view::theme::ColourTheme;
use vgpu_control::service::ServiceSums;
use vgpu_control::{
    ChangeResult, ControlCommand, DaemonStatus, DeviceExplanation, DeviceStatus, MemberDevice, MemberStatus,
    TenantStatus, TermsStatus, TimeStatus,
};

const FINE: ColourTheme = ColourTheme { colours: true, ascii: false };
const PLAIN: ColourTheme = ColourTheme { colours: false, ascii: true };
const GIB: u64 = 1 << 30;
const UUID: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// Creates a tenant on a device: percent wanted and received, GiB used and allowed.
fn tenant(name: &str, device: &str, (wanted, got): (f64, f64), (used, limit): (u64, u64), state: &str) -> TenantStatus {
    let time = TimeStatus {
        members: 1,
        waiting: usize::from(state == "waiting"),
        state: state.into(),
        gpu_seconds: Some(got * 2.0),
        waited_seconds: (wanted - got) / 10.0,
        over_seconds: 3.0,
        wanted: Some(wanted),
        got: Some(got),
        unmeasured: false,
        service: ServiceSums::default(),
    };
    let member = MemberStatus {
        pid: Some(4000 + u32::try_from(name.len()).unwrap()),
        pid_inside: 7,
        uid: 1000,
        version: "0.1.0".into(),
        connected_seconds: 200,
        devices: vec![MemberDevice {
            device: UUID.into(),
            lease: "run".into(),
            waits: state == "waiting",
            gpu_seconds: Some(got * 2.0),
            memory_used: Some(used * GIB),
            ..MemberDevice::default()
        }],
        ..MemberStatus::default()
    };
    TenantStatus {
        name: name.into(),
        bearer: Default::default(),
        labels_live: Vec::new(),
        socket: format!("/run/vgpu/tenants/{name}/vgpud.sock").into(),
        memory_limit: Some(limit * GIB),
        sm_limit: Some(60.0),
        refused: 0,
        removed: false,
        added: None,
        unusable: None,
        paused: false,
        suspended: false,
        gang: None,
        mode: "enforce".into(),
        strict: false,
        idle: None,
        deadline: None,
        devices: vec![TermsStatus {
            device: device.into(),
            memory_limit: Some(limit * GIB),
            sm_limit: Some(60.0),
            sm_request: Some(12.5),
            weight: 100,
            class: "normal".into(),
            time: Some(time),
            memory_used: Some(used * GIB),
            ..TermsStatus::default()
        }],
        members: vec![member],
    }
}

fn status() -> DaemonStatus {
    let device = DeviceStatus {
        name: "0".into(),
        uuid: Some(UUID.into()),
        model: Some("NVIDIA A100".into()),
        memory: Some(80 * GIB),
        overcommit: 1.0,
        arbitrated: true,
        holder: Some("train".into()),
        lost_since: None,
    };
    let mut idle = tenant("notebook", "0", (0.0, 0.0), (1, 8), "idle");
    idle.devices[0].sm_limit = None;
    idle.devices[0].sm_request = None;
    DaemonStatus {
        cordons: Vec::new(),
        queued_additions: 0,
        actions: Vec::new(),
        version: "0.1.0".into(),
        pid: 811,
        uptime_seconds: 4000,
        configuration: None,
        record: None,
        audit: None,
        devices: vec![device],
        tenants: vec![
            tenant("chat", "0", (40.0, 28.4), (19, 20), "waiting"),
            tenant("train", "0", (99.0, 58.3), (30, 40), "running"),
            idle,
        ],
        groups: Vec::new(),
        faults: Vec::new(),
        findings: Vec::new(),
    }
}

fn look(status: DaemonStatus, second: u64) -> StatusLook {
    StatusLook { status, at: Duration::from_secs(second) }
}

fn wishes() -> TopOptions {
    TopOptions {
        sort: RowOrder { column: TopColumn::Got, reversed: false },
        filter: String::new(),
        device: None,
        read_only: false,
        interval: Duration::from_secs(1),
    }
}

/// Creates a view after 30 refreshes.
fn top() -> TopState {
    let mut top = TopState::new(look(status(), 0), wishes());
    for second in 1..=30 {
        let mut now = status();
        let got = [12.0, 30.0, 45.0, 60.0, 58.0][usize::try_from(second).unwrap() % 5];
        for tenant in &mut now.tenants {
            let time = tenant.devices[0].time.as_mut().unwrap();
            // The last value is that of `status`.
            time.got = if second == 30 || time.got == Some(0.0) { time.got } else { Some(got) };
            time.waited_seconds +=
                f64::from(u32::try_from(second).unwrap()) * (time.wanted.unwrap() - 20.0).max(0.0) / 100.0;
        }
        top.update(TopInput::Look(Box::new(look(now, second))));
    }
    top
}

fn press(top: &mut TopState, keys: &[KeyCode]) -> Vec<TopEffect> {
    keys.iter().flat_map(|code| top.update(TopInput::Key(KeyEvent::new(*code, KeyModifiers::NONE)))).collect()
}

fn typed(top: &mut TopState, text: &str) -> Vec<TopEffect> {
    text.chars().flat_map(|letter| press(top, &[KeyCode::Char(letter)])).collect()
}

fn drawn(top: &TopState, theme: &ColourTheme, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(top, theme, frame)).unwrap();
    terminal
}

/// Returns the drawn view as text.
fn picture(top: &TopState, theme: &ColourTheme, size: (u16, u16)) -> String {
    let terminal = drawn(top, theme, size);
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(size.0).max(1));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n").collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Compares with the picture in the repository, or rewrites it if asked.
fn is_as_kept(name: &str, picture: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, picture).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == picture, "{name} is another picture; UPDATE=1 rewrites it:\n{picture}\ninstead of\n{kept}");
}

fn order(top: &TopState) -> Vec<&str> {
    top.shown_rows().into_iter().map(|row| row.tenant.as_str()).collect()
}

#[test]
fn the_picture_is_the_one_that_is_kept_at_each_size() {
    let mut top = top();
    for (name, size) in [("80x24.txt", (80, 24)), ("130x20.txt", (130, 20)), ("40x8.txt", (40, 8))] {
        top.update(TopInput::Size(size.0, size.1));
        is_as_kept(name, &picture(&top, &FINE, size));
    }
    is_as_kept("ascii.txt", &picture(&top, &PLAIN, (80, 12)));
    press(&mut top, &[KeyCode::Char('?')]);
    is_as_kept("help.txt", &picture(&top, &FINE, (80, 24)));
}

#[test]
fn the_details_of_a_tenant_have_both_numbers_of_its_processes_and_why_it_waits() {
    let mut top = top();
    press(&mut top, &[KeyCode::Down]);
    let asked = [TopEffect::Explain("chat".into()), TopEffect::Places("chat".into()), TopEffect::Hour];
    assert_eq!(press(&mut top, &[KeyCode::Enter]), asked);
    let sentence = "It waits behind train of class normal, the same as its own; next is the tenant furthest behind \
         its floor, then the one with the least time by weight: 2.1 ms are left of the lease.";
    let all =
        vec![DeviceExplanation { device: UUID.into(), state: "waiting".into(), sentences: vec![sentence.into()] }];
    top.update(TopInput::Explained("chat".into(), Ok(all)));
    let minutes = (0..60).map(|minute| f64::from(minute) * 100.0 / 59.0).collect();
    top.update(TopInput::Places(BTreeMap::from([(4004, "chat-server".to_owned())])));
    top.update(TopInput::Hour(Ok(BTreeMap::from([(("chat".to_owned(), UUID.to_owned()), minutes)]))));
    let picture = picture(&top, &FINE, (100, 30));
    is_as_kept("details.txt", &picture);
    assert!(picture.contains("4004  7       chat-server  1000"), "{picture}");
    // The details are queried again at every refresh, and closed with Esc.
    assert_eq!(top.update(TopInput::Look(Box::new(look(status(), 31)))), asked);
    assert_eq!(press(&mut top, &[KeyCode::Esc]), []);
    assert_eq!(top.mode, KeyMode::Table);
}

#[test]
fn it_is_drawn_at_every_size_in_every_mode_and_what_is_asked_is_always_seen() {
    let keys: [&[KeyCode]; 6] = [
        &[],
        &[KeyCode::Char('?')],
        &[KeyCode::Enter],
        &[KeyCode::Char('p')],
        &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Enter],
        &[KeyCode::Char('/'), KeyCode::Char('x')],
    ];
    for keys in keys {
        let mut top = top();
        press(&mut top, keys);
        top.update(TopInput::Lost("nobody answers".into()));
        for size in (1..=12).flat_map(|columns| (1..=12).map(move |rows| (columns, rows))).chain([(300, 100), (1, 100)])
        {
            top.update(TopInput::Size(size.0, size.1));
            for theme in [FINE, PLAIN] {
                picture(&top, &theme, size);
            }
        }
        let small = picture(&top, &FINE, (30, 3));
        let last = small.lines().last().unwrap();
        match keys.first() {
            Some(KeyCode::Char('p')) => assert!(last.ends_with("y/n"), "{small}"),
            Some(KeyCode::Char('s')) => assert_eq!(last, "set train: s"),
            Some(KeyCode::Char('/')) => assert_eq!(last, "/x"),
            _ => {}
        }
    }
}

#[test]
fn of_many_devices_and_tenants_the_chosen_one_is_always_seen() {
    let mut many = status();
    let device = many.devices[0].clone();
    many.devices = (0..16).map(|number: u32| DeviceStatus { name: number.to_string(), ..device.clone() }).collect();
    many.tenants = (0..500)
        .map(|number: u32| {
            tenant(&format!("tenant-{number:03}"), &(number % 16).to_string(), (1.0, 1.0), (1, 2), "idle")
        })
        .collect();
    let mut top = TopState::new(look(many, 0), wishes());
    for rows in [24, 12, 8, 6, 5] {
        top.update(TopInput::Size(80, rows));
        press(&mut top, &[KeyCode::End]);
        assert!(picture(&top, &FINE, (80, rows)).contains("tenant-499"), "{rows}");
        press(&mut top, &[KeyCode::PageUp]);
        let chosen = top.selected.clone().unwrap().0;
        assert!(picture(&top, &FINE, (80, rows)).contains(&chosen), "{rows}: {chosen}");
        press(&mut top, &[KeyCode::Home, KeyCode::Down]);
        assert!(picture(&top, &FINE, (80, rows)).contains("tenant-001"), "{rows}");
    }
    let picture = picture(&top, &FINE, (80, 24));
    assert!(picture.contains("and 9 more; d shows them one by one"), "{picture}");
    assert!(picture.contains("more\n") && picture.contains("DEVICE"), "{picture}");
    // Key `d` shows one device after the other, then all again.
    for number in 0..16 {
        press(&mut top, &[KeyCode::Char('d')]);
        assert_eq!(top.device, Some(number.to_string()));
        assert!(top.shown_rows().iter().all(|row| row.device == number.to_string()));
    }
    press(&mut top, &[KeyCode::Tab]);
    assert_eq!((top.device.as_ref(), top.shown_rows().len()), (None, 500));
}

/// Two MIG instances of one board, a tenant on each, and one on both.
fn on_instances() -> TopState {
    let instance = |end: &str| format!("MIG-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c0{end}");
    let [large, small] = [instance("01"), instance("02")];
    let mut now = status();
    let device = now.devices.remove(0);
    now.devices = [(&large, "3g.40gb"), (&small, "1g.10gb")]
        .map(|(name, profile)| DeviceStatus {
            name: name.clone(),
            uuid: Some(name.clone()),
            model: Some(format!("NVIDIA A100-SXM4-80GB MIG {profile}")),
            ..device.clone()
        })
        .into();
    let on = |name: &str, device: &str| {
        let mut tenant = tenant(name, device, (40.0, 20.0), (1, 2), "running");
        // The daemon reports CUDA's name of an instance that a member joined before the driver answered.
        tenant.members[0].devices[0].device = device.replace("MIG-", "GPU-");
        tenant
    };
    let (mut both, other) = (on("both", &large), on("both", &small));
    both.devices.extend(other.devices);
    both.members.extend(other.members);
    both.members.push(both.members[0].clone());
    now.tenants = vec![on("chat", &large), on("train", &small), both];
    TopState::new(look(now, 0), wishes())
}

#[test]
fn each_instance_has_its_own_name_profile_and_processes() {
    let mut top = on_instances();
    let text = picture(&top, &FINE, (110, 24));
    for (at, label) in
        [(1, "device MIG-5ae~c001 3g.40gb  busy  40.0%"), (2, "device MIG-5ae~c002 1g.10gb  busy  40.0%")]
    {
        assert!(text.lines().nth(at).unwrap().starts_with(label), "{text}");
    }
    for (name, device) in [("chat", "c001"), ("train", "c002"), ("both", "c001"), ("both", "c002")] {
        let is_row = |line: &&str| line.starts_with(name) && line.contains(&format!(" MIG-5ae~{device} "));
        assert_eq!(text.lines().filter(is_row).count(), 1, "{name} on {device}: {text}");
    }
    let plain = plain::plain_text(&top);
    let counted: Vec<(String, String)> =
        top.rows_of("both").map(|row| (row.device.clone(), TopColumn::Members.cell_text(row))).collect();
    let name = |end: &str| format!("MIG-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c0{end}");
    assert_eq!(counted, [(name("01"), "2".to_owned()), (name("02"), "1".to_owned())], "{plain}");
    for (end, profile) in [("01", "3g.40gb"), ("02", "1g.10gb")] {
        let line = plain.lines().find(|line| line.starts_with(&format!("device {}: ", name(end)))).unwrap();
        assert!(line.ends_with(&format!("NVIDIA A100-SXM4-80GB MIG {profile}")), "{plain}");
    }
    // Key `d` shows one instance after the other.
    press(&mut top, &[KeyCode::Char('d'), KeyCode::Char('d')]);
    assert_eq!((top.device.as_ref(), order(&top)), (Some(&name("02")), vec!["both", "train"]));
}

#[test]
fn without_colours_nothing_has_one_and_without_unicode_all_is_ascii() {
    let mut top = top();
    for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Esc, KeyCode::Char('?')]] {
        press(&mut top, keys);
        let terminal = drawn(&top, &PLAIN, (120, 30));
        for cell in terminal.backend().buffer().content() {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
            assert!(cell.symbol().is_ascii(), "{}", cell.symbol());
        }
    }
    let terminal = drawn(&top, &FINE, (120, 30));
    press(&mut top, &[KeyCode::Esc]);
    assert!(drawn(&top, &FINE, (120, 30)).backend().buffer().content().iter().any(|cell| cell.fg == Color::Green));
    drop(terminal);
}

#[test]
fn rows_are_ordered_by_the_chosen_column_and_the_chosen_tenant_stays_chosen() {
    let mut top = top();
    assert_eq!(order(&top), ["train", "chat", "notebook"]);
    press(&mut top, &[KeyCode::Down]);
    press(&mut top, &[KeyCode::Char('r')]);
    assert_eq!(order(&top), ["notebook", "chat", "train"]);
    press(&mut top, &[KeyCode::Right, KeyCode::Char('r')]);
    assert_eq!((top.sort.column, order(&top)), (TopColumn::Memory, vec!["train", "chat", "notebook"]));
    press(&mut top, &[KeyCode::Char('<'), KeyCode::Left]);
    assert_eq!(top.sort.column, TopColumn::Wanted);
    assert_eq!(top.chosen_row().unwrap().tenant, "chat");
    // The selection follows the row to another position in the next answer, and moves when the row is gone.
    let mut now = status();
    now.tenants.rotate_left(1);
    top.update(TopInput::Look(Box::new(look(now.clone(), 40))));
    assert_eq!(top.chosen_row().unwrap().tenant, "chat");
    now.tenants.retain(|tenant| tenant.name != "chat");
    top.update(TopInput::Look(Box::new(look(now, 41))));
    assert_eq!(top.chosen_row().unwrap().tenant, "train");
}

#[test]
fn a_filter_holds_while_it_is_typed_and_esc_takes_it_back() {
    let mut top = top();
    typed(&mut top, "/TRA");
    assert_eq!((order(&top), top.chosen_row().unwrap().tenant.as_str()), (vec!["train"], "train"));
    press(&mut top, &[KeyCode::Esc]);
    assert_eq!(order(&top).len(), 3);
    typed(&mut top, "/c");
    press(&mut top, &[KeyCode::Enter]);
    assert_eq!((order(&top), &top.mode), (vec!["chat"], &KeyMode::Table));
    typed(&mut top, "/zz");
    assert!(picture(&top, &FINE, (80, 24)).contains("no tenant has \"czz\" in its name"));
    // In the table, Esc first clears the filter, then quits.
    press(&mut top, &[KeyCode::Enter]);
    assert_eq!(press(&mut top, &[KeyCode::Esc]), []);
    assert_eq!(order(&top).len(), 3);
    assert_eq!(press(&mut top, &[KeyCode::Esc]), [TopEffect::Quit]);
}

#[test]
fn pausing_asks_first_and_resuming_does_not() {
    let mut top = top();
    assert_eq!(press(&mut top, &[KeyCode::Char('p')]), []);
    assert!(picture(&top, &FINE, (100, 24)).contains("pause train? its programs wait at their next launch"));
    // Every key other than `y` means no, Enter included.
    assert_eq!(press(&mut top, &[KeyCode::Enter]), []);
    assert_eq!(top.message.as_ref().unwrap().words, "nothing was changed");
    let effects = typed(&mut top, "py");
    assert_eq!(
        effects,
        [TopEffect::Change(ControlCommand::Pause { tenant: "train".into(), lasting: Default::default() })]
    );
    let done = ChangeResult {
        tenant: "train".into(),
        changed: vec!["paused".into()],
        paused: true,
        ..ChangeResult::default()
    };
    top.update(TopInput::Done(Ok(Box::new(done))));
    assert_eq!(top.message.as_ref().unwrap().words, "train: paused");
    let mut now = status();
    now.tenants[1].paused = true;
    top.update(TopInput::Look(Box::new(look(now, 40))));
    assert_eq!(top.chosen_row().unwrap().state, "paused");
    assert_eq!(typed(&mut top, "p"), [TopEffect::Change(ControlCommand::Resume { tenant: "train".into() })]);
}

#[test]
fn what_is_set_is_what_vgpu_set_would_ask_and_what_lifts_limits_is_asked_about() {
    let mut top = top();
    typed(&mut top, "ssm=40 memory=60GiB");
    let TopEffect::Change(ControlCommand::Set { tenant, device, change, .. }) =
        press(&mut top, &[KeyCode::Enter]).remove(0)
    else {
        panic!("{:?}", top.message)
    };
    assert_eq!(
        (tenant.as_str(), device, change.to_command_words(None).as_str()),
        ("train", None, "memory_limit=60GiB sm_limit=40")
    );
    assert_eq!(top.mode, KeyMode::Table);
    // Input that is rejected stays in the line, so that it can be corrected.
    typed(&mut top, "ssm=400");
    assert_eq!(press(&mut top, &[KeyCode::Enter]), []);
    let said = picture(&top, &FINE, (100, 24));
    assert!(said.contains("sm \"400\" is more than 100%; accepted: ") && said.contains("set train: sm=400"), "{said}");
    assert_eq!(press(&mut top, &[KeyCode::Backspace, KeyCode::Enter]).len(), 1);
    for (text, why) in [("mode=observe", "nothing is refused"), ("memory=1GiB", "less than it holds")] {
        typed(&mut top, &format!("s{text}"));
        assert_eq!(press(&mut top, &[KeyCode::Enter]), [], "{text}");
        assert!(picture(&top, &FINE, (120, 24)).contains(why), "{text}");
        assert_eq!(press(&mut top, &[KeyCode::Char('y')]).len(), 1, "{text}");
    }
    typed(&mut top, "ssm=40");
    assert_eq!(press(&mut top, &[KeyCode::Esc]), []);
    // For a tenant with several devices, the change is for the selected row's device.
    let mut two = status();
    let mut here = two.tenants[1].devices[0].clone();
    here.device = "1".into();
    two.tenants[1].devices.push(here);
    top.update(TopInput::Look(Box::new(look(two, 40))));
    typed(&mut top, "ssm=40");
    let effects = press(&mut top, &[KeyCode::Enter]);
    assert!(
        matches!(&effects[..], [TopEffect::Change(ControlCommand::Set { device: Some(device), .. })] if device == "0"),
        "{effects:?}"
    );
    top.update(TopInput::Done(Err("brings the requests on device 0 to 110 %".into())));
    assert!(picture(&top, &FINE, (80, 24)).contains("brings the requests on device 0 to 110 %"));
    // Long messages are wrapped, as far as there is space.
    let long = ["memory_limit is more than the device has;"; 9].join(" ") + " the end";
    top.update(TopInput::Done(Err(long)));
    let said = picture(&top, &FINE, (80, 24));
    assert!(said.ends_with("the end\n") && said.lines().count() == 24 && said.contains("train"), "{said}");
    assert!(picture(&top, &FINE, (80, 8)).ends_with("…\n"));
}

#[test]
fn where_nothing_may_be_changed_keys_say_why() {
    let mut top = TopState::new(look(status(), 0), TopOptions { read_only: true, ..wishes() });
    for key in ['p', 's'] {
        assert_eq!(press(&mut top, &[KeyCode::Char(key)]), []);
        let said = &top.message.as_ref().unwrap().words;
        assert!(said.starts_with("nothing can be changed: ") && said.contains("--read-only"), "{said}");
        assert_eq!(top.mode, KeyMode::Table);
    }
    // The next answer does not enable changes.
    top.update(TopInput::Look(Box::new(look(status(), 1))));
    press(&mut top, &[KeyCode::Char('s')]);
    assert!(!matches!(top.mode, KeyMode::Set { .. }));
}

#[test]
fn a_daemon_that_is_gone_is_said_until_it_is_back_and_counts_anew() {
    let mut top = top();
    let wait = top.chosen_row().unwrap().wait;
    assert!(wait.is_some());
    top.update(TopInput::Lost("no daemon answers at /run/vgpu/admin.sock".into()));
    let lost = picture(&top, &FINE, (80, 24));
    assert!(lost.contains("outdated, asking again: no daemon answers") && lost.contains("train"), "{lost}");
    let mut now = status();
    now.pid = 812;
    top.update(TopInput::Look(Box::new(look(now, 60))));
    assert_eq!((top.chosen_row().unwrap().wait, top.lost.as_ref()), (None, None));
    assert!(!picture(&top, &FINE, (80, 24)).contains("outdated"));
}

#[test]
fn the_end_is_reached_from_everywhere() {
    let control_c = || TopInput::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    for keys in [&[][..], &[KeyCode::Char('?')], &[KeyCode::Enter], &[KeyCode::Char('p')], &[KeyCode::Char('/')]] {
        let mut top = top();
        press(&mut top, keys);
        assert_eq!(top.update(control_c()), [TopEffect::Quit], "{keys:?}");
    }
    assert_eq!(typed(&mut top(), "q"), [TopEffect::Quit]);
    assert_eq!(top().update(TopInput::Gone), [TopEffect::Quit]);
}

#[test]
fn whatever_is_pressed_it_is_drawn_and_nothing_is_changed_without_an_enter_or_a_yes() {
    let mut seed = 7_u32;
    let mut any = |of: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(seed >> 8).unwrap() % of
    };
    let keys = [
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Tab,
        KeyCode::Backspace,
        KeyCode::Delete,
        KeyCode::F(1),
        KeyCode::F(12),
        KeyCode::Char('/'),
        KeyCode::Char('p'),
        KeyCode::Char('s'),
        KeyCode::Char('d'),
        KeyCode::Char('r'),
        KeyCode::Char('?'),
        KeyCode::Char('='),
        KeyCode::Char('4'),
        KeyCode::Char('m'),
        KeyCode::Char('ü'),
        KeyCode::Char('y'),
        KeyCode::Null,
    ];
    for _ in 0..40 {
        let mut top = top();
        for step in 0..60 {
            let code = keys[any(keys.len())];
            let before = top.mode.clone();
            let effects = press(&mut top, &[code]);
            let sure = matches!(&before, KeyMode::Sure { .. }) && code == KeyCode::Char('y');
            let entered = matches!(&before, KeyMode::Set { .. }) && code == KeyCode::Enter;
            let changes = effects.iter().any(|effect| matches!(effect, TopEffect::Change(_)));
            assert!(!changes || sure || entered, "{before:?} {code:?} {effects:?}");
            if step % 7 == 0 {
                let mut now = status();
                now.tenants.truncate(any(4));
                top.update(TopInput::Look(Box::new(look(now, 100 + step))));
            }
            let size = (u16::try_from(1 + any(120)).unwrap(), u16::try_from(1 + any(40)).unwrap());
            top.update(TopInput::Size(size.0, size.1));
            drawn(&top, &FINE, size);
        }
    }
}

#[test]
fn as_text_every_column_is_there() {
    let text = plain::plain_text(&top());
    assert!(
        text.starts_with(
            "vgpud 0.1.0, process 811, up 66 min\ndevice 0: busy 86.7 %, memory 50 GiB of 80 GiB, held by train, NVIDIA A100\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("chat      0       normal  100     12.5 %  60 %       40.0 %  28.4 %  19 GiB  20 GiB  7.160"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn the_page_in_the_documentation_shows_what_the_program_shows() {
    let mut keys = String::from("| key | |\n|---|---|\n");
    for binding in &KEY_BINDINGS {
        keys.push_str(&format!("| `{}` | {} |\n", binding.shown.replace('|', "\\|"), binding.what));
    }
    let path = root().join("docs/top.md");
    let page = fs::read_to_string(&path).unwrap();
    let put = |page: &str, name: &str, text: &str| {
        let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end: {name} -->\n"));
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("the mark of {name}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("the end of {name}"));
        format!("{before}{begin}{text}{end}{after}")
    };
    let shown = format!("```text\n{}```\n", picture(&top(), &FINE, (100, 12)));
    let fresh = put(&put(&page, "keys", &keys), "picture", &shown);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &fresh).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == fresh, "docs/top.md is another; UPDATE=1 rewrites it:\n{fresh}");
}
