//! Every function of the CUDA and NVML headers must be in the table: an unclassified one fails here.
//!
//! The lists next to this file name the functions that the headers of CUDA 12.9 and 13.5 declare, one per line. To
//! support a newer header, add its names there first; this test then requires a decision for each.

use shim_sys::table::{CUDA_ROWS, NVML_ROWS, Row, RowAction};
use std::collections::BTreeSet;

fn difference(rows: &[Row], list: &str) -> (Vec<String>, Vec<String>) {
    let table: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    let headers: BTreeSet<&str> = list.lines().collect();
    let names =
        |from: &BTreeSet<&str>, other: &BTreeSet<&str>| from.difference(other).map(ToString::to_string).collect();
    (names(&headers, &table), names(&table, &headers))
}

#[test]
fn every_function_of_the_headers_is_classified() {
    for (rows, list) in
        [(CUDA_ROWS, include_str!("cuda-functions.txt")), (NVML_ROWS, include_str!("nvml-functions.txt"))]
    {
        let (unclassified, unknown) = difference(rows, list);
        assert!(unclassified.is_empty(), "not classified in the table: {unclassified:?}");
        assert!(unknown.is_empty(), "in the table, but in no header: {unknown:?}");
    }
}

#[test]
fn an_unclassified_function_is_noticed() {
    let (unclassified, unknown) = difference(&CUDA_ROWS[1..], include_str!("cuda-functions.txt"));
    assert_eq!((unclassified, unknown), (vec![CUDA_ROWS[0].name.to_string()], vec![]));
}

#[test]
fn every_row_says_why() {
    for row in CUDA_ROWS.iter().chain(NVML_ROWS) {
        match row.action {
            RowAction::Hook(subject) => assert!(row.typed && !subject.is_empty(), "{}", row.name),
            RowAction::Pass(why) => assert!(why.len() > 8, "{} passes without a reason", row.name),
            RowAction::Deny(why) | RowAction::Hide(why) => {
                assert!(why.len() > 8, "{} is shut without a reason", row.name)
            }
        }
    }
}

#[test]
fn allocation_context_and_kernel_launch_rows_are_hooked() {
    for name in [
        "cuMemAlloc_v2",
        "cuMemAllocPitch_v2",
        "cuMemAllocManaged",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync",
        "cuMemCreate",
        "cuArrayCreate_v2",
        "cuArray3DCreate_v2",
        "cuMipmappedArrayCreate",
        "cuCtxCreate_v2",
        "cuCtxCreate_v4",
        "cuDevicePrimaryCtxRetain",
        "cuLaunchKernel",
        "cuLaunchKernelEx_ptsz",
        "cuMemGetInfo_v2",
        "cuDeviceTotalMem_v2",
        "cuGetProcAddress_v2",
    ] {
        let row = CUDA_ROWS.iter().find(|row| row.name == name).expect(name);
        assert!(matches!(row.action, RowAction::Hook(_)), "{name} is not hooked");
    }
}
