//! Renders conversations with a model's own chat template, as in transformers.

use std::collections::BTreeMap;
use std::io;

use chrono::{DateTime, Utc};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::error::{Error as Refused, Result};

/// Maximum number of instructions of a template; real templates need a few thousand.
const FUEL: u64 = 50_000_000;

/// Maximum length of a conversation in bytes.
const LONGEST: usize = 1 << 26;

const NAME: &str = "chat";

/// A conversation to render.
pub struct Conversation {
    /// Messages.
    pub messages: Vec<serde_json::Value>,
    /// True if the assistant's turn is next.
    pub adds_prompt: bool,
    /// True if the last message is to be continued.
    pub continues: bool,
    /// Additional variables for the template.
    pub told: serde_json::Map<String, serde_json::Value>,
    /// True if special tokens are added to the text; most templates write them themselves.
    pub adds_special: bool,
}

/// A template that can be rendered.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Parses a template, which may use these special tokens.
    ///
    /// # Errors
    /// If the template is not valid Jinja, or uses an unsupported feature.
    pub fn new(source: String, tokens: &BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("Jinja's own syntax is valid"));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", strftime_now);
        let refuse = |error: Error| {
            Refused::Usage(format!("the model's chat template cannot be read: {}", told(&error)))
        };
        environment.add_template_owned(NAME, source).map_err(refuse)?;
        Ok(Self { environment, tokens: tokens.clone() })
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// If the template raises an error.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let given = context! {
            messages => Value::from(Serde(&conversation.messages)),
            add_generation_prompt => conversation.adds_prompt,
            tools => (),
            documents => (),
        };
        let tokens = Value::from(Serde(&self.tokens));
        let told_more = Value::from(Serde(&conversation.told));
        let template = self.environment.get_template(NAME).expect("new() added the template");
        let mut text = BoundedText::default();
        let rendered = template.render_captured_to(context! { ..told_more, ..given, ..tokens }, &mut text);
        let refuse = |problem| Refused::Usage(format!("the chat template rejects the messages: {problem}"));
        if text.is_full {
            return Err(refuse(format!("its output has more than {LONGEST} bytes")));
        }
        rendered.map_err(|error| refuse(told(&error)))?;
        let text = String::from_utf8(text.bytes).expect("the template writes UTF-8");
        if conversation.continues { continued(text, conversation) } else { Ok(text) }
    }
}

/// A buffer for text of limited length.
#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > LONGEST {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text up to the end of the last message, as in transformers.
fn continued(mut text: String, conversation: &Conversation) -> Result<String> {
    let last =
        conversation.messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
    let Some(start) = text.rfind(last.trim()) else {
        return Err(Refused::Usage(
            "the chat template omits the last message, so it cannot be continued".into(),
        ));
    };
    let kept = if text[start..].starts_with(last.trim_start()) { last.trim_start() } else { last.trim() };
    text.truncate(start + kept.len());
    Ok(text)
}

fn told(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    match error.detail() {
        Some(detail) => format!("{detail}{line}"),
        None => format!("{}{line}", error.kind()),
    }
}

/// Python's `json.dumps(value, ensure_ascii=False)`.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    _ = options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let spaces = " ".repeat(indent.unwrap_or(0).min(16));
    let text = match indent {
        Some(_) => written(value, PrettyFormatter::with_indent(spaces.as_bytes())),
        None => written(value, SpacedFormatter),
    };
    let refuse = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    text.map(Value::from).map_err(refuse)
}

fn written(value: &Value, formatter: impl Formatter) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes JSON with a space after each comma and colon, as Python does.
struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// Formats the current date and time, in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    let now = DateTime::<Utc>::from(std::time::SystemTime::now());
    write!(text, "{}", now.format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: unsupported format '{format}'"))
    })?;
    Ok(text)
}
