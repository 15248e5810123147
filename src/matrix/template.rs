//! Templates: words with the names of axes in braces.

/// A word with `{axis}` placeholders. `{{` and `}}` are literal braces.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<TemplatePart>);

/// A piece of a template: literal text or a placeholder.
#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Slot(String),
}

impl Template {
    /// Parses a word.
    ///
    /// # Errors
    /// If a brace is unmatched; the error is a message.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lone =
            |brace| format!("'{text}' has an unmatched {brace}; write {brace}{brace} for a literal brace");
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain += &rest[..at];
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain += brace;
                rest = after;
                continue;
            }
            let (name, after) = rest.split_once('}').filter(|_| brace == "{").ok_or_else(|| lone(brace))?;
            parts.extend([
                TemplatePart::Text(std::mem::take(&mut plain)),
                TemplatePart::Slot(name.to_owned()),
            ]);
            rest = after;
        }
        parts.push(TemplatePart::Text(plain + rest));
        Ok(Self(parts))
    }

    /// Returns the axis names in braces.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Slot(name) => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }

    /// Returns the word with every placeholder replaced by its value. Braces in a value are not replaced.
    pub(crate) fn fill(&self, value: impl Fn(&str) -> String) -> String {
        let filled = self.0.iter().map(|part| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Slot(name) => value(name),
        });
        filled.collect()
    }
}
