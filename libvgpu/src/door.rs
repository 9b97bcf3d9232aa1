//! The one door between C and Rust: a panic ends here, silently, and becomes the caller's fail-closed answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result type of a C function's signature.
pub trait Signature {
    /// What it returns.
    type Output;
}

macro_rules! signatures {
    ($($($arg:ident)*;)*) => {$(
        impl<R $(, $arg)*> Signature for unsafe extern "C" fn($($arg),*) -> R {
            type Output = R;
        }
    )*};
}

signatures! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
}

/// Runs a hook's body; `None` if it panicked.
///
/// # Cost
/// Nothing on the way through: unwinding tables only.
#[inline]
pub fn guard<R>(body: impl FnOnce() -> R) -> Option<R> {
    // Not dropped: what a panic carries may panic when it is, and nothing comes back from here.
    catch_unwind(AssertUnwindSafe(body)).map_err(core::mem::forget).ok()
}

/// Replaces our own copy of the standard library's panic message by silence: a guest prints nothing unasked. The
/// program's own panic hook, if it is written in Rust, is another copy and is not touched.
pub fn silence() {
    std::panic::set_hook(Box::new(|_| {}));
}
