//! The terminal: taken over, drawn on, and given back as it was, also by a panic or when the process
//! is ended in the middle of drawing.

use std::fs::File;
use std::io::{self, Stdout, Write};
use std::os::fd::AsFd as _;
use std::sync::Once;

use anyhow::{Context, Result};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use super::frame::Line;
use super::table::Look;

/// Columns and lines of a terminal that does not say.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// The terminal while it is ours.
pub struct Screen {
    out: Stdout,
    colours: bool,
}

impl Screen {
    /// Takes it over. Whatever is written to it meanwhile is gone with it.
    ///
    /// # Errors
    /// It is no terminal that can be drawn on.
    pub fn enter() -> Result<Self> {
        give_back_on_panic();
        terminal::enable_raw_mode().context("take over the terminal")?;
        // From here on dropping it gives the terminal back.
        let mut screen = Self {
            out: io::stdout(),
            colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        execute!(screen.out, EnterAlternateScreen, Hide, DisableLineWrap)
            .context("take over the terminal")?;
        Ok(screen)
    }

    /// Columns and lines.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn size(&self) -> Result<(u16, u16)> {
        match terminal::size().context("size of the terminal")? {
            (0, _) | (_, 0) => Ok(USUAL_SIZE),
            size => Ok(size),
        }
    }

    /// Draws a frame over the one before.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn show(&mut self, lines: &[Line]) -> Result<()> {
        self.draw(lines).context("draw on the terminal")
    }

    fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let out = &mut self.out;
        queue!(out, MoveTo(0, 0))?;
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                queue!(out, Print("\r\n"))?;
            }
            for (text, look) in line.pieces() {
                set(out, *look, self.colours)?;
                queue!(out, Print(text))?;
                queue!(out, SetAttribute(Attribute::Reset), ResetColor)?;
            }
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    /// Gives it back.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn leave(self) -> Result<()> {
        give_back().context("give the terminal back")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // After `leave` this changes nothing; on the way of an error that error is what is told.
        drop(give_back());
    }
}

fn set(out: &mut Stdout, look: Look, colours: bool) -> io::Result<()> {
    let colour = match look {
        Look::Warning => Some(Color::Yellow),
        Look::Bad => Some(Color::Red),
        _ => None,
    };
    if let Some(colour) = colour.filter(|_| colours) {
        queue!(out, SetForegroundColor(colour))?;
    }
    let attribute = match look {
        Look::Plain => return Ok(()),
        Look::Faint => Attribute::Dim,
        Look::Chosen => Attribute::Reverse,
        Look::Strong | Look::Warning | Look::Bad => Attribute::Bold,
    };
    queue!(out, SetAttribute(attribute))
}

fn give_back() -> io::Result<()> {
    execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen)?;
    terminal::disable_raw_mode()
}

/// Gives the terminal back while another thread may be drawing on it, and will never go on: that one
/// may hold the lock of standard output.
pub fn give_back_in_haste() {
    // The process ends: there is nowhere left to say that some of it failed.
    drop(terminal::disable_raw_mode());
    let Ok(copy) = io::stdout().as_fd().try_clone_to_owned() else {
        return;
    };
    let mut out = File::from(copy);
    drop(execute!(out, EnableLineWrap, Show, LeaveAlternateScreen));
}

/// What a panic says is written before the stack is unwound: the terminal must be back by then.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // There is nowhere left to say that this failed.
            drop(give_back());
            before(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[ignore = "needs a terminal; a_panic_gives_the_terminal_back_before_it_is_told runs it in one"]
    #[should_panic(expected = "on purpose")]
    fn a_panic_with_the_screen_taken_over() {
        let mut screen = Screen::enter().expect("a terminal");
        screen.show(&[]).expect("a terminal");
        panic!("on purpose");
    }

    #[test]
    #[ignore = "needs a terminal; haste_gives_the_terminal_back_from_who_draws runs it in one"]
    fn a_hasty_end_with_the_screen_taken_over() {
        let _screen = Screen::enter().expect("a terminal");
        // As a thread that draws, and will not go on.
        let _drawing = io::stdout().lock();
        give_back_in_haste();
        std::process::exit(0);
    }

    /// What a terminal gets from one of the tests that need one, and then how it is set; `None` where
    /// there is no `script` to make one.
    fn in_a_terminal(test: &str) -> Option<String> {
        let module = module_path!().split_once("::").expect("inside a crate").1;
        let command = format!(
            "{} --exact {module}::{test} --ignored --nocapture; stty -a",
            std::env::current_exe().expect("this test").display()
        );
        let mut script = Command::new("script");
        let run = script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        let Ok(output) = run.env("TERM", "xterm").output() else {
            println!("skipped: script is not installed (Debian: bsdutils)");
            return None;
        };
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn haste_gives_the_terminal_back_from_who_draws() {
        let Some(written) = in_a_terminal("a_hasty_end_with_the_screen_taken_over") else {
            return;
        };
        let at = |text: &str| written.find(text).unwrap_or_else(|| panic!("{written:?}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"), "{written:?}");
        assert!(at("\x1b[?1049l") < at(" icanon"), "{written:?}");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        let Some(written) = in_a_terminal("a_panic_with_the_screen_taken_over") else {
            return;
        };
        let at = |text: &str| {
            let found = written.find(text);
            found.unwrap_or_else(|| panic!("{text:?} in {written:?}"))
        };
        let (taken, given_back) = (at("\x1b[?1049h"), at("\x1b[?1049l"));
        assert!(taken < given_back, "{written:?}");
        assert!(given_back < at("on purpose"), "{written:?}");
        assert!(
            at("test result: ok. 1 passed") < at(" icanon"),
            "{written:?}"
        );
    }
}
