//! Faults of the device, injected by `vgpu sim fault`: an illegal address in one process, a lost device, a reset.
//!
//! Each fault gets an Xid, the number by which the real driver names it, in a ring that NVML's event sets read. A
//! faulted process has no work on the device any more, and everything that it queued counts as reached, so that no
//! wait hangs. Its memory stays in use until it ends. The words that say so are read without the machine's lock.
//! Not here: which calls answer the code (sim/cuda), NVML's answers (sim/nvml).

use crate::layout::{StateBody, XIDS_KEPT, XidEvent, ring_index, set_bits};
use crate::machine::{MachineView, now};
use crate::sched;
use std::sync::atomic::{AtomicU32, Ordering};

/// Xid of an illegal address: a fault of the memory management unit.
pub const XID_MMU_FAULT: u32 = 31;
/// Xid of a device that has fallen off the bus.
pub const XID_OFF_THE_BUS: u32 = 79;
/// Xid of an uncontained ECC error: the device has to be reset.
pub const XID_UNCONTAINED_ECC: u32 = 95;

const ILLEGAL_ADDRESS: u32 = 700;
const ECC_UNCORRECTABLE: u32 = 214;
const UNKNOWN_ERROR: u32 = 999;

/// Reasons why a fault is not injected, or a device is not reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultRefusal {
    /// No living process with this pid has a context.
    NoSuchProcess,
    /// The machine has no device with this index; it has this many.
    NoSuchDevice(usize),
    /// These processes still have contexts on the device.
    InUse(Vec<u32>),
}

impl StateBody {
    /// Indices of the devices on the board of device `index`: more than one if it is partitioned.
    fn devices_on_board(&self, index: usize) -> Result<Vec<usize>, FaultRefusal> {
        let count = self.device_count as usize;
        if index >= count {
            return Err(FaultRefusal::NoSuchDevice(count));
        }
        Ok((0..count).filter(|i| self.devices[*i].minor == self.devices[index].minor).collect())
    }

    fn note_xid(&mut self, device: usize, xid: u32, time: u64) {
        let at = ring_index(self.xid_count, XIDS_KEPT);
        self.xids[at] = XidEvent { at: time, device: sched::index(device), xid };
        self.xid_count += 1;
        store_word(&mut self.had_fault, 1);
    }

    fn has_context(&self, slot: usize, device: usize) -> bool {
        self.slots[slot].devices[device].used.contexts > 0
    }

    /// Code with which the driver answers the process in `slot` on `device`; 0: it has no fault.
    pub(crate) fn fault_code(&self, slot: usize, device: usize) -> u32 {
        let own = self.slots[slot].fault;
        if own == 0 { self.devices[device].lost_code } else { own }
    }
}

impl MachineView {
    /// Lets the process `pid` touch an illegal address on the first device where it has a context.
    ///
    /// # Errors
    /// [`FaultRefusal::NoSuchProcess`].
    pub fn inject_illegal_address(&self, pid: u32) -> Result<(), FaultRefusal> {
        let mut b = self.lock_settled();
        let slots: Vec<usize> = set_bits(&b.live).filter(|s| self.number_of(&b, *s) == Some(pid)).collect();
        let devices = b.device_count as usize;
        let first = slots.iter().find_map(|s| (0..devices).find(|d| b.has_context(*s, *d)));
        let device = first.ok_or(FaultRefusal::NoSuchProcess)?;
        for slot in slots {
            store_word(&mut b.slots[slot].fault, ILLEGAL_ADDRESS);
            (0..devices).for_each(|d| sched::withdraw_slot(&mut b, slot, d));
        }
        b.note_xid(device, XID_MMU_FAULT, now());
        Ok(())
    }

    /// Loses `device`, and with it the whole board: with [`XID_UNCONTAINED_ECC`] by an ECC error, else off the bus.
    ///
    /// # Errors
    /// [`FaultRefusal::NoSuchDevice`].
    pub fn inject_loss(&self, device: usize, xid: u32) -> Result<(), FaultRefusal> {
        let mut b = self.lock_settled();
        let code = if xid == XID_UNCONTAINED_ECC { ECC_UNCORRECTABLE } else { UNKNOWN_ERROR };
        let board = b.devices_on_board(device)?;
        let live = b.live;
        for d in &board {
            store_word(&mut b.devices[*d].lost_code, code);
            set_bits(&live).for_each(|slot| sched::withdraw_slot(&mut b, slot, *d));
        }
        b.note_xid(board[0], xid, now());
        Ok(())
    }

    /// Resets `device`, and with it the whole board. As with the real tool no process may use it.
    ///
    /// # Errors
    /// [`FaultRefusal::NoSuchDevice`], [`FaultRefusal::InUse`].
    pub fn reset_device(&self, device: usize) -> Result<(), FaultRefusal> {
        let mut b = self.lock_settled();
        let board = b.devices_on_board(device)?;
        let users = set_bits(&b.live).filter(|s| board.iter().any(|d| b.has_context(*s, *d)));
        let users: Vec<u32> = users.map(|s| self.number_of(&b, s).unwrap_or(0)).collect();
        if !users.is_empty() {
            return Err(FaultRefusal::InUse(users));
        }
        board.into_iter().for_each(|d| store_word(&mut b.devices[d].lost_code, 0));
        Ok(())
    }

    /// True once a fault was injected: the other words need no look before.
    ///
    /// # Cost
    /// One load, since the simulated driver asks in each call.
    pub fn had_fault(&self) -> bool {
        // SAFETY: mapped for the life of self; an aligned u32 that is stored as an atomic.
        load_word(unsafe { &raw mut (*self.shared_state()).body.had_fault }) != 0
    }

    /// Code with which the driver answers every call of this process, on whichever device; 0: none.
    pub fn own_fault(&self) -> u32 {
        // SAFETY: mapped for the life of self; an aligned u32 that is stored as an atomic.
        load_word(unsafe { &raw mut (*self.shared_state()).body.slots[self.own_slot()].fault })
    }

    /// Code with which the driver answers calls about the lost `device`; 0: it is not lost.
    pub fn lost_code(&self, device: usize) -> u32 {
        // SAFETY: as above.
        load_word(unsafe { &raw mut (*self.shared_state()).body.devices[device].lost_code })
    }

    /// Number of Xids so far.
    pub fn xid_count(&self) -> u64 {
        self.lock().xid_count
    }

    /// Xid number `n`, counted from 0; `None`: not yet. Of an Xid that is no longer kept, the oldest one.
    pub fn xid_event(&self, n: u64) -> Option<XidEvent> {
        let b = self.lock();
        let oldest = b.xid_count.saturating_sub(XIDS_KEPT as u64);
        (n < b.xid_count).then(|| b.xids[ring_index(n.max(oldest), XIDS_KEPT)])
    }
}

/// Stores a word that other processes read without the lock.
fn store_word(word: &mut u32, value: u32) {
    // SAFETY: a live, aligned u32 that everybody treats as an atomic while other processes run.
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Release);
}

fn load_word(word: *mut u32) -> u32 {
    // SAFETY: the callers' word is live and aligned, and everybody treats it as an atomic.
    unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire)
}
