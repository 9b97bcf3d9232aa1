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
static TAKEN: AtomicBool = AtomicBool::new(false);
/// True after a panic in any thread. Its message is on the terminal, which is then not taken again.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// The taken terminal; restored on drop, and before a panic prints its message.
pub struct Screen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

impl Screen {
    /// Takes the terminal: no echo, single keys, the alternate screen.
    ///
    /// # Errors
    /// There is no terminal, or it is gone.
    pub fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                PANICKED.store(true, Ordering::SeqCst);
                give_back();
                before(info);
            }));
        });
        take()?;
        // From here on, dropping this value restores the terminal.
        fresh().map(Self).inspect_err(|_| give_back())
    }

    /// Takes the terminal again after [`give_back`].
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn again(&mut self) -> io::Result<()> {
        take()?;
        self.0 = fresh()?;
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
    pub fn panicked() -> bool {
        PANICKED.load(Ordering::SeqCst)
    }
}

fn take() -> io::Result<()> {
    // Set the flag first, so that a failure halfway is undone too.
    TAKEN.store(true, Ordering::SeqCst);
    let taken = enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All)));
    taken.inspect_err(|_| give_back())
}

/// Creates a terminal that redraws everything. It sends no queries, which not every terminal answers.
fn fresh() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout())))
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal; does nothing if it is not taken.
pub fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // If restoring the terminal fails, nobody is left to be informed.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}
