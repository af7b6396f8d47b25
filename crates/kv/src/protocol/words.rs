//! Words of a command line: what one or more spaces part.
//!
//! Only the space parts words; tabs and other control characters belong to them, as in memcached.

/// Words that memcached looks at in one command; `get` alone goes on after them.
pub(super) const WORDS_MAX: usize = 23;

/// The words of a line, one after another. Cheap to copy: it starts over.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// The words of a text.
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The text from the next word on, or from the space before it.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.rest.iter().position(|byte| *byte != b' ')?;
        let rest = &self.rest[start..];
        let end = rest.iter().position(|byte| *byte == b' ');
        let (word, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.rest = rest;
        Some(word)
    }
}

/// A command line with its first words found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    /// `text` is the line without its end; what follows a NUL is not looked at.
    pub(super) fn new(text: &'a [u8]) -> Self {
        let end = text.iter().position(|byte| *byte == 0);
        let text = &text[..end.unwrap_or(text.len())];
        let mut words = [&[][..]; WORDS_MAX];
        let mut count = 0;
        for (place, word) in words.iter_mut().zip(Words::new(text)) {
            *place = word;
            count += 1;
        }
        Self { words, count, text }
    }

    /// Words found, at most [`WORDS_MAX`].
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The word at `index`; nothing where there is none.
    pub(super) fn word(&self, index: usize) -> &'a [u8] {
        self.words.get(index).copied().unwrap_or_default()
    }

    /// The words found, from `index`.
    pub(super) fn from(&self, index: usize) -> &[&'a [u8]] {
        &self.words[index.min(self.count)..self.count]
    }

    /// All words from `index`, also those after the first [`WORDS_MAX`].
    pub(super) fn all_from(&self, index: usize) -> Words<'a> {
        let mut words = Words::new(self.text);
        for _ in 0..index {
            words.next();
        }
        words
    }

    /// Whether the last word found asks for no reply.
    pub(super) fn ends_with_noreply(&self) -> bool {
        self.count > 0 && self.word(self.count - 1) == b"noreply"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parted_by_spaces_alone() {
        let line = Line::new(b"  get a\tb   c ");
        assert_eq!(line.count(), 3);
        assert_eq!(line.word(1), b"a\tb");
        assert_eq!(line.word(9), b"");
    }

    #[test]
    fn what_follows_a_nul_is_not_looked_at() {
        assert_eq!(Line::new(b"get a\0b c").count(), 2);
    }

    #[test]
    fn all_words_of_a_long_line_are_there() {
        let text = "k ".repeat(100);
        let line = Line::new(text.as_bytes());
        assert_eq!(line.count(), WORDS_MAX);
        assert_eq!(line.all_from(1).count(), 99);
    }
}
