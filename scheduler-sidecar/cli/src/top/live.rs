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
use super::screen::{self, TerminalScreen};
use super::state::{TopEffect, TopInput, TopOptions, TopState};
use super::view;
use super::view::theme::ColourTheme;
use crate::ask::DaemonAddress;
use vgpu_output::say::{EXIT_FINDINGS, Failure};

/// Longest time until a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// Shows the view until the user quits.
///
/// # Errors
/// [`Failure`]: the daemon does not answer at the start, or the terminal is gone.
pub fn run(daemon: &DaemonAddress, wishes: &TopOptions) -> Result<ExitCode, Failure> {
    let (socket, began) = (daemon.socket_path(), Instant::now());
    // Ask before taking the terminal, so that an error message stays visible.
    let (first, wishes) = feed::first_look(&socket, began, wishes)?;
    let (to, inputs) = mpsc::channel();
    let orders = feed::start(socket, (&first, began), wishes.interval, to.clone()).map_err(terminal_failure)?;
    let ended = register_signals().map_err(terminal_failure)?;
    let theme = ColourTheme::from_environment(|name| std::env::var(name).ok());
    let mut top = TopState::new(first, wishes);
    let mut screen = TerminalScreen::take_terminal().map_err(terminal_failure)?;
    let (columns, rows) = terminal::size().unwrap_or((80, 24));
    top.update(TopInput::Size(columns, rows));
    spawn_key_reader(to).map_err(terminal_failure)?;
    let shown = show_live(&mut top, &theme, &mut screen, &inputs, &orders, &ended);
    drop(screen);
    if TerminalScreen::has_panicked() {
        return Err(Failure::new(EXIT_FINDINGS, "the view ended because of its own error, shown above"));
    }
    match ended.load(Ordering::SeqCst) {
        0 => shown.map(|()| ExitCode::SUCCESS).map_err(terminal_failure),
        signal => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(EXIT_FINDINGS))),
    }
}

fn terminal_failure(why: io::Error) -> Failure {
    Failure::new(EXIT_FINDINGS, format!("the terminal cannot be used: {why}"))
}

fn show_live(
    top: &mut TopState,
    theme: &ColourTheme,
    screen: &mut TerminalScreen,
    inputs: &Receiver<TopInput>,
    orders: &Sender<TopEffect>,
    ended: &AtomicUsize,
) -> io::Result<()> {
    screen.draw(|frame| view::draw(top, theme, frame))?;
    loop {
        let first = match inputs.recv_timeout(SIGNAL_POLL) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if ended.load(Ordering::SeqCst) != 0 || TerminalScreen::has_panicked() {
            return Ok(());
        }
        let Some(first) = first else { continue };
        // Draw once for all pending inputs.
        for input in std::iter::once(first).chain(inputs.try_iter()) {
            for effect in top.update(input) {
                match effect {
                    TopEffect::Quit => return Ok(()),
                    TopEffect::Suspend => {
                        screen::give_back();
                        kill_process(getpid(), Signal::TSTP)?;
                        screen.take_again()?;
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
fn spawn_key_reader(to: Sender<TopInput>) -> io::Result<()> {
    let read = move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => TopInput::Key(key),
                Ok(Event::Resize(columns, rows)) => TopInput::Size(columns, rows),
                Ok(_) => continue,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => TopInput::Gone,
            };
            let over = matches!(input, TopInput::Gone);
            if to.send(input).is_err() || over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("vgpu-top-keys".into()).spawn(read).map(drop)
}

/// Returns a cell that receives the number of a signal that ends the view.
fn register_signals() -> io::Result<Arc<AtomicUsize>> {
    let ended = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&ended), number)?;
    }
    Ok(ended)
}
