//! The reader's position in the text, its tokens, and its errors.

use crate::graph::ValueId;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// A text that is not a graph, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ParseErrorKind {
    #[error("expected {expected}, found {found}")]
    Expected { expected: String, found: String },
    #[error("{0} is not a number that fits here")]
    Number(String),
    #[error("bad JSON: {0}")]
    Json(String),
    #[error("unknown element type `{0}`")]
    UnknownType(String),
    #[error("unknown op `{0}`; `planc ops` lists all")]
    UnknownOp(String),
    #[error("attributes do not fit `{op}`: {why}")]
    Attributes { op: String, why: String },
    #[error("{0} is not defined above")]
    Undefined(ValueId),
    #[error("{0} is defined twice")]
    Redefined(ValueId),
    #[error("{0} is missing: ids must be numbered from %0 without gaps")]
    Gap(ValueId),
    #[error("{defs} values are defined, but {types} types are given")]
    TypeCount { defs: usize, types: usize },
    #[error("elements: {0}")]
    Tensor(String),
    #[error("a step has at least one micro-batch, and fewer than 2^32")]
    MicroBatches,
}

/// A position in a text.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut cursor = Self { text, at: 0 };
        cursor.skip_space();
        cursor
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Moves past `bytes` bytes of token and the space behind it.
    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        self.skip_space();
    }

    fn skip_space(&mut self) {
        loop {
            self.at += self.rest().len() - self.rest().trim_start().len();
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Where the next token starts.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Whether the next token starts like this.
    pub(super) fn looking_at(&self, start: &str) -> bool {
        self.rest().starts_with(start)
    }

    pub(super) fn error(&self, kind: ParseErrorKind) -> ParseError {
        self.error_at(self.at, kind)
    }

    pub(super) fn error_at(&self, offset: usize, kind: ParseErrorKind) -> ParseError {
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            kind,
        }
    }

    pub(super) fn expected(&self, what: &str) -> ParseError {
        let found = match self.rest().chars().next() {
            None => "the end of the text".to_string(),
            Some(c) if is_word(c) => format!("`{}`", self.word_text()),
            Some(c) => format!("{c:?}"),
        };
        self.error(ParseErrorKind::Expected { expected: what.to_string(), found })
    }

    /// Takes this punctuation if it is next.
    pub(super) fn take(&mut self, punctuation: &str) -> bool {
        let found = self.looking_at(punctuation);
        if found {
            self.advance(punctuation.len());
        }
        found
    }

    pub(super) fn expect(&mut self, punctuation: &str) -> Result<(), ParseError> {
        if self.take(punctuation) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{punctuation}`")))
        }
    }

    fn word_text(&self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]
    }

    /// Takes this whole word if it is next.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.word_text() == word;
        if found {
            self.advance(word.len());
        }
        found
    }

    /// A word of letters, digits and underscores.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let word = self.word_text();
        if word.is_empty() {
            return Err(self.expected(what));
        }
        self.advance(word.len());
        Ok(word)
    }

    /// An unsigned number.
    pub(super) fn unsigned<T: std::str::FromStr>(&mut self) -> Result<T, ParseError> {
        let text = self.word_text();
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.expected("a number"));
        }
        let number =
            text.parse().map_err(|_| self.error(ParseErrorKind::Number(text.to_string())))?;
        self.advance(text.len());
        Ok(number)
    }

    /// The characters of a number or a boolean, to be read once its type is known.
    pub(super) fn number_text(&mut self) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let end = rest.find(|c| !is_word(c) && !"+-.".contains(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a number"));
        }
        self.advance(end);
        Ok(&rest[..end])
    }

    pub(super) fn id(&mut self) -> Result<ValueId, ParseError> {
        if !self.looking_at("%") {
            return Err(self.expected("a value such as `%0`"));
        }
        // No space between the sign and its number.
        self.at += 1;
        self.unsigned().map(ValueId)
    }

    pub(super) fn string(&mut self) -> Result<String, ParseError> {
        if !self.looking_at("\"") {
            return Err(self.expected("a string"));
        }
        self.json()
    }

    /// The JSON value that comes next.
    pub(super) fn json<T: DeserializeOwned>(&mut self) -> Result<T, ParseError> {
        let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter::<T>();
        match stream.next() {
            Some(Ok(value)) => {
                let bytes = stream.byte_offset();
                self.advance(bytes);
                Ok(value)
            }
            Some(Err(e)) => Err(self.error(ParseErrorKind::Json(e.to_string()))),
            None => Err(self.expected("JSON")),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
