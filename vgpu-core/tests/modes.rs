//! Modes, their precedence, and floors on device time: the result of each environment.

use vgpu_core::limits::{Mode, RawLimits};
use vgpu_core::units::bytes::{Bytes, GIB};
use vgpu_core::units::share::Share;

fn read(vars: &[(&str, &str)]) -> Result<RawLimits, String> {
    RawLimits::from_vars(vars.iter().copied()).map_err(|error| error.to_string())
}

fn mode(vars: &[(&str, &str)]) -> (Mode, Option<&'static str>) {
    let limits = read(vars).unwrap();
    (limits.asked_mode(), limits.mode_from().map(|(name, _)| name))
}

#[test]
fn the_mode_is_enforce_unless_a_variable_says_otherwise_and_our_own_name_wins() {
    let (ours, hamis) = (Some("VGPU_MODE"), Some("CUDA_DISABLE_CONTROL"));
    assert_eq!(mode(&[]), (Mode::Enforce, None));
    assert_eq!(mode(&[("VGPU_MODE", "enforce")]), (Mode::Enforce, ours));
    assert_eq!(mode(&[("VGPU_MODE", "observe")]), (Mode::Observe, ours));
    assert_eq!(mode(&[("VGPU_MODE", "off")]), (Mode::Off, ours));
    for yes in ["true", "True", "TRUE", "t", "T", "1"] {
        assert_eq!(mode(&[("CUDA_DISABLE_CONTROL", yes)]), (Mode::Off, hamis), "{yes}");
    }
    for no in ["false", "False", "FALSE", "f", "F", "0"] {
        assert_eq!(mode(&[("CUDA_DISABLE_CONTROL", no)]), (Mode::Enforce, None), "{no}");
    }
    assert_eq!(mode(&[("CUDA_DISABLE_CONTROL", "true"), ("VGPU_MODE", "enforce")]), (Mode::Enforce, ours));
}

#[test]
fn observing_is_asking_for_something_and_off_is_asking_for_nothing() {
    let asked = |vars: &[(&str, &str)]| read(vars).unwrap().asked_for_anything();
    assert!(!asked(&[]));
    assert!(asked(&[("VGPU_MODE", "observe")]), "use is measured without any limit");
    assert!(!asked(&[("VGPU_MODE", "off"), ("VGPU_MEMORY_LIMIT", "1G")]));
    assert!(!asked(&[("CUDA_DISABLE_CONTROL", "true"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")]));
    assert!(read(&[("VGPU_MODE", "off"), ("VGPU_MEMORY_LIMIT", "1G")]).unwrap().limits_anything());
}

#[test]
fn a_value_that_is_not_understood_is_an_error_while_observing_and_nothing_when_off() {
    for (name, value) in [("VGPU_MEMORY_LIMIT", "abc"), ("VGPU_STRICT", "yes"), ("CUDA_TASK_PRIORITY", "high")] {
        let line = read(&[("VGPU_MODE", "observe"), (name, value)]).unwrap_err();
        assert!(line.starts_with(&format!("{name}=\"{value}\" ")), "{line}");
        assert!(read(&[("VGPU_MODE", "off"), (name, value)]).is_ok(), "{name}");
    }
    assert!(read(&[("VGPU_MODE", "off"), ("VGPU_SM_REQUEST", "50"), ("VGPU_SM_LIMIT", "30")]).is_ok());
}

#[test]
fn a_mode_that_is_not_understood_is_an_error_whatever_else_is_set() {
    let line = r#"VGPU_MODE="watch" is not understood; accepted: enforce, observe, off"#;
    for beside in [("VGPU_LOG", "off"), ("CUDA_DISABLE_CONTROL", "true"), ("VGPU_SOCKET", "/run/a.sock")] {
        assert_eq!(read(&[("VGPU_MODE", "watch"), beside]).err().as_deref(), Some(line), "{beside:?}");
    }
    assert!(read(&[("VGPU_MODE", "Observe")]).is_err() && read(&[("VGPU_MODE", "")]).is_err());
    let line = read(&[("CUDA_DISABLE_CONTROL", "maybe")]).unwrap_err();
    assert!(line.starts_with(r#"CUDA_DISABLE_CONTROL="maybe" is not understood; accepted: true, True"#), "{line}");
}

/// Invariant 5: with a daemon a variable can only tighten.
#[test]
fn beside_a_daemon_no_variable_loosens_the_mode() {
    for (name, value) in [("VGPU_MODE", "observe"), ("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "true")] {
        let limits = read(&[("VGPU_SOCKET", "/run/a.sock"), (name, value)]).unwrap();
        assert_eq!((limits.asked_mode(), limits.unheard_mode()), (Mode::Enforce, Some((name, value))));
        assert_eq!(read(&[(name, value)]).unwrap().unheard_mode(), None, "nobody is there who says otherwise");
    }
    for (name, value) in [("VGPU_MODE", "enforce"), ("CUDA_DISABLE_CONTROL", "false")] {
        assert_eq!(read(&[("VGPU_SOCKET", "/run/a.sock"), (name, value)]).unwrap().unheard_mode(), None);
    }
    let limits = read(&[("VGPU_SOCKET", "/run/a.sock"), ("GPU_CORE_UTILIZATION_POLICY", "disable")]).unwrap();
    let limits = limits.with_daemon(None, Share::from_percent(30)).for_device(0, Bytes(GIB)).unwrap();
    assert_eq!(limits.sm, Share::from_percent(30), "the daemon's ceiling stands");
}

fn sm(vars: &[(&str, &str)]) -> Option<u16> {
    read(vars).unwrap().for_device(0, Bytes(GIB)).unwrap().sm.map(Share::as_permille)
}

#[test]
fn hamis_policy_switches_its_own_ceiling_off_and_no_other() {
    let hami = ("CUDA_DEVICE_SM_LIMIT", "30");
    for word in ["default", "DEFAULT", "force", "FORCE"] {
        assert_eq!(sm(&[hami, ("GPU_CORE_UTILIZATION_POLICY", word)]), Some(300), "{word}");
    }
    for word in ["disable", "DISABLE"] {
        let policy = ("GPU_CORE_UTILIZATION_POLICY", word);
        assert_eq!(sm(&[hami, policy]), None);
        assert_eq!(sm(&[("CUDA_DEVICE_SM_LIMIT_0", "30"), policy]), None);
        assert!(!read(&[hami, policy]).unwrap().asked_for_anything());
        assert_eq!(sm(&[hami, policy, ("VGPU_SM_LIMIT", "40")]), Some(400), "the family's own ceiling only");
    }
    let line = read(&[hami, ("GPU_CORE_UTILIZATION_POLICY", "Force")]).unwrap_err();
    assert!(line.ends_with("accepted: default, DEFAULT, force, FORCE, disable, DISABLE"), "{line}");
}

#[test]
fn hamis_priority_is_a_number_and_asks_for_nothing() {
    // HAMi's webhook passes on any number that the pod asks for.
    for number in ["0", "1", "2", "10", "007", "18446744073709551616"] {
        assert!(!read(&[("CUDA_TASK_PRIORITY", number)]).unwrap().asked_for_anything(), "{number}");
    }
    let line = read(&[("CUDA_TASK_PRIORITY", "-1")]).unwrap_err();
    assert_eq!(line, r#"CUDA_TASK_PRIORITY="-1" is not understood; accepted: 0, 1"#);
}

#[test]
fn a_request_holds_within_what_the_daemon_guarantees() {
    let asked = read(&[("VGPU_SM_REQUEST", "30"), ("VGPU_SM_REQUEST_1", "10")]).unwrap();
    let share = |percent| Share::from_percent(percent);
    assert_eq!(asked.check_granted(0, share(30)), Ok(()));
    assert_eq!(asked.check_granted(1, share(10)), Ok(()));
    let line = |ordinal, granted| asked.check_granted(ordinal, granted).unwrap_err().to_string();
    assert!(line(0, share(29)).ends_with("accepted: up to 29 %"), "{}", line(0, share(29)));
    assert!(line(1, None).starts_with("VGPU_SM_REQUEST_1=\"10\" asks for guaranteed time, and"), "{}", line(1, None));
    assert_eq!(read(&[]).unwrap().check_granted(0, None), Ok(()));
}

#[test]
fn a_request_above_the_limit_names_both() {
    for (vars, line) in [
        (
            &[("VGPU_SM_REQUEST", "50"), ("VGPU_SM_LIMIT", "30")][..],
            r#"VGPU_SM_REQUEST="50" is more than VGPU_SM_LIMIT="30" allows"#,
        ),
        (
            &[("VGPU_SM_REQUEST", "50"), ("CUDA_DEVICE_SM_LIMIT", "20")],
            r#"VGPU_SM_REQUEST="50" is more than CUDA_DEVICE_SM_LIMIT="20" allows"#,
        ),
        (
            &[("VGPU_SM_REQUEST", "50"), ("VGPU_SM_LIMIT", "60"), ("VGPU_SM_LIMIT_1", "40")],
            r#"VGPU_SM_REQUEST="50" is more than VGPU_SM_LIMIT_1="40" allows"#,
        ),
        (
            &[("VGPU_SM_REQUEST_1", "50"), ("VGPU_SM_LIMIT", "30")],
            r#"VGPU_SM_REQUEST_1="50" is more than VGPU_SM_LIMIT="30" allows"#,
        ),
    ] {
        let said = read(vars).unwrap_err();
        assert!(said.starts_with(line), "{said}");
        assert!(said.ends_with("; accepted: a request up to the limit of the same device"), "{said}");
    }
    for fine in [
        &[("VGPU_SM_REQUEST", "30"), ("VGPU_SM_LIMIT", "30")][..],
        &[("VGPU_SM_REQUEST_1", "50"), ("VGPU_SM_LIMIT_1", "60"), ("VGPU_SM_LIMIT", "30")],
        &[("VGPU_SM_REQUEST", "50"), ("VGPU_SM_LIMIT", "unlimited")],
        &[("VGPU_SM_REQUEST", "50"), ("CUDA_DEVICE_SM_LIMIT", "20"), ("GPU_CORE_UTILIZATION_POLICY", "disable")],
    ] {
        assert!(read(fine).is_ok(), "{fine:?}");
    }
}

#[test]
fn a_request_that_nobody_guarantees_is_refused_with_what_to_do() {
    let check = |vars: &[(&str, &str)]| read(vars).unwrap().check_requests().map_err(|error| error.to_string());
    assert_eq!(check(&[("VGPU_SM_LIMIT", "30")]), Ok(()));
    let alone = check(&[("VGPU_SM_REQUEST", "30")]).unwrap_err();
    assert!(
        alone.starts_with(r#"VGPU_SM_REQUEST="30" asks for guaranteed time, which only the daemon can give"#),
        "{alone}"
    );
    assert!(alone.contains("accepted: VGPU_SM_LIMIT for a ceiling alone, or a tenant of vgpud"), "{alone}");
    assert_eq!(check(&[("VGPU_SM_REQUEST_2", "12.5"), ("VGPU_SOCKET", "/run/a.sock")]), Ok(()), "the daemon decides");
    let limits = read(&[("VGPU_SM_REQUEST", "30"), ("VGPU_SM_REQUEST_1", "20")]).unwrap();
    assert_eq!(
        (limits.requested_share(0), limits.requested_share(1)),
        (Share::from_percent(30), Share::from_percent(20))
    );
    assert!(limits.asked_for_anything() && limits.has_ordinals());
    assert!(read(&[("VGPU_SM_REQUEST", "unlimited")]).unwrap_err().contains("accepted: a percentage"));
    assert!(read(&[("VGPU_SM_REQUEST_x", "30")]).unwrap_err().contains("VGPU_SM_REQUEST_<i>"));
}
