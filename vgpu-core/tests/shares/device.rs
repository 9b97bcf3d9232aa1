//! The model of a device. Contexts take turns in slices, a context runs its work in the order of submission, and no
//! work can be withdrawn. The model records the true usage in buckets of 10 ms. It does not know usage meters, gates or
//! leases.

use std::collections::VecDeque;

/// Length of a usage bucket in ns.
pub const BUCKET: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    /// Runs until a [`Kind::Release`] of its context has run.
    Spin,
    Release,
    /// Ends a [`Kind::Spin`] on another device: the world calls [`Device::grant`] there when this completes.
    Signal,
    Marker(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub stream: usize,
    pub kind: Kind,
    pub left: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub context: usize,
    pub kind: Kind,
    pub at: u64,
}

#[derive(Default, Debug)]
pub struct Context {
    pub queue: VecDeque<Op>,
    /// Operations of each stream in `queue`.
    queued: Vec<u32>,
    pub busy: u64,
    pub buckets: Vec<u64>,
    /// Signals from the other device that no kernel has waited for yet.
    signals: u32,
    gone: bool,
}

impl Context {
    /// Index of the operation that runs: the first, or, if that one spins, the first of another stream.
    fn runs(&self) -> Option<usize> {
        let first = self.queue.front()?;
        if first.kind != Kind::Spin {
            return Some(0);
        }
        let beside = self.queue.iter().position(|op| op.stream != first.stream && op.kind != Kind::Spin);
        Some(beside.unwrap_or(0))
    }

    fn use_time(&mut self, from: u64, to: u64) {
        self.busy += to - from;
        let mut at = from;
        while at < to {
            let bucket = usize::try_from(at / BUCKET).unwrap();
            let end = to.min((at / BUCKET + 1) * BUCKET);
            if self.buckets.len() <= bucket {
                self.buckets.resize(bucket + 1, 0);
            }
            self.buckets[bucket] += end - at;
            at = end;
        }
    }

    pub fn idle(&self, stream: usize) -> bool {
        self.queued.get(stream).is_none_or(|&count| count == 0)
    }

    fn push(&mut self, op: Op) {
        if self.queued.len() <= op.stream {
            self.queued.resize(op.stream + 1, 0);
        }
        self.queued[op.stream] += 1;
        self.queue.push_back(op);
    }

    /// The operation at this place, which the device completed.
    fn take(&mut self, at: usize) {
        let op = if at == 0 { self.queue.pop_front() } else { self.queue.remove(at) };
        op.iter().for_each(|op| self.queued[op.stream] -= 1);
    }
}

#[derive(Default, Debug)]
pub struct Device {
    pub contexts: Vec<Context>,
    clock: u64,
    current: Option<usize>,
    last: Option<usize>,
    slice_end: u64,
    slice: u64,
    switch: u64,
    /// Number of the valid event. The world's events with another number are stale.
    pub generation: u64,
    pub switched: u64,
}

impl Device {
    pub fn new(slice: u64, switch: u64) -> Self {
        Self { slice, switch, ..Self::default() }
    }

    pub fn context(&mut self) -> usize {
        self.contexts.push(Context::default());
        self.contexts.len() - 1
    }

    /// Ends a context and discards its work.
    pub fn kill(&mut self, context: usize) {
        self.contexts[context].queue.clear();
        self.contexts[context].queued.clear();
        self.contexts[context].gone = true;
    }

    /// Lets the spinning kernel of the context do its own work, or the next one, because another device's kernel
    /// signals it.
    pub fn grant(&mut self, context: usize, now: u64, done: &mut Vec<Done>) {
        self.advance(now, done);
        let context = &mut self.contexts[context];
        match context.queue.iter_mut().find(|op| op.kind == Kind::Spin) {
            Some(spin) => spin.kind = Kind::Kernel,
            None => context.signals += 1,
        }
        self.instant(done);
    }

    pub fn submit(&mut self, context: usize, mut op: Op, now: u64, done: &mut Vec<Done>) {
        self.advance(now, done);
        if let Kind::Marker(_) = op.kind
            && self.contexts[context].idle(op.stream)
            && self.current.or(self.last).is_none_or(|current| current == context)
        {
            done.push(Done { context, kind: op.kind, at: now });
            return;
        }
        let here = &mut self.contexts[context];
        if op.kind == Kind::Spin && here.signals > 0 {
            here.signals -= 1;
            op.kind = Kind::Kernel;
        }
        here.push(op);
        self.choose(now);
        self.instant(done);
    }

    /// Time of the next change without outside action. Valid after `advance`.
    pub fn next(&self) -> Option<u64> {
        let context = &self.contexts[self.current?];
        let op = &context.queue[context.runs()?];
        let end = if op.kind == Kind::Spin { u64::MAX } else { self.clock + op.left };
        let rotate = if self.others() { self.slice_end.max(self.clock) } else { u64::MAX };
        Some(end.min(rotate)).filter(|&at| at != u64::MAX)
    }

    fn others(&self) -> bool {
        let current = self.current;
        self.contexts.iter().enumerate().any(|(at, context)| Some(at) != current && !context.queue.is_empty())
    }

    pub fn advance(&mut self, now: u64, done: &mut Vec<Done>) {
        loop {
            self.instant(done);
            if self.current.is_some() && self.clock >= self.slice_end && self.clock <= now && self.others() {
                self.current = None;
                self.choose(self.clock);
                continue;
            }
            let Some(current) = self.current else {
                self.clock = self.clock.max(now);
                return;
            };
            if self.clock >= now {
                return;
            }
            let end = self.next().map_or(now, |at| at.min(now));
            let context = &mut self.contexts[current];
            context.use_time(self.clock, end);
            let runs = context.runs().unwrap_or(0);
            let op = &mut context.queue[runs];
            if op.kind != Kind::Spin {
                op.left = op.left.saturating_sub(end - self.clock);
            }
            self.clock = end;
        }
    }

    /// Completes operations that take no more time, and hands the device over if the context has no work left.
    fn instant(&mut self, done: &mut Vec<Done>) {
        while let Some(current) = self.current {
            let context = &mut self.contexts[current];
            let Some(runs) = context.runs() else {
                self.current = None;
                self.choose(self.clock);
                continue;
            };
            let op = context.queue[runs];
            if op.kind == Kind::Spin || op.left > 0 {
                return;
            }
            context.take(runs);
            done.push(Done { context: current, kind: op.kind, at: self.clock });
            if op.kind == Kind::Release
                && let Some(spin) = context.queue.iter_mut().find(|op| op.kind == Kind::Spin)
            {
                (spin.kind, spin.left) = (Kind::Kernel, 0);
            }
        }
    }

    /// Gives the device to the next context in turn if no context has it.
    fn choose(&mut self, now: u64) {
        if self.current.is_some() {
            return;
        }
        self.clock = self.clock.max(now);
        let count = self.contexts.len();
        let from = self.last.map_or(0, |last| last + 1);
        let next = (0..count).map(|n| (from + n) % count).find(|&at| !self.contexts[at].queue.is_empty());
        let Some(next) = next else { return };
        if self.last.is_some_and(|last| last != next) {
            self.clock += self.switch;
            self.switched += self.switch;
        }
        (self.current, self.last) = (Some(next), Some(next));
        self.slice_end = self.clock + self.slice;
    }
}
