//! Name patterns of map rules.

use regex::Regex;

use crate::format::EscapedText;

/// A name with fields for numbers: `model.layers.{layer}.mlp`. `*` matches anything, `(a|b)` one of the two,
/// `\` escapes the next character.
#[derive(Clone, Debug)]
pub(crate) struct NamePattern {
    expression: Regex,
}

/// The numbers that a pattern's fields found in a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameNumbers {
    /// Layer number in the array name, if the pattern has `{layer}`.
    pub(crate) layer: Option<usize>,
    /// Pass number in the array name, if the pattern has `{pass}`.
    pub(crate) pass: Option<usize>,
}

impl NamePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the pattern is invalid; the message describes the problem.
    pub(crate) fn new(written: &str) -> Result<Self, String> {
        Self::with_fields(written, &[])
    }

    /// Compiles a pattern with more fields than numbers: their names and regular expressions.
    ///
    /// # Errors
    /// If the pattern is invalid; the message describes the problem.
    fn with_fields(written: &str, more: &[(&str, &str)]) -> Result<Self, String> {
        let refuse = |problem: &str| format!("invalid pattern '{}': {problem}", EscapedText(written));
        let mut expression = String::from(r"\A(?:");
        let mut rest = written;
        while let Some(next) = rest.chars().next() {
            let after = &rest[next.len_utf8()..];
            rest = match next {
                '{' => {
                    let (name, after) = after.split_once('}').ok_or_else(|| refuse("missing }"))?;
                    let known = [("layer", "[0-9]+"), ("pass", "[0-9]+")];
                    let known = known.iter().chain(more);
                    let (_, digits) = known.clone().find(|(field, _)| *field == name).ok_or_else(|| {
                        let known: Vec<String> = known.map(|(field, _)| format!("{{{field}}}")).collect();
                        let expected = known.join(" or ");
                        refuse(&format!("unknown field {{{}}}, expected {expected}", EscapedText(name)))
                    })?;
                    expression += &format!("(?P<{name}>{digits})");
                    after
                }
                '\\' => {
                    let literal = after.chars().next().ok_or_else(|| refuse("\\ at the end"))?;
                    expression += &regex::escape(&literal.to_string());
                    &after[literal.len_utf8()..]
                }
                _ => {
                    match next {
                        '*' => expression += "(?s:.*)",
                        '(' => expression += "(?:",
                        '|' | ')' => expression.push(next),
                        literal => expression += &regex::escape(&literal.to_string()),
                    }
                    after
                }
            };
        }
        expression += r")\z";
        let expression =
            Regex::new(&expression).map_err(|_| refuse("unbalanced brackets, or a field used twice"))?;
        Ok(Self { expression })
    }

    /// Returns the pattern that matches exactly this name.
    pub(crate) fn literal(name: &str) -> String {
        name.chars().fold(String::new(), |mut pattern, character| {
            if r"*(|){}\".contains(character) {
                pattern.push('\\');
            }
            pattern.push(character);
            pattern
        })
    }

    /// Returns the numbers in a name; `None` if the name does not match the pattern.
    pub(crate) fn of(&self, name: &str) -> Option<NameNumbers> {
        let found = self.expression.captures(name)?;
        let number = |key| found.name(key).map(|digits| digits.as_str().parse::<usize>());
        let (layer, pass) = (number("layer").transpose().ok()?, number("pass").transpose().ok()?);
        Some(NameNumbers { layer, pass })
    }
}

/// A renaming before the rules, from names that a tool makes of module paths to the module paths.
#[derive(Clone, Debug)]
pub(super) struct RenamePattern {
    from: NamePattern,
    to: String,
}

/// An array name in the form that the rules match.
pub(super) struct RenamedArray {
    pub(crate) name: String,
    /// Pass number in the original name, if its pattern has `{pass}`.
    pub(crate) pass: Option<usize>,
}

impl RenamePattern {
    /// Compiles a pattern with the fields `{module}` (any text) and `{class}` (text without a dot), and the name that
    /// replaces it, with `{module}`.
    ///
    /// # Errors
    /// If the pattern is invalid; the message describes the problem.
    pub(super) fn new(from: &str, to: &str) -> Result<Self, String> {
        let fields = [("module", "(?s:.+?)"), ("class", r"[^.]+")];
        if to.contains(MODULE) && !from.contains(MODULE) {
            return Err(format!(
                "'{}' has no {MODULE}, which '{}' needs",
                EscapedText(from),
                EscapedText(to)
            ));
        }
        Ok(Self { from: NamePattern::with_fields(from, &fields)?, to: to.to_owned() })
    }

    /// Returns the new name; `None` if the pattern does not match.
    pub(super) fn of(&self, name: &str) -> Option<RenamedArray> {
        let numbers = self.from.of(name)?;
        let found = self.from.expression.captures(name)?;
        let module = found.name("module").map_or("", |module| module.as_str());
        Some(RenamedArray { name: self.to.replace(MODULE, module), pass: numbers.pass })
    }
}

const MODULE: &str = "{module}";
