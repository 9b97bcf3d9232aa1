//! The isolation matrix: for each resource how far tenants are isolated, and the tests that show it. A test of this
//! crate checks that every named test exists.

use vgpu_accounting::report::sheet::SheetTable;

/// A degree of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationDegree {
    /// Always isolated.
    Full,
    /// Isolated as far as the text says.
    Partial,
    /// Not isolated.
    None,
}

/// A cell of the matrix: isolation of one resource in one setup.
#[derive(Debug, Clone, Copy)]
pub struct IsolationCell {
    /// Degree to which tenants are isolated in this resource.
    pub degree: IsolationDegree,
    /// Extent of the isolation, in words.
    pub words: &'static str,
    /// Tests that show this isolation, by file and name.
    pub tests: &'static [(&'static str, &'static str)],
}

/// A row of the matrix: one resource, with the daemon and with the library alone.
#[derive(Debug, Clone, Copy)]
pub struct IsolationAxis {
    /// Name of the resource.
    pub name: &'static str,
    /// Isolation with the daemon.
    pub daemon: IsolationCell,
    /// Isolation with the library alone, configured by environment variables.
    pub alone: IsolationCell,
}

const LEASES_TEST: &str = "tests/tests/time_leases.rs";

/// The isolation matrix, one row for each resource.
pub const ISOLATION_MATRIX: [IsolationAxis; 4] = [
    IsolationAxis {
        name: "memory",
        daemon: IsolationCell {
            degree: IsolationDegree::Full,
            words: "a hard limit for all processes of a tenant together, changed while they run; freed memory is not \
                 erased",
            tests: &[
                ("tests/tests/daemon.rs", "members_of_the_daemons_tenant_share_its_limit"),
                ("tests/tests/leases.rs", "a_memory_limit_changes_under_a_living_process"),
            ],
        },
        alone: IsolationCell {
            degree: IsolationDegree::Full,
            words: "the same, to the last byte, for programs that keep the library",
            tests: &[
                ("tests/tests/memory.rs", "the_last_byte_can_be_allocated_and_one_more_cannot"),
                ("tests/tests/concurrency.rs", "of_nine_at_the_same_moment_exactly_one_is_refused"),
            ],
        },
    },
    IsolationAxis {
        name: "compute",
        daemon: IsolationCell {
            degree: IsolationDegree::Full,
            words: "floors, weights and ceilings on measured device time; memory bandwidth and caches are not divided",
            tests: &[
                (LEASES_TEST, "two_tenants_get_their_floors_and_equal_parts_of_what_these_leave"),
                (LEASES_TEST, "a_ceiling_is_kept_through_the_daemon_and_the_rest_is_the_others"),
            ],
        },
        alone: IsolationCell {
            degree: IsolationDegree::Partial,
            words: "ceilings, no floors: tenants have no order of turns",
            tests: &[("tests/tests/time_shares.rs", "ceilings_hold_for_kernels_of_any_length")],
        },
    },
    IsolationAxis {
        name: "fault",
        daemon: IsolationCell {
            degree: IsolationDegree::Partial,
            words: "a killed process or daemon stops no other; a fault of the device hits every process that shares it",
            tests: &[
                ("tests/tests/leases.rs", "a_member_killed_inside_its_lease_blocks_nobody"),
                (LEASES_TEST, "a_daemon_killed_mid_lease_hangs_nobody_and_ceilings_are_kept_and_it_comes_back"),
            ],
        },
        alone: IsolationCell {
            degree: IsolationDegree::Partial,
            words: "a killed process stops no other and its memory comes back; a fault of the device hits every \
                 process",
            tests: &[(
                "tests/tests/concurrency.rs",
                "after_kills_at_random_instructions_the_ledger_is_the_truth_and_nobody_hangs",
            )],
        },
    },
    IsolationAxis {
        name: "jitter",
        daemon: IsolationCell {
            degree: IsolationDegree::Partial,
            words: "a latency tenant comes first at the end of a lease; a kernel that runs is not interrupted",
            tests: &[
                (LEASES_TEST, "a_latency_tenant_is_served_beside_a_batch_one"),
                (LEASES_TEST, "a_holder_that_computes_leaves_the_device_to_who_waits"),
            ],
        },
        alone: IsolationCell {
            degree: IsolationDegree::None,
            words: "a neighbour's ceiling bounds what it takes, not when",
            tests: &[("tests/tests/time.rs", "thirty_percent_is_thirty_percent_for_a_program_that_runs_ahead")],
        },
    },
];

impl IsolationCell {
    fn cell_text(&self) -> String {
        let degree = match self.degree {
            IsolationDegree::Full => "yes",
            IsolationDegree::Partial => "partly",
            IsolationDegree::None => "no",
        };
        format!("{degree}: {}", self.words)
    }
}

/// Returns the matrix as a table.
#[must_use]
pub fn isolation_table() -> SheetTable {
    let row = |axis: &IsolationAxis| {
        let tests = axis.daemon.tests.iter().chain(axis.alone.tests).map(|(_, name)| *name);
        vec![
            axis.name.to_owned(),
            axis.daemon.cell_text(),
            axis.alone.cell_text(),
            tests.collect::<Vec<_>>().join(", "),
        ]
    };
    SheetTable {
        heading: "Isolation".into(),
        heads: ["axis", "with vgpud", "libvgpu.so alone", "shown by"].map(str::to_owned).to_vec(),
        words: 4,
        rows: ISOLATION_MATRIX.iter().map(row).collect(),
        total: None,
    }
}
