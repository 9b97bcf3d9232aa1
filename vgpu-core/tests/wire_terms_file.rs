//! The terms file: written terms read back the same, and a file that is not understood gives no terms.

use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::terms_file::{ALL_DEVICES, DeviceTerms, MAX_TERMS_FILE_BYTES, TermsFile};
use vgpu_core::time::gate::loss::OnLoss;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

const WRITTEN: &str = concat!(
    "{\"terms\":1,\"epoch\":7,\"tenant\":\"a\",\"mode\":\"enforce\",\"on_error\":\"open\",\"on_loss\":\"block\",\"strict\":true,",
    "\"users\":2,\"user_namespace\":9,\"devices\":2}\n",
    "{\"uid\":0,\"last\":0}\n",
    "{\"uid\":1000,\"last\":2000}\n",
    "{\"device\":\"GPU-1\",\"memory_limit\":1073741824,\"sm_limit\":30,\"sm_request\":12.5}\n",
    "{\"device\":\"*\",\"memory_limit\":null,\"sm_limit\":null,\"sm_request\":null}\n"
);

fn terms() -> TermsFile {
    let one = DeviceTerms {
        device: "GPU-1".into(),
        memory_limit: Some(Bytes(1 << 30)),
        sm_limit: Share::from_percent(30),
        sm_request: Share::from_permille(125),
    };
    let rest = DeviceTerms { device: ALL_DEVICES.into(), memory_limit: None, sm_limit: None, sm_request: None };
    TermsFile {
        epoch: 7,
        tenant: "a".into(),
        mode: Mode::Enforce,
        open_on_error: true,
        on_loss: OnLoss::Block,
        strict: true,
        users: Some(vec![0..=0, 1000..=2000]),
        user_namespace: 9,
        devices: vec![one, rest],
    }
}

#[test]
fn what_is_written_is_read_back() {
    assert_eq!(terms().encode().unwrap(), WRITTEN);
    assert_eq!(TermsFile::decode(WRITTEN.as_bytes()).unwrap(), terms());
    for mode in [Mode::Enforce, Mode::Observe] {
        for on_loss in [OnLoss::Local, OnLoss::Open] {
            for users in [None, Some(Vec::new())] {
                let other = TermsFile { mode, on_loss, users, devices: Vec::new(), open_on_error: false, ..terms() };
                assert_eq!(TermsFile::decode(other.encode().unwrap().as_bytes()).unwrap(), other);
            }
        }
    }
}

#[test]
fn a_file_that_was_cut_or_changed_is_no_terms() {
    for end in 0..WRITTEN.len() - 1 {
        assert!(TermsFile::decode(&WRITTEN.as_bytes()[..end]).is_err(), "cut at {end}");
    }
    for (from, to) in [
        ("\"terms\":1", "\"terms\":2"),
        ("\"mode\":\"enforce\"", "\"mode\":\"some\""),
        ("\"on_error\":\"open\"", "\"on_error\":1"),
        ("\"strict\":true,", ""),
        ("\"devices\":2", "\"devices\":3"),
        ("\"users\":2", "\"users\":1"),
        ("\"users\":2", "\"users\":3"),
        ("\"uid\":1000", "\"uid\":4294967296"),
        (",\"last\":2000", ""),
        ("\"*\"", "\"GPU-1\""),
        ("1073741824", "0"),
        ("30,", "0,"),
        ("12.5", "101"),
    ] {
        let changed = WRITTEN.replacen(from, to, 1);
        assert_ne!(changed, WRITTEN, "{from}");
        assert!(TermsFile::decode(changed.as_bytes()).is_err(), "{changed}");
    }
}

#[test]
fn a_device_has_its_own_terms_or_those_of_all_or_may_not_be_used() {
    let all = terms();
    assert_eq!(all.terms_of_device("gpu-1"), all.devices.first());
    assert_eq!(all.terms_of_device("GPU-2"), all.devices.get(1));
    let one = TermsFile { devices: all.devices[..1].to_vec(), ..all };
    assert_eq!(one.terms_of_device("GPU-2"), None);
}

#[test]
fn a_file_has_room_for_all_devices_of_a_machine_and_no_more_than_its_bound() {
    let device = |at: usize| DeviceTerms { device: format!("GPU-{at:092}"), ..terms().devices[0].clone() };
    let many = |count| TermsFile { devices: (0..count).map(device).collect(), ..terms() };
    assert!(many(128).encode().is_ok());
    assert!(many(1000).encode().is_err());
    assert!(TermsFile::decode(&vec![b' '; MAX_TERMS_FILE_BYTES + 1]).is_err());
}

#[test]
fn the_file_admits_the_users_that_it_lists_and_all_where_it_has_no_list() {
    let listed = terms();
    for (uid, admitted) in [(0, true), (1, false), (999, false), (1000, true), (2000, true), (2001, false)] {
        assert_eq!(listed.admits_user(uid), admitted, "{uid}");
    }
    assert!(TermsFile { users: None, ..terms() }.admits_user(4711));
    assert!(!TermsFile { users: Some(Vec::new()), ..terms() }.admits_user(0), "an empty list admits nobody");
}
