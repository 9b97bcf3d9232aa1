//! The FFI guard of every hook: a panic ends here silently and becomes the hook's fail-closed answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result type of a C function's signature.
pub trait CFunction {
    /// The return type.
    type Output;
}

macro_rules! signatures {
    ($($($arg:ident)*;)*) => {$(
        impl<R $(, $arg)*> CFunction for unsafe extern "C" fn($($arg),*) -> R {
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
/// No code on the path without a panic, only unwinding tables.
#[inline]
pub fn catch_panic<R>(body: impl FnOnce() -> R) -> Option<R> {
    // The payload is not dropped: dropping it may panic again, with no guard around it.
    catch_unwind(AssertUnwindSafe(body)).map_err(core::mem::forget).ok()
}

/// Replaces this library's copy of the standard panic message by silence: a guest prints nothing unasked. A program
/// written in Rust has its own copy of the panic hook, which is not touched.
pub fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
