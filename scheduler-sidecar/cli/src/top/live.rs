//! The main loop: takes keys, answers and signals, and draws the view.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::feed;
use super::screen::{self, Screen};
use super::state::{Effect, Input, Top, Wishes};
use super::view;
use super::view::theme::Theme;
use crate::ask::Where;
use vgpu_output::say::{FINDINGS, Failure};

/// Longest time until a signal is noticed.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the view until the user quits.
///
/// # Errors
/// [`Failure`]: the daemon does not answer at the start, or the terminal is gone.
pub fn run(daemon: &Where, wishes: &Wishes) -> Result<ExitCode, Failure> {
    let (socket, began) = (daemon.path(), Instant::now());
    // Ask before taking the terminal, so that an error message stays visible.
    let (first, wishes) = feed::first(&socket, began, wishes)?;
    let (to, inputs) = mpsc::channel();
    let orders = feed::start(socket, (&first, began), wishes.interval, to.clone()).map_err(broken)?;
    let ended = signals().map_err(broken)?;
    let theme = Theme::of(|name| std::env::var(name).ok());
    let mut top = Top::new(first, wishes);
    let mut screen = Screen::take().map_err(broken)?;
    let (columns, rows) = terminal::size().unwrap_or((80, 24));
    top.update(Input::Size(columns, rows));
    keys(to).map_err(broken)?;
    let shown = show(&mut top, &theme, &mut screen, &inputs, &orders, &ended);
    drop(screen);
    if Screen::panicked() {
        return Err(Failure::new(FINDINGS, "the view ended by a fault of its own, which is told above"));
    }
    match ended.load(Ordering::SeqCst) {
        0 => shown.map(|()| ExitCode::SUCCESS).map_err(broken),
        signal => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(FINDINGS))),
    }
}

fn broken(why: io::Error) -> Failure {
    Failure::new(FINDINGS, format!("the terminal cannot be used: {why}"))
}

fn show(
    top: &mut Top,
    theme: &Theme,
    screen: &mut Screen,
    inputs: &Receiver<Input>,
    orders: &Sender<Effect>,
    ended: &AtomicUsize,
) -> io::Result<()> {
    screen.draw(|frame| view::draw(top, theme, frame))?;
    loop {
        let first = match inputs.recv_timeout(GLANCE) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if ended.load(Ordering::SeqCst) != 0 || Screen::panicked() {
            return Ok(());
        }
        let Some(first) = first else { continue };
        // Draw once for all pending inputs.
        for input in std::iter::once(first).chain(inputs.try_iter()) {
            for effect in top.update(input) {
                match effect {
                    Effect::Quit => return Ok(()),
                    Effect::Suspend => {
                        screen::give_back();
                        kill_process(getpid(), Signal::TSTP)?;
                        screen.again()?;
                    }
                    // A feed that ended has panicked, which the loop checks above.
                    order => drop(orders.send(order)),
                }
            }
        }
        screen.draw(|frame| view::draw(top, theme, frame))?;
    }
}

/// Starts a thread that reads keys. It is never joined, since only a key wakes it; it ends with the process.
fn keys(to: Sender<Input>) -> io::Result<()> {
    let read = move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
                Ok(Event::Resize(columns, rows)) => Input::Size(columns, rows),
                Ok(_) => continue,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Input::Gone,
            };
            let over = matches!(input, Input::Gone);
            if to.send(input).is_err() || over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("vgpu-top-keys".into()).spawn(read).map(drop)
}

/// Returns a cell that receives the number of a signal that ends the view.
fn signals() -> io::Result<Arc<AtomicUsize>> {
    let ended = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&ended), number)?;
    }
    Ok(ended)
}
