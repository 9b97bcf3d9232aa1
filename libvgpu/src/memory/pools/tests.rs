//! Tests of pools that need no driver.

use super::*;

#[test]
fn a_pool_that_is_exported_before_anybody_noted_it_can_be_charged_later() {
    let pool = CUmemoryPool(core::ptr::without_provenance_mut(0x1234_5000));
    assert_eq!(share_pool(pool, || 1), None);
    assert!(registry::find_noted(pool.0 as usize).is_none(), "nothing is known of it");
}
