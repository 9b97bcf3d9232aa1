//! The terminal: taken for the view, and given back as it was, whatever happens.

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

/// Is the terminal ours?
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Has some thread panicked meanwhile? Its words stand on the terminal, which is not taken again then.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// The terminal while it is taken; given back when this is dropped, and before a panic says its words.
pub struct Screen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

impl Screen {
    /// Takes it: no echo, keys one by one, the alternate screen.
    ///
    /// # Errors
    /// It is none, or is gone.
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
        // Whose drop gives it back from here on.
        fresh().map(Self).inspect_err(|_| give_back())
    }

    /// Takes it again after [`give_back`].
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn again(&mut self) -> io::Result<()> {
        take()?;
        self.0 = fresh()?;
        Ok(())
    }

    /// Draws.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(view).map(|_| ())
    }

    /// Has a thread panicked since the terminal was taken?
    #[must_use]
    pub fn panicked() -> bool {
        PANICKED.load(Ordering::SeqCst)
    }
}

fn take() -> io::Result<()> {
    // Before it is half taken: what fails from here on is undone as well.
    TAKEN.store(true, Ordering::SeqCst);
    let taken = enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All)));
    taken.inspect_err(|_| give_back())
}

/// A terminal of which nothing is known, so that all of it is drawn. It is asked nothing: not every one would answer.
fn fresh() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout())))
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back as it was; does nothing if it is not taken.
pub fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Nobody is left to be told if that fails.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}
