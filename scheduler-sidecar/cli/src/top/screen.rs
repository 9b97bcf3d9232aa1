//! Takes the terminal for the view, and restores it in every case.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// True while the terminal is taken.
static TERMINAL_TAKEN: AtomicBool = AtomicBool::new(false);
/// True after a panic in any thread. Its message is on the terminal, which is then not taken again.
static THREAD_PANICKED: AtomicBool = AtomicBool::new(false);

/// The taken terminal; restored on drop, and before a panic prints its message.
pub struct TerminalScreen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

impl TerminalScreen {
    /// Takes the terminal: no echo, single keys, the alternate screen.
    ///
    /// # Errors
    /// There is no terminal, or it is gone.
    pub fn take_terminal() -> io::Result<Self> {
        static PANIC_HOOK: Once = Once::new();
        PANIC_HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                THREAD_PANICKED.store(true, Ordering::SeqCst);
                give_back();
                before(info);
            }));
        });
        enter_raw_mode()?;
        // From here on, dropping this value restores the terminal.
        fresh_terminal().map(Self).inspect_err(|_| give_back())
    }

    /// Takes the terminal again after [`give_back`].
    ///
    /// # Errors
    /// As [`Self::take_terminal`].
    pub fn take_again(&mut self) -> io::Result<()> {
        enter_raw_mode()?;
        self.0 = fresh_terminal()?;
        Ok(())
    }

    /// Draws the view.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(view).map(|_| ())
    }

    /// Returns true if a thread has panicked since the terminal was taken.
    #[must_use]
    pub fn has_panicked() -> bool {
        THREAD_PANICKED.load(Ordering::SeqCst)
    }
}

fn enter_raw_mode() -> io::Result<()> {
    // Set the flag first, so that a failure halfway is undone too.
    TERMINAL_TAKEN.store(true, Ordering::SeqCst);
    let taken = enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All)));
    taken.inspect_err(|_| give_back())
}

/// Creates a terminal that redraws everything. It sends no queries, which not every terminal answers.
fn fresh_terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout())))
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal; does nothing if it is not taken.
pub fn give_back() {
    if TERMINAL_TAKEN.swap(false, Ordering::SeqCst) {
        // If restoring the terminal fails, nobody is left to be informed.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}
