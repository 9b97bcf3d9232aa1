//! Variables that take words and that the library reads. They are separate from the table, so that the library
//! contains these lines and not the explanations of every variable. The table builds its rows from them.

use crate::limits::Mode;

/// A variable and the words it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worded {
    /// The variable's name.
    pub name: &'static str,
    /// The only values that the variable accepts.
    pub words: &'static [&'static str],
}

const fn of(name: &'static str, words: &'static [&'static str]) -> Worded {
    Worded { name, words }
}

const SWITCH: &[&str] = &["0", "1"];

pub(crate) const MODE: Worded = of("VGPU_MODE", &Mode::WORDS);
pub(crate) const SHARED_UIDS: Worded = of("VGPU_SHARED_UIDS", SWITCH);
pub(crate) const STRICT: Worded = of("VGPU_STRICT", SWITCH);
pub(crate) const DEEPBIND: Worded = of("VGPU_DEEPBIND", &["clear", "keep"]);
pub(crate) const CHARGE_COPIES: Worded = of("VGPU_CHARGE_COPIES", SWITCH);
pub(crate) const ON_ERROR: Worded = of("VGPU_ON_ERROR", &["open", "closed"]);
pub(crate) const LOG: Worded = of("VGPU_LOG", &["on", "off"]);
pub(crate) const PRIORITY: Worded = of("CUDA_TASK_PRIORITY", SWITCH);
pub(crate) const POLICY: Worded =
    of("GPU_CORE_UTILIZATION_POLICY", &["default", "DEFAULT", "force", "FORCE", "disable", "DISABLE"]);
/// The words of Go's `strconv.ParseBool`, with which HAMi reads it.
pub(crate) const CONTROL: Worded =
    of("CUDA_DISABLE_CONTROL", &["true", "True", "TRUE", "t", "T", "1", "false", "False", "FALSE", "f", "F", "0"]);

/// All variables of this file.
pub const WORDED: [Worded; 10] =
    [MODE, SHARED_UIDS, STRICT, DEEPBIND, CHARGE_COPIES, ON_ERROR, LOG, PRIORITY, POLICY, CONTROL];
