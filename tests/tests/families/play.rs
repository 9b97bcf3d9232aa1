//! Plays steps: sends commands, reads answers, passes memory between processes, and compares after each step.

use crate::steps::{Act, PROCESSES, Step, THREADS, alone};
use crate::world::{Body, Busy, Effect, Order, Process, SLAB, Thing, World, grains, slabs};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;

const OUT_OF_MEMORY: i64 = 2;

impl World {
    fn apply(&mut self, order: &Order, words: &[u64]) {
        let process = order.process;
        match &order.effect {
            Effect::Make(number, thing) => {
                let mut thing = thing.clone();
                if let Some((bytes, exportable)) = order.body {
                    self.bodies.push(Body { bytes, exportable, shared: false, exporter: None });
                    thing = Thing::Handle { body: self.bodies.len() - 1 };
                }
                if let (Thing::Own { bytes, at, .. }, [address, pitch @ ..]) = (&mut thing, words) {
                    *at = *address;
                    // The size is the number of rows times the returned pitch.
                    pitch.iter().for_each(|pitch| *bytes = grains(*bytes * pitch));
                }
                self.processes[process].things.insert(*number, thing);
            }
            Effect::End(number) => {
                for inside in self.inside(process, *number) {
                    self.processes[process].things.remove(&inside);
                    assert_eq!(self.processes[process].ask(0, &format!("forget {inside}")).0, 0);
                }
                self.processes[process].things.remove(number);
            }
            Effect::Map { range, at, body, chunks } => {
                if let Some(Thing::Range { chunks: there, next }) = self.processes[process].things.get_mut(range) {
                    *next += 1;
                    for c in *at..at + chunks {
                        there[c as usize] = Some((*body, *next));
                    }
                }
            }
            Effect::Unmap { range, from, to } => {
                if let Some(Thing::Range { chunks, .. }) = self.processes[process].things.get_mut(range) {
                    for c in *from..*to {
                        chunks[c as usize] = None;
                    }
                }
            }
            Effect::Nothing => {}
        }
    }

    /// Sends all commands at once and reads all answers. An out-of-memory answer must be true.
    fn perform(&mut self, orders: &[(Act, Order)]) -> Result<(), String> {
        let before = self.expected()?;
        for (_, order) in orders {
            let _ = writeln!(self.story, "  {}: {}", order.process, order.line);
            self.processes[order.process].member.tell(&order.line);
        }
        let asked: u64 = orders.iter().map(|(_, order)| order.cost).fold(0, u64::saturating_add);
        // Answers of one process arrive in any order; each names its thread.
        let mut answers: Vec<VecDeque<(usize, i64, Vec<u64>)>> = vec![VecDeque::new(); PROCESSES];
        for (_, order) in orders {
            let answer = self.processes[order.process].answer();
            answers[order.process].push_back(answer);
        }
        for (act, order) in orders {
            let queue = &mut answers[order.process];
            let at = queue.iter().position(|answer| answer.0 == order.thread);
            let at = at.ok_or_else(|| format!("no answer of thread {} to {}", order.thread, order.line))?;
            let (_, code, words) = queue.remove(at).expect("it was found");
            let _ = writeln!(self.story, "  {}: {} -> {code} {words:?}", order.process, order.line);
            match code {
                0 => {
                    *self.granted.entry(*act).or_insert(0) += 1;
                    self.apply(order, &words);
                }
                OUT_OF_MEMORY => {
                    self.refused += 1;
                    if before.saturating_add(asked) <= self.limit {
                        return Err(format!(
                            "{} was refused: {before} in use, {asked} asked for by all, limit {}",
                            order.line, self.limit
                        ));
                    }
                }
                code => return Err(format!("{} answered {code}", order.line)),
            }
        }
        Ok(())
    }

    /// Steps that pass memory between two processes, and kills. They run one at a time.
    fn exchange(&mut self, step: &Step) -> Result<bool, String> {
        let (from, thread) = (step.process, step.thread);
        let to = (from + 1 + step.b as usize % (PROCESSES - 1)) % PROCESSES;
        let nobody = Busy::new();
        match step.act {
            Act::Kill => {
                let _ = writeln!(self.story, "  {from}: killed");
                self.processes[from].member.kill();
                self.processes[from] = Process::start(&self.lab, from, THREADS);
                self.settled_after_death()?;
                Ok(true)
            }
            Act::Send | Act::External => {
                let exportable =
                    |thing: &Thing| matches!(thing, Thing::Handle { body } if self.bodies[*body].exportable);
                let Some(handle) = self.pick(from, step.a, &nobody, exportable) else { return Ok(false) };
                let Thing::Handle { body } = *self.thing(from, handle) else { return Ok(false) };
                let bytes = self.bodies[body].bytes;
                let sent = self.told(from, thread, &format!("send {handle} {to}"))?;
                if sent != (0, vec![]) {
                    return Err(format!("send answered {sent:?}"));
                }
                let number = self.number(to);
                let (verb, thing) = if step.act == Act::Send {
                    ("receive", Thing::Handle { body })
                } else {
                    ("external", Thing::Opened { body })
                };
                let got = self.told(to, thread, &format!("{verb} {number} {bytes}"))?;
                if got.0 != 0 {
                    return Err(format!("{verb} answered {got:?}"));
                }
                *self.granted.entry(step.act).or_insert(0) += 1;
                self.bodies[body].shared = true;
                self.processes[to].things.insert(number, thing);
                Ok(true)
            }
            Act::Offer => {
                // Whole slabs only: a part of a slab that others hold too is charged differently, tested in `share`.
                let plain = |thing: &Thing| matches!(thing, Thing::Own { plain: true, bytes, .. } if *bytes >= SLAB);
                let Some(number) = self.pick(from, step.a, &nobody, plain) else { return Ok(false) };
                let Thing::Own { bytes, .. } = *self.thing(from, number) else { return Ok(false) };
                self.processes[from].member.tell(&format!("{thread} offer {number}"));
                let line = self.processes[from].member.line();
                let words: Vec<&str> = line.split(' ').collect();
                let [_, "0", token] = words[..] else { return Err(format!("offer answered {line}")) };
                let opened = self.number(to);
                let got = self.told(to, thread, &format!("open {opened} {token}"))?;
                if got.0 != 0 {
                    return Err(format!("open answered {got:?}"));
                }
                *self.granted.entry(step.act).or_insert(0) += 1;
                self.bodies.push(Body { bytes: slabs(bytes), exportable: false, shared: true, exporter: Some(from) });
                let body = self.bodies.len() - 1;
                // From now on the body lives while one of the two processes holds it.
                self.processes[from].things.insert(number, Thing::Opened { body });
                self.processes[to].things.insert(opened, Thing::Opened { body });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub fn play(&mut self, steps: &[Step]) -> Result<(), String> {
        let mut at = 0;
        while at < steps.len() {
            if alone(steps[at].act) {
                if self.exchange(&steps[at])? {
                    self.check()?;
                }
                at += 1;
                continue;
            }
            let (mut orders, mut busy, mut threads) = (Vec::new(), Busy::new(), BTreeSet::new());
            while at < steps.len() && (orders.is_empty() || steps[at].together) {
                let step = &steps[at];
                // The sizes of contexts and modules are measured, and exact only without concurrent work.
                let measured = matches!(step.act, Act::Context | Act::Module);
                if alone(step.act) || measured && !orders.is_empty() {
                    break;
                }
                at += 1;
                if threads.contains(&(step.process, step.thread)) {
                    continue;
                }
                if let Some(order) = self.order(step, &mut busy) {
                    threads.insert((step.process, step.thread));
                    orders.push((step.act, order));
                }
                if measured {
                    break;
                }
            }
            self.perform(&orders)?;
            self.check()?;
        }
        // Ends everything, after which nothing may be left.
        for process in 0..PROCESSES {
            let mut order: Vec<u64> = self.processes[process].things.keys().copied().collect();
            // Pools go last because they must be empty, then contexts, whose end frees their memory.
            order.sort_by_key(|number| match self.thing(process, *number) {
                Thing::Pool => 1,
                Thing::Context => 2,
                _ => 0,
            });
            for number in order {
                if self.processes[process].things.contains_key(&number) {
                    let ended = self.told(process, 0, &format!("end {number}"))?;
                    if ended.0 != 0 {
                        return Err(format!("the end of {number} in {process} answered {ended:?}"));
                    }
                    let end = Effect::End(number);
                    let line = String::new();
                    self.apply(&Order { process, thread: 0, line, effect: end, cost: 0, body: None }, &[]);
                }
            }
        }
        self.check()
    }
}
