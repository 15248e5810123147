//! Name patterns of map rules.

use regex::Regex;

use crate::format::EscapedText;

/// A name with fields for numbers: `model.layers.{layer}.mlp`. `*` matches anything, `(a|b)` one of the two,
/// `\` escapes the next character.
#[derive(Clone, Debug)]
pub struct NamePattern {
    expression: Regex,
}

/// The numbers that a pattern's fields found in a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameNumbers {
    /// Layer number in the array name, if the pattern has `{layer}`.
    pub layer: Option<usize>,
    /// Pass number in the array name, if the pattern has `{pass}`.
    pub pass: Option<usize>,
}

impl NamePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the pattern is invalid; the message describes the problem.
    pub fn new(written: &str) -> Result<Self, String> {
        let refuse = |problem: &str| format!("invalid pattern '{}': {problem}", EscapedText(written));
        let mut expression = String::from(r"\A(?:");
        let mut rest = written;
        while let Some(next) = rest.chars().next() {
            let after = &rest[next.len_utf8()..];
            rest = match next {
                '{' => {
                    let (name, after) = after.split_once('}').ok_or_else(|| refuse("missing }"))?;
                    if !["layer", "pass"].contains(&name) {
                        return Err(refuse(&format!(
                            "unknown field {{{}}}, expected {{layer}} or {{pass}}",
                            EscapedText(name)
                        )));
                    }
                    expression += &format!("(?P<{name}>[0-9]+)");
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
    pub fn literal(name: &str) -> String {
        name.chars().fold(String::new(), |mut pattern, character| {
            if r"*(|){}\".contains(character) {
                pattern.push('\\');
            }
            pattern.push(character);
            pattern
        })
    }

    /// Returns the numbers in a name; `None` if the name does not match the pattern.
    pub fn of(&self, name: &str) -> Option<NameNumbers> {
        let found = self.expression.captures(name)?;
        let number = |key| found.name(key).map(|digits| digits.as_str().parse::<usize>());
        let (layer, pass) = (number("layer").transpose().ok()?, number("pass").transpose().ok()?);
        Some(NameNumbers { layer, pass })
    }
}
