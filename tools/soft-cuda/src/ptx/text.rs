//! The text of PTX without comments, split into lists, numbers and statements.

use super::Type;

/// A part of a function's body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Statement {
    Label(String),
    /// `{`, which opens a scope of names.
    Open,
    /// `}`
    Close,
    /// Text that ends with a semicolon.
    Text(String),
}

/// Returns the text with comments replaced by spaces (PTX ISA, "Comments").
pub(super) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = comment(rest) {
        out.push_str(&rest[..at]);
        out.push(' ');
        let end = if rest[at..].starts_with("//") {
            rest[at..].find('\n')
        } else {
            rest[at + 2..].find("*/").map(|end| end + 4)
        };
        rest = end.map_or("", |end| &rest[at + end..]);
    }
    out.push_str(rest);
    out
}

/// Returns the start of the next comment.
fn comment(text: &str) -> Option<usize> {
    let mut slashes = text.match_indices('/').map(|(at, _)| at);
    slashes.find(|at| matches!(text.as_bytes().get(at + 1), Some(b'/' | b'*')))
}

/// Splits at commas outside of brackets.
pub(super) fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

/// Returns the bracket that closes the one at `open`.
pub(super) fn matching(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(open + at);
        }
    }
    None
}

/// Returns the bits of a constant for the `expected` type (PTX ISA, "Constants").
pub(super) fn number(text: &str, expected: Option<Type>) -> Option<u64> {
    let text = text.trim();
    let (digits, negative) = text.strip_prefix('-').map_or((text, false), |t| (t, true));
    if let Some(value) = decimal(digits) {
        let value = if negative { -value } else { value };
        return Some(float_bits(value, expected));
    }
    let value = unsigned(digits.trim_end_matches('U'))?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

fn unsigned(digits: &str) -> Option<u64> {
    match digits.get(..2).unwrap_or("") {
        "0f" | "0F" if digits.len() == 10 => radix(&digits[2..], 16),
        "0d" | "0D" if digits.len() == 18 => radix(&digits[2..], 16),
        "0x" | "0X" => radix(&digits[2..], 16),
        "0b" | "0B" => radix(&digits[2..], 2),
        _ if digits.len() > 1 && digits.starts_with('0') => radix(&digits[1..], 8),
        _ => radix(digits, 10),
    }
}

/// Unlike the standard library's, accepts no sign.
fn radix(digits: &str, radix: u32) -> Option<u64> {
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Parses a number with a point, which is a double until it is used.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.');
    plain.then(|| text.parse().ok()).flatten()
}

fn float_bits(value: f64, expected: Option<Type>) -> u64 {
    match expected {
        Some(Type::F32) => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    }
}

/// Returns true if it is a valid name (PTX ISA, "Identifiers").
pub(super) fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '%');
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Returns the statements of a body without comments.
pub(super) fn statements(body: &str) -> Vec<Statement> {
    let lines: Vec<&str> = body.lines().filter(|line| !is_aside(line.trim())).collect();
    let mut cutter = Cutter::default();
    let text = lines.join("\n");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        cutter.take(c, chars.peek() == Some(&':'));
    }
    cutter.statements
}

/// Returns true for directives about source lines and compilation. Unlike statements, not all end
/// with a semicolon.
fn is_aside(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or("");
    matches!(word, ".loc" | ".file" | ".pragma") || line.starts_with('#')
}

#[derive(Default)]
struct Cutter {
    statements: Vec<Statement>,
    current: String,
    /// Open brackets within the current statement.
    depth: usize,
}

impl Cutter {
    fn take(&mut self, c: char, before_colon: bool) {
        match c {
            ';' => self.end(Statement::Text),
            '{' if self.current.trim().is_empty() => self.statements.push(Statement::Open),
            '}' if self.depth == 0 => {
                self.end(Statement::Text);
                self.statements.push(Statement::Close);
            }
            ':' if !before_colon && is_name(self.current.trim()) => self.end(Statement::Label),
            _ => {
                self.depth = match c {
                    '{' => self.depth + 1,
                    '}' => self.depth - 1,
                    _ => self.depth,
                };
                self.current.push(c);
            }
        }
    }

    fn end(&mut self, statement: impl Fn(String) -> Statement) {
        let text = self.current.trim();
        if !text.is_empty() {
            self.statements.push(statement(text.to_owned()));
        }
        self.current.clear();
        self.depth = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_spaces() {
        assert_eq!(without_comments("a // b\nc /* d\n e */ f"), "a  \nc   f");
        assert_eq!(without_comments("a /* never ends"), "a  ");
        assert_eq!(without_comments("/*/ a"), " ");
    }

    #[test]
    fn numbers_of_every_kind() {
        for (text, bits) in [
            ("42", 42),
            ("0x1F", 31),
            ("0b101", 5),
            ("017", 15),
            ("7U", 7),
            ("0f3F800000", 0x3f80_0000),
            ("0d3FF0000000000000", 0x3ff0_0000_0000_0000),
            ("-1", u64::MAX),
        ] {
            assert_eq!(number(text, None), Some(bits), "{text}");
        }
        assert_eq!(number("-0.5", Some(Type::F32)), Some(0xbf00_0000));
        assert_eq!(number("1.0", Some(Type::F64)), Some(1.0f64.to_bits()));
        for text in ["", "x", "0x", "--+1", "1e", "0f12", "é"] {
            assert_eq!(number(text, None), None, "{text}");
        }
    }

    #[test]
    fn lists_are_cut_at_their_own_commas() {
        assert_eq!(split("{a, b}, [c+4], d"), ["{a, b}", "[c+4]", "d"]);
        assert!(split("  ").is_empty());
    }

    #[test]
    fn statements_labels_and_scopes() {
        let text = "ret;\n.loc 1 2 3\n$L1: { mov.b64 {a, b}, c; }\nfence.proxy::x;";
        let of = |text: &str| Statement::Text(text.to_owned());
        assert_eq!(
            statements(text),
            [
                of("ret"),
                Statement::Label("$L1".to_owned()),
                Statement::Open,
                of("mov.b64 {a, b}, c"),
                Statement::Close,
                of("fence.proxy::x"),
            ]
        );
    }
}
