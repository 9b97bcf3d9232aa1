//! Reader and writer of flat JSON objects, one per line of the protocol.
//!
//! It reads every object that the JSON standard allows. It keeps strings, non-negative integers, numbers with one
//! decimal, booleans and nulls; it checks all other values and skips them. [`super`] defines the keys.
//!
//! It accepts the lines that serde_json accepts, with three differences. A key must not appear twice, nesting is
//! bounded, and a number is never too large to skip. The program tests/wire_json.rs compares the two in both directions
//! and on arbitrary bytes.

use super::{MAX_DEPTH, MAX_LINE, WireError};
use crate::units::share::Share;

/// A value of an object, as far as this protocol uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonValue {
    /// A string, its escapes resolved.
    String(String),
    /// An integer from 0 to 2^64 - 1, written without fraction or exponent.
    Number(u64),
    /// A non-negative number with exactly one decimal, times ten: `12.5` is 125.
    Tenths(u64),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
    /// A negative, longer or larger number, an array or an object: valid, but skipped.
    Skipped,
}

/// The keys and values of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonObject {
    entries: Vec<(String, JsonValue)>,
}

impl JsonObject {
    /// Reads one object; white space around it, a newline included, is allowed.
    ///
    /// # Errors
    /// [`WireError::TooLong`], [`WireError::NotUtf8`], [`WireError::Syntax`], [`WireError::TooDeep`],
    /// [`WireError::TooLong`], [`WireError::NotUtf8`], [`WireError::Syntax`], [`WireError::TooDeep`],
    /// [`WireError::DuplicateKey`] (only among this object's keys, not inside skipped values).
    pub fn parse(line: &[u8]) -> Result<Self, WireError> {
        if line.len() > MAX_LINE {
            return Err(WireError::TooLong);
        }
        let text = std::str::from_utf8(line).map_err(|_| WireError::NotUtf8)?;
        let mut reader = JsonReader { text, at: 0 };
        reader.skip_space();
        reader.expect_byte(b'{', "'{'")?;
        let mut entries: Vec<(String, JsonValue)> = Vec::new();
        reader.read_members(|reader| {
            let key = reader.read_key()?;
            let value = reader.read_value(MAX_DEPTH)?;
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(WireError::DuplicateKey(key));
            }
            entries.push((key, value));
            Ok(())
        })?;
        reader.skip_space();
        if reader.at != line.len() {
            return Err(reader.syntax_error("the end of the line"));
        }
        Ok(Self { entries })
    }

    /// The value of a key; `None`: no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&JsonValue> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Every key with its value, in the order of the line.
    pub fn all_entries(&self) -> impl Iterator<Item = (&str, &JsonValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A string; `None` if absent or null.
    ///
    /// # Errors
    /// [`WireError::WrongKind`] if it is anything else.
    pub fn string_value(&self, key: &'static str) -> Result<Option<&str>, WireError> {
        match self.get(key) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::String(text)) => Ok(Some(text)),
            Some(_) => Err(WireError::WrongKind { key, expected: "a string" }),
        }
    }

    /// A non-negative integer; `None` if absent or null.
    ///
    /// # Errors
    /// [`WireError::WrongKind`] if it is anything else.
    pub fn number_value(&self, key: &'static str) -> Result<Option<u64>, WireError> {
        match self.get(key) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::Number(number)) => Ok(Some(*number)),
            Some(_) => Err(WireError::WrongKind { key, expected: "an integer from 0 to 18446744073709551615" }),
        }
    }

    /// A non-negative number with at most one decimal, times ten; `None` if absent or null.
    ///
    /// # Errors
    /// [`WireError::WrongKind`] if it is anything else, or too large to multiply by ten.
    pub fn tenths_value(&self, key: &'static str) -> Result<Option<u64>, WireError> {
        let tenths = match self.get(key) {
            None | Some(JsonValue::Null) => return Ok(None),
            Some(JsonValue::Number(number)) => number.checked_mul(10),
            Some(JsonValue::Tenths(tenths)) => Some(*tenths),
            Some(_) => None,
        };
        tenths.map(Some).ok_or(WireError::WrongKind { key, expected: "a number with at most one decimal" })
    }

    /// A boolean; `None` if absent or null.
    ///
    /// # Errors
    /// [`WireError::WrongKind`] if it is anything else.
    pub fn boolean_value(&self, key: &'static str) -> Result<Option<bool>, WireError> {
        match self.get(key) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(WireError::WrongKind { key, expected: "true or false" }),
        }
    }
}

/// A position in the line. `at` is always on a character boundary and never past the end.
struct JsonReader<'a> {
    text: &'a str,
    at: usize,
}

impl JsonReader<'_> {
    fn peek_byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn syntax_error(&self, expected: &'static str) -> WireError {
        WireError::Syntax { at: self.at, expected }
    }

    /// Skips the byte if it is the next one. Only called with ASCII, so `at` stays on a character boundary.
    fn pass_if(&mut self, byte: u8) -> bool {
        let there = self.peek_byte() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect_byte(&mut self, byte: u8, expected: &'static str) -> Result<(), WireError> {
        if self.pass_if(byte) { Ok(()) } else { Err(self.syntax_error(expected)) }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek_byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<(), WireError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.syntax_error("a value"))
    }

    /// Reads the members of an object after its brace; `member` reads one key and value.
    fn read_members(&mut self, mut member: impl FnMut(&mut Self) -> Result<(), WireError>) -> Result<(), WireError> {
        self.skip_space();
        if self.pass_if(b'}') {
            return Ok(());
        }
        loop {
            self.skip_space();
            member(self)?;
            self.skip_space();
            if self.pass_if(b'}') {
                return Ok(());
            }
            self.expect_byte(b',', "',' or '}'")?;
        }
    }

    /// Reads a key and its colon.
    fn read_key(&mut self) -> Result<String, WireError> {
        if self.peek_byte() != Some(b'"') {
            return Err(self.syntax_error("a key in quotes"));
        }
        let key = self.read_string()?;
        self.skip_space();
        self.expect_byte(b':', "':'")?;
        Ok(key)
    }

    /// Reads any value; `depth` is the number of further levels allowed.
    fn read_value(&mut self, depth: usize) -> Result<JsonValue, WireError> {
        self.skip_space();
        match self.peek_byte() {
            Some(b'"') => self.read_string().map(JsonValue::String),
            Some(b'-' | b'0'..=b'9') => self.read_number(),
            Some(b't') => self.expect_word("true").map(|()| JsonValue::Bool(true)),
            Some(b'f') => self.expect_word("false").map(|()| JsonValue::Bool(false)),
            Some(b'n') => self.expect_word("null").map(|()| JsonValue::Null),
            Some(b'{' | b'[') if depth == 0 => Err(WireError::TooDeep),
            Some(b'{') => {
                self.at += 1;
                self.read_members(|reader| {
                    reader.read_key()?;
                    reader.read_value(depth - 1).map(drop)
                })?;
                Ok(JsonValue::Skipped)
            }
            Some(b'[') => {
                self.at += 1;
                self.skip_elements(depth - 1)?;
                Ok(JsonValue::Skipped)
            }
            _ => Err(self.syntax_error("a value")),
        }
    }

    /// Reads the elements of an array after its bracket.
    fn skip_elements(&mut self, depth: usize) -> Result<(), WireError> {
        self.skip_space();
        if self.pass_if(b']') {
            return Ok(());
        }
        loop {
            self.read_value(depth)?;
            self.skip_space();
            if self.pass_if(b']') {
                return Ok(());
            }
            self.expect_byte(b',', "',' or ']'")?;
        }
    }

    /// Reads a number by JSON's grammar: no leading zero, no sign or point alone.
    fn read_number(&mut self) -> Result<JsonValue, WireError> {
        let start = self.at;
        let mut kept = !self.pass_if(b'-');
        if !self.pass_if(b'0') {
            self.read_digits()?;
        }
        let whole = self.at;
        if self.pass_if(b'.') {
            self.read_digits()?;
            kept &= self.at == whole + 2;
        }
        let end = self.at;
        if matches!(self.peek_byte(), Some(b'e' | b'E')) {
            kept = false;
            self.at += 1;
            if !self.pass_if(b'+') {
                self.pass_if(b'-');
            }
            self.read_digits()?;
        }
        let number = self.text[start..whole].parse::<u64>().ok().filter(|_| kept);
        Ok(match (number, self.text.as_bytes()[whole..end].last()) {
            (None, _) => JsonValue::Skipped,
            (Some(number), None) => JsonValue::Number(number),
            (Some(number), Some(tenth)) => {
                let tenths = number.checked_mul(10).and_then(|tenths| tenths.checked_add(u64::from(tenth - b'0')));
                tenths.map_or(JsonValue::Skipped, JsonValue::Tenths)
            }
        })
    }

    fn read_digits(&mut self) -> Result<(), WireError> {
        if !matches!(self.peek_byte(), Some(b'0'..=b'9')) {
            return Err(self.syntax_error("a digit"));
        }
        while matches!(self.peek_byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    /// Reads a string; the next byte is its opening quote.
    fn read_string(&mut self) -> Result<String, WireError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let plain = self.text[self.at..].find(|c: char| c == '"' || c == '\\' || c < ' ');
            let Some(plain) = plain else {
                self.at = self.text.len();
                return Err(self.syntax_error("a closing quote"));
            };
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match self.peek_byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.read_escape()?);
                }
                _ => return Err(self.syntax_error("no control character in a string")),
            }
        }
    }

    /// Reads an escape after its backslash.
    fn read_escape(&mut self) -> Result<char, WireError> {
        let escaped = match self.peek_byte() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.read_unicode();
            }
            _ => return Err(self.syntax_error("an escape")),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// Reads four hexadecimal digits, and four more if they are the first half of a surrogate pair.
    fn read_unicode(&mut self) -> Result<char, WireError> {
        let first = self.read_hex()?;
        let code = if (0xd800..0xdc00).contains(&first) {
            self.expect_byte(b'\\', "the second half of a surrogate pair")?;
            self.expect_byte(b'u', "the second half of a surrogate pair")?;
            let second = self.read_hex()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.syntax_error("the second half of a surrogate pair"));
            }
            0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or(self.syntax_error("a character, not half of a surrogate pair"))
    }

    fn read_hex(&mut self) -> Result<u32, WireError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek_byte().and_then(|byte| char::from(byte).to_digit(16));
            code = code * 16 + digit.ok_or(self.syntax_error("four hexadecimal digits"))?;
            self.at += 1;
        }
        Ok(code)
    }
}

/// Writes one flat object, with its keys in the order of the calls. A key must be plain ASCII without quotes.
#[derive(Debug)]
pub struct JsonWriter {
    line: String,
}

impl JsonWriter {
    /// Starts an object.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "an empty writer is not a value anybody wants by default")]
    pub fn new() -> Self {
        Self { line: String::from("{") }
    }

    /// Adds a string with JSON's escapes.
    pub fn write_string(&mut self, key: &str, value: &str) {
        self.write_key(key);
        self.line.push('"');
        for c in value.chars() {
            match c {
                '"' => self.line.push_str("\\\""),
                '\\' => self.line.push_str("\\\\"),
                c if c < ' ' => self.write_control(c),
                c => self.line.push(c),
            }
        }
        self.line.push('"');
    }

    /// Adds a number.
    pub fn write_number(&mut self, key: &str, value: u64) {
        self.write_key(key);
        self.line.push_str(&value.to_string());
    }

    /// Adds a number, or null.
    pub fn number_or_null(&mut self, key: &str, value: Option<u64>) {
        match value {
            Some(value) => self.write_number(key, value),
            None => {
                self.write_key(key);
                self.line.push_str("null");
            }
        }
    }

    /// Adds a number with one decimal, given times ten.
    pub fn write_tenths(&mut self, key: &str, value: u64) {
        self.write_number(key, value / 10);
        self.line.push('.');
        self.line.push_str(&(value % 10).to_string());
    }

    /// Adds a share in percent, with one decimal if necessary, or null.
    pub fn share_or_null(&mut self, key: &str, value: Option<Share>) {
        match value.map(Share::as_permille) {
            Some(permille) if permille % 10 != 0 => self.write_tenths(key, u64::from(permille)),
            permille => self.number_or_null(key, permille.map(|permille| u64::from(permille / 10))),
        }
    }

    /// Adds a boolean.
    pub fn write_boolean(&mut self, key: &str, value: bool) {
        self.write_key(key);
        self.line.push_str(if value { "true" } else { "false" });
    }

    /// Ends the object and the line.
    ///
    /// # Errors
    /// [`WireError::TooLong`] if the line is longer than [`MAX_LINE`].
    pub fn finish_line(mut self) -> Result<String, WireError> {
        self.line.push_str("}\n");
        if self.line.len() > MAX_LINE { Err(WireError::TooLong) } else { Ok(self.line) }
    }

    fn write_key(&mut self, key: &str) {
        if self.line.len() > 1 {
            self.line.push(',');
        }
        self.line.push('"');
        self.line.push_str(key);
        self.line.push_str("\":");
    }

    /// Writes a control character as `\u00xx`.
    fn write_control(&mut self, c: char) {
        self.line.push_str("\\u");
        for shift in [12, 8, 4, 0] {
            let digit = (u32::from(c) >> shift) & 0xf;
            self.line.push(char::from_digit(digit, 16).unwrap_or('0'));
        }
    }
}
