//! Refcounted charges: one charge that several objects of this process hold, such as external memory and the buffers
//! and arrays that map it. It ends with the last of them, in any order.
//!
//! Memory that several processes hold is in `share`.

use crate::holdings::Holding;
use crate::lock::Lock;
use crate::sorted::Map;

struct All {
    /// Charges by number, with their reference counts.
    charges: Map<u32, (Holding, u32)>,
    next: u32,
}

impl All {
    const EMPTY: All = All { charges: Map::new(), next: 0 };
}

static ALL: Lock<All> = Lock::new(All::EMPTY);

/// Stores a charge and returns the first reference to it.
pub fn begin(charge: Holding) -> Holding {
    let mut all = ALL.lock();
    let number = all.next;
    all.next = all.next.wrapping_add(1);
    all.charges.insert(number, (charge, 1));
    Holding::of_counted(number, charge.context)
}

/// Adds a reference to the same charge, for `context`. `None`: `name` is no such reference, or the charge has ended.
pub fn again(name: Holding, context: usize) -> Option<Holding> {
    let number = name.counted()?;
    ALL.lock().charges.get_mut(&number)?.1 += 1;
    Some(Holding::of_counted(number, context))
}

/// Drops one reference; returns the charge if it was the last.
pub fn end(number: u32) -> Option<Holding> {
    let mut all = ALL.lock();
    let names = &mut all.charges.get_mut(&number)?.1;
    *names -= 1;
    if *names > 0 { None } else { all.charges.remove(&number).map(|(charge, _)| charge) }
}

/// Clears the parent's charges in a forked child.
pub fn forget() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { ALL.reset(All::EMPTY) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_ends_with_the_last_of_its_names_in_any_order() {
        let charge = Holding { bytes: 512, device: 3, context: 7 };
        let first = begin(charge);
        let second = again(first, 8).unwrap();
        assert_eq!((first.context, second.context), (7, 8));
        assert_eq!(first.counted().map(end), Some(None));
        assert_eq!(second.counted().map(end), Some(Some(charge)));
        assert_eq!(again(first, 7), None, "it has ended");
        assert_eq!(again(charge, 7), None, "an ordinary charge has no other names");
    }
}
