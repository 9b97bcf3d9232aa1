//! The stages of the chain, in their order.

/// A stage of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyStage {
    /// Windows of the file.
    Window,
    /// Bookings of the file and of commands.
    Booking,
    /// Fair share and quotas of groups.
    Group,
    /// Needs and use of a tenant: deadlines, idle time.
    Need,
    /// Commands of administrators.
    Override,
}
