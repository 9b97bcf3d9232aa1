//! Variables that take words and that the library reads. They are separate from the table, so that the library
//! contains these lines and not the explanations of every variable. The table builds its rows from them.

use crate::limits::Mode;

/// A variable and the words it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordVariable {
    /// The variable's name.
    pub name: &'static str,
    /// The only values that the variable accepts.
    pub words: &'static [&'static str],
}

const fn variable_with_words(name: &'static str, words: &'static [&'static str]) -> WordVariable {
    WordVariable { name, words }
}

const SWITCH_WORDS: &[&str] = &["0", "1"];

pub(crate) const MODE: WordVariable = variable_with_words("VGPU_MODE", &Mode::WORDS);
pub(crate) const SHARED_UIDS: WordVariable = variable_with_words("VGPU_SHARED_UIDS", SWITCH_WORDS);
pub(crate) const STRICT: WordVariable = variable_with_words("VGPU_STRICT", SWITCH_WORDS);
pub(crate) const DEEPBIND: WordVariable = variable_with_words("VGPU_DEEPBIND", &["clear", "keep"]);
pub(crate) const CHARGE_COPIES: WordVariable = variable_with_words("VGPU_CHARGE_COPIES", SWITCH_WORDS);
pub(crate) const ON_ERROR: WordVariable = variable_with_words("VGPU_ON_ERROR", &["open", "closed"]);
pub(crate) const LOG: WordVariable = variable_with_words("VGPU_LOG", &["on", "off"]);
pub(crate) const PRIORITY: WordVariable = variable_with_words("CUDA_TASK_PRIORITY", SWITCH_WORDS);
pub(crate) const POLICY: WordVariable =
    variable_with_words("GPU_CORE_UTILIZATION_POLICY", &["default", "DEFAULT", "force", "FORCE", "disable", "DISABLE"]);
/// The words of Go's `strconv.ParseBool`, with which HAMi reads it.
pub(crate) const CONTROL: WordVariable = variable_with_words(
    "CUDA_DISABLE_CONTROL",
    &["true", "True", "TRUE", "t", "T", "1", "false", "False", "FALSE", "f", "F", "0"],
);

/// All variables of this file.
pub const WORD_VARIABLES: [WordVariable; 10] =
    [MODE, SHARED_UIDS, STRICT, DEEPBIND, CHARGE_COPIES, ON_ERROR, LOG, PRIORITY, POLICY, CONTROL];
