//! Resolves windows and bookings: looks up their tenants and devices, and refuses windows that contradict each other.

use std::collections::HashMap;

use jiff::civil::date;
use jiff::tz::TimeZone;

use crate::change::TermsChange;
use crate::devices::{self, DescribedDevice};
use crate::plan::TenantPlan;
use crate::problem::{At, ProblemList, TextRange};
use crate::raw::{DeviceId, RawBooking, RawFile, RawWindow, WeekDays};
use crate::schedule::{BookingPlan, DAY_MINUTES, Subjects, WindowPlan};
use crate::suggest::nearest_word;

/// Most windows of a file, and most bookings: each change of terms looks at all of them.
const MAX_SECTIONS: usize = 256;

/// Most names that a message lists.
const MAX_NAMES_LISTED: usize = 20;

const WEEK_MINUTES: i32 = 7 * DAY_MINUTES as i32;

/// A year whose daylight saving time stands for that of every year, when windows of several zones are compared.
const REFERENCE_YEAR: i16 = 2026;

/// Resolves windows and bookings; has the names that they may use, and collects problems.
pub(super) struct ScheduleResolver<'a, 't> {
    /// Time zone of the host.
    pub zone: TimeZone,
    pub tenants: Vec<&'a TenantPlan>,
    pub devices: &'a [DescribedDevice],
    pub problems: &'a mut ProblemList<'t>,
    pub notes: &'a mut Vec<String>,
}

impl ScheduleResolver<'_, '_> {
    /// Returns the windows and bookings. They are valid only if there is no problem.
    pub fn resolve_schedule(mut self, raw: &RawFile) -> (Vec<WindowPlan>, Vec<BookingPlan>) {
        self.refuse_too_many("window", raw.windows.iter().map(|window| window.place));
        self.refuse_too_many("booking", raw.bookings.iter().map(|booking| booking.place));
        self.refuse_repeated("window", raw.windows.iter().filter_map(|window| window.name.as_ref()));
        self.refuse_repeated("booking", raw.bookings.iter().filter_map(|booking| booking.name.as_ref()));
        let windows: Vec<_> = raw.windows.iter().filter_map(|window| self.resolve_window(window)).collect();
        let bookings = raw.bookings.iter().filter_map(|booking| self.resolve_booking(booking)).collect();
        self.refuse_overlaps(&windows);
        (windows, bookings)
    }

    fn refuse_too_many(&mut self, section: &str, mut places: impl Iterator<Item = TextRange>) {
        if let Some(place) = places.nth(MAX_SECTIONS) {
            let accepted = format!("at most {MAX_SECTIONS} [[{section}]]");
            self.problems.wrong_key(place, section, "is one too many", accepted);
        }
    }

    fn refuse_repeated<'n>(&mut self, section: &str, names: impl Iterator<Item = &'n At<String>>) {
        let mut seen: HashMap<&str, ()> = HashMap::new();
        for at in names {
            if seen.insert(&at.value, ()).is_some() {
                let accepted = format!("a unique name for each {section}");
                self.problems.wrong_value(at.place, format!("{section}.name"), "is given already", accepted);
            }
        }
    }

    fn resolve_window(&mut self, raw: &RawWindow) -> Option<WindowPlan> {
        let tenants = self.known_tenants("window.tenants", raw.tenants.iter().flat_map(|list| &list.value));
        let devices = self.known_devices("window.devices", raw.devices.iter().flat_map(|list| &list.value));
        let terms = &raw.terms;
        let change = TermsChange {
            memory: terms.memory_limit.as_ref().map(|at| at.value),
            ceiling: terms.sm_limit.as_ref().map(|at| at.value),
            floor: terms.sm_request.as_ref().map(|at| at.value),
            weight: terms.weight.as_ref().map(|at| at.value),
            class: terms.class.as_ref().map(|at| at.value),
            quantum: terms.quantum.as_ref().map(|at| Some(at.value)),
            ..TermsChange::default()
        };
        let paused = raw.paused.as_ref().is_some_and(|at| at.value);
        let days = raw
            .days
            .as_ref()
            .map_or(WeekDays::ALL, |list| WeekDays(list.value.iter().fold(0, |days, at| days | at.value.0)));
        let (name, from, to) = (raw.name.as_ref()?, raw.from.as_ref()?, raw.to.as_ref()?);
        if change == TermsChange::default() && !paused {
            let accepted = "memory_limit, sm_limit, sm_request, weight, class, quantum, paused = true";
            self.problems.wrong_key(raw.place, "window", "changes nothing", accepted);
        }
        if from.value == to.value || from.value == DAY_MINUTES {
            let accepted = "a time before \"24:00\" that is not the end; the whole day is \"00:00\" to \"24:00\"";
            self.problems.wrong_value(from.place, "window.from", "leaves no time until \"to\"", accepted);
        }
        let groups: Vec<String> = raw.groups.iter().flat_map(|list| &list.value).map(|at| at.value.clone()).collect();
        let subjects = Subjects { tenants, groups, devices };
        for group in &subjects.groups {
            let alone = Subjects { groups: vec![group.clone()], ..Subjects::default() };
            if !self.tenants.iter().any(|tenant| alone.has_tenant(&tenant.name, tenant.bearer.group.as_deref())) {
                self.notes.push(format!("window {:?}: no tenant of the file is of group {group:?}", name.value));
            }
        }
        Some(WindowPlan {
            name: name.value.clone(),
            days,
            from: from.value,
            to: to.value,
            zone: self.zone_of(raw.zone.as_ref()),
            subjects,
            change,
            paused,
            place: name.place,
        })
    }

    fn resolve_booking(&mut self, raw: &RawBooking) -> Option<BookingPlan> {
        let known = self.known_tenants("booking.tenant", raw.tenant.iter());
        let devices = self.known_devices("booking.devices", raw.devices.iter().flat_map(|list| &list.value));
        let (floor, memory) = (raw.sm_request.as_ref().and_then(|at| at.value), raw.memory_limit.as_ref());
        if floor.is_none() && memory.is_none() {
            self.problems.wrong_key(raw.place, "booking", "books nothing", "sm_request, memory_limit, or both");
        }
        let owned = |device: &&String| {
            let of = |tenant: &&&TenantPlan| known.first().is_some_and(|name| *name == tenant.name);
            self.tenants.iter().find(of).is_some_and(|tenant| tenant.terms.iter().all(|terms| terms.device != **device))
        };
        let foreign: Vec<String> = devices.iter().filter(owned).cloned().collect();
        if let Some(list) = raw.devices.as_ref().filter(|_| !foreign.is_empty()) {
            let what = format!("names device {}, which the tenant may not use", foreign.join(", "));
            self.problems.wrong_value(list.place, "booking.devices", what, "devices of the tenant");
        }
        let (name, from, length) = (raw.name.as_ref()?, raw.from.as_ref()?, raw.length.as_ref()?);
        let begins = self.zone_of(raw.zone.as_ref()).to_timestamp(from.value);
        let Ok(begins) = begins else {
            self.problems.wrong_value(from.place, "booking.from", "is out of range", "a date of this century");
            return None;
        };
        let from = begins.as_second();
        Some(BookingPlan {
            name: name.value.clone(),
            tenant: known.into_iter().next()?,
            devices,
            from,
            until: from.saturating_add_unsigned(length.value),
            floor,
            memory: memory.map(|at| at.value),
            place: name.place,
        })
    }

    fn zone_of(&self, written: Option<&At<TimeZone>>) -> TimeZone {
        written.map_or_else(|| self.zone.clone(), |at| at.value.clone())
    }

    fn known_tenants<'n>(&mut self, key: &str, named: impl Iterator<Item = &'n At<String>>) -> Vec<String> {
        let mut all = Vec::new();
        for at in named {
            let names = || self.tenants.iter().map(|tenant| tenant.name.as_str());
            if names().any(|name| name == at.value) {
                all.push(at.value.clone());
                continue;
            }
            let what = match nearest_word(&at.value, names()) {
                Some(meant) => format!("is not a tenant of this file (did you mean {meant:?}?)"),
                None => "is not a tenant of this file".to_owned(),
            };
            let mut accepted = names().take(MAX_NAMES_LISTED).collect::<Vec<_>>().join(", ");
            if self.tenants.len() > MAX_NAMES_LISTED {
                accepted.push_str(", ...");
            }
            self.problems.wrong_value(at.place, key, what, accepted);
        }
        all
    }

    fn known_devices<'n>(&mut self, key: &str, named: impl Iterator<Item = &'n At<DeviceId>>) -> Vec<String> {
        let mut all = Vec::new();
        for at in named.filter(|at| at.value != DeviceId::Any) {
            let found: Vec<String> =
                devices::find(self.devices, &at.value).map(|device| self.devices[device].plan.name()).collect();
            if found.is_empty() {
                let accepted = devices::device_names(self.devices);
                self.problems.wrong_value(at.place, key, "is not a device of this configuration", accepted);
            }
            all.extend(found);
        }
        all
    }

    /// Refuses two windows that give one key of one tenant on one device two values at the same time.
    fn refuse_overlaps(&mut self, windows: &[WindowPlan]) {
        for (index, later) in windows.iter().enumerate() {
            let Some(earlier) = windows[..index].iter().find(|earlier| self.contradict(earlier, later)) else {
                continue;
            };
            let what = format!(
                "overlaps window {:?}, which gives the same tenants other values of {}",
                earlier.name,
                common_keys(earlier, later).join(", ")
            );
            let accepted = "times, tenants, devices or keys that have nothing in common with that window";
            self.problems.wrong_value(later.place, "window.name", what, accepted);
            self.problems.wrong_value(
                earlier.place,
                "window.name",
                format!("overlaps window {:?}", later.name),
                accepted,
            );
        }
    }

    fn contradict(&self, one: &WindowPlan, other: &WindowPlan) -> bool {
        let both = |tenant: &&TenantPlan| {
            let group = tenant.bearer.group.as_deref();
            one.subjects.has_tenant(&tenant.name, group)
                && other.subjects.has_tenant(&tenant.name, group)
                && tenant
                    .terms
                    .iter()
                    .any(|terms| one.subjects.has_device(&terms.device) && other.subjects.has_device(&terms.device))
        };
        let new = one.subjects.can_share_new_tenant(&other.subjects) && one.subjects.shares_device(&other.subjects);
        !common_keys(one, other).is_empty() && (new || self.tenants.iter().any(both)) && overlap(one, other)
    }
}

/// Keys that two windows give different values.
fn common_keys(one: &WindowPlan, other: &WindowPlan) -> Vec<&'static str> {
    fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
        one.is_some() && other.is_some() && one != other
    }
    let (a, b) = (&one.change, &other.change);
    let keys = [
        ("memory_limit", differ(&a.memory, &b.memory)),
        ("sm_limit", differ(&a.ceiling, &b.ceiling)),
        ("sm_request", differ(&a.floor, &b.floor)),
        ("weight", differ(&a.weight, &b.weight)),
        ("class", differ(&a.class, &b.class)),
        ("quantum", differ(&a.quantum, &b.quantum)),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// True if two windows have a minute in common in some month of the reference year.
fn overlap(one: &WindowPlan, other: &WindowPlan) -> bool {
    (1..=12).any(|month| {
        let (mine, theirs) = (occurrences(one, month), occurrences(other, month));
        mine.iter().any(|(start, length)| {
            theirs.iter().any(|(begin, long)| {
                (begin - start).rem_euclid(WEEK_MINUTES) < *length || (start - begin).rem_euclid(WEEK_MINUTES) < *long
            })
        })
    })
}

/// Starts in minutes of the week in UTC, and lengths, by the zone's offset in a month.
fn occurrences(window: &WindowPlan, month: i8) -> Vec<(i32, i32)> {
    let middle = date(REFERENCE_YEAR, month, 15).at(12, 0, 0, 0);
    let offset = window.zone.to_timestamp(middle).map_or(0, |at| window.zone.to_offset(at).seconds() / 60);
    let days = (0..7).filter(|day| window.days.has(*day));
    let start = |day: u8| i32::from(day) * i32::from(DAY_MINUTES) + i32::from(window.from) - offset;
    days.map(|day| (start(day), i32::from(window.length()))).collect()
}

#[cfg(test)]
mod tests {
    use crate::make_plan;
    use crate::resolve::Surroundings;

    const FILE: &str = "\
        [[device]]\nid = 0\nmemory = \"80GiB\"\n\
        [[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\ngroup = \"lab/vision\"\n\
        [[tenant]]\nname = \"b\"\nmemory_limit = \"1GiB\"\n";

    fn problems(sections: &str) -> String {
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
        match make_plan(&format!("{FILE}{sections}"), &around) {
            Ok(plan) => plan.notes.iter().map(|note| format!("note: {note}\n")).collect(),
            Err(report) => report.to_lines("f"),
        }
    }

    #[test]
    fn windows_that_contradict_each_other_are_refused_with_both_places() {
        let night = "[[window]]\nname = \"night\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_limit = 80\n";
        let other = |rest: &str| problems(&format!("{night}[[window]]\nname = \"other\"\n{rest}"));
        let told = other("days = [\"tue\"]\nfrom = \"05:59\"\nto = \"07:00\"\nsm_limit = 10\n");
        assert!(told.contains("f:12:8: window.name = \"night\" overlaps window \"other\""), "{told}");
        assert!(told.contains("f:17:8: window.name = \"other\" overlaps window \"night\""), "{told}");
        for fits in [
            "from = \"06:00\"\nto = \"22:00\"\nsm_limit = 10\n",
            "from = \"05:00\"\nto = \"07:00\"\nsm_limit = 80\n",
            "from = \"05:00\"\nto = \"07:00\"\nweight = 3\n",
        ] {
            assert_eq!(other(fits), "", "{fits}");
        }
        // 23:00 in Berlin is 22:00 in UTC in winter, and 21:00 in summer.
        let berlin = "time_zone = \"Europe/Berlin\"\nfrom = \"22:00\"\nto = \"23:00\"\nsm_limit = 10\n";
        assert_eq!(other(berlin), "");
        assert!(other(&berlin.replace("23:00", "23:01")).contains("overlaps"), "in winter");
    }

    #[test]
    fn windows_contradict_each_other_also_for_tenants_that_commands_will_add() {
        let window = |name: &str, subjects: &str, limit: u32| {
            format!("[[window]]\nname = \"{name}\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_limit = {limit}\n{subjects}\n")
        };
        for (one, other, contradict) in [
            ("groups = [\"jobs\"]", "groups = [\"jobs/nightly\"]", true),
            ("groups = [\"jobs\"]", "groups = [\"jobs\"]", true),
            ("groups = [\"jobs\"]", "groups = [\"jobs-2\"]", false),
            ("groups = [\"jobs\"]", "tenants = [\"a\"]", false),
            ("tenants = [\"b\"]", "tenants = [\"a\"]", false),
        ] {
            let told = problems(&format!("{}{}", window("one", one, 80), window("other", other, 30)));
            assert_eq!(told.contains("overlaps window"), contradict, "{one} {other}: {told}");
        }
    }

    #[test]
    fn what_a_window_or_a_booking_names_must_be_there() {
        for (section, told) in [
            (
                "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"02:00\"\n",
                "window changes nothing; accepted: memory_limit",
            ),
            (
                "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"01:00\"\nweight = 2\n",
                "window.from = \"01:00\" leaves no time",
            ),
            (
                "[[window]]\nname = \"n\"\nfrom = \"1:00\"\nto = \"02:00\"\nweight = 2\n",
                "window.from = \"1:00\" is not a time of day",
            ),
            ("[[window]]\nname = \"n\"\nto = \"02:00\"\nweight = 2\n", "window.from is missing"),
            (
                "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"02:00\"\nweight = 2\ntenants = [\"c\"]\n",
                "window.tenants = \"c\" is not a tenant of this file",
            ),
            (
                "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"02:00\"\nweight = 2\ndevices = [7]\n",
                "window.devices = 7 is not a device",
            ),
            (
                "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"02:00\"\nweight = 2\ngroups = [\"lba\"]\n",
                "note: window \"n\": no tenant of the file is of group \"lba\"",
            ),
            (
                "[[booking]]\nname = \"n\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\n",
                "booking books nothing; accepted: sm_request",
            ),
            (
                "[[booking]]\nname = \"n\"\ntenant = \"z\"\nfrom = \"2026-12-01\"\nfor = \"2\"\nsm_request = 5\n",
                "booking.from = \"2026-12-01\" is not a date with a time of day",
            ),
        ] {
            let all = problems(section);
            assert!(all.contains(told), "{section}: {all}");
        }
        let group = "[[window]]\nname = \"n\"\nfrom = \"01:00\"\nto = \"02:00\"\nweight = 2\ngroups = [\"lab\"]\n";
        assert_eq!(problems(group), "");
        assert!(problems(&format!("{group}{group}")).contains("window.name = \"n\" is given already"));
    }
}
