//! Sequences of a JSONL file, one in a line.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserializer;
use serde::de::{Deserialize, DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use super::field_names::{PolicySide, SequenceField};
use super::record::{FieldProblem, SequenceRecord, StatedSequence};
use crate::error::{Error, Result};
use crate::input;

/// Maximum length of a line, in bytes: some 8 million tokens.
const LONGEST_LINE: u64 = 1 << 28;

/// Reader of a JSONL file.
pub(super) struct JsonLines {
    path: PathBuf,
    file: BufReader<File>,
    wanted: SideNames,
    line: Vec<u8>,
    number: usize,
}

/// Names of a side's fields. The names of its log-probabilities are sorted, best first.
#[derive(Clone, Debug)]
pub(super) struct SideNames {
    side: PolicySide,
    logprobs: Vec<String>,
    /// True if the file also contains the other side.
    has_both_sides: bool,
}

impl SideNames {
    /// Returns the usual names of a side, or the column that the user names.
    pub(super) fn of(side: PolicySide, column: Option<&str>, has_both_sides: bool) -> Self {
        let logprobs = match column {
            Some(column) => vec![column.to_owned()],
            None => side.logprobs().iter().map(|&name| name.to_owned()).collect(),
        };
        Self { side, logprobs, has_both_sides }
    }

    pub(super) fn rank(&self, name: &str) -> Option<usize> {
        self.logprobs.iter().position(|known| known == name)
    }

    /// Returns the field with a name, if it is this side's. In a file with both sides, experts whose name mentions no
    /// side belong to the rollout.
    pub(super) fn field(&self, name: &str) -> Option<SequenceField> {
        let is_of_rollout =
            |field: &SequenceField| field.depth() == 3 && self.has_both_sides && !self.is_own(name);
        let is_others = |field: &SequenceField| self.side == PolicySide::Trainer && is_of_rollout(field);
        SequenceField::named(name).filter(|field| self.side.owns(name) && !is_others(field))
    }

    /// Returns true if a field's name mentions this side. Such a field is preferred to one that mentions no side.
    pub(super) fn is_own(&self, name: &str) -> bool {
        !self.side.other().owns(name)
    }

    /// Lists the names of log-probabilities for a message.
    pub(super) fn listed(&self) -> String {
        self.logprobs.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
    }
}

impl JsonLines {
    pub(super) fn open(path: &Path, wanted: SideNames) -> Result<Self> {
        input::regular(path)?;
        let file = BufReader::with_capacity(1 << 18, File::open(path).map_err(Error::io("open", path))?);
        Ok(Self { path: path.to_owned(), file, wanted, line: Vec::new(), number: 0 })
    }

    /// Reads the next sequence; `None` at the end of the file.
    ///
    /// # Errors
    /// If a line is not an object of JSON with valid fields.
    pub(super) fn read(&mut self) -> Result<Option<SequenceRecord>> {
        while self.read_line()? {
            if !self.line.trim_ascii().is_empty() {
                return self.parsed().map(Some);
            }
        }
        Ok(None)
    }

    fn read_line(&mut self) -> Result<bool> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.file).take(LONGEST_LINE);
        let read = limited.read_until(b'\n', &mut self.line).map_err(Error::io("read", &self.path))?;
        if read as u64 == LONGEST_LINE {
            return Err(
                self.bad(format!("longer than {LONGEST_LINE} bytes, expected one sequence in a line"))
            );
        }
        Ok(read > 0)
    }

    fn parsed(&self) -> Result<SequenceRecord> {
        let mut json = serde_json::Deserializer::from_slice(&self.line);
        let found =
            StatedVisitor(&self.wanted).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
        let (stated, has_logprobs) = found.map_err(|error| self.bad(described(&error)))?;
        if !has_logprobs {
            return Err(self.bad(format!("no field {}; name it with --columns", self.wanted.listed())));
        }
        stated
            .aligned()
            .map_err(|FieldProblem(field, problem)| self.bad(format!("field `{field}`: {problem}")))
    }

    fn bad(&self, problem: String) -> Error {
        Error::dump(&self.path, format!("line {}: {problem}", self.number))
    }
}

/// Describes a JSON error by its column, because each line is parsed separately.
fn described(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    format!(
        "column {}: {text}; expected a JSON object with tokens and logprobs (null where not scored)",
        error.column()
    )
}

/// Reads the known fields of an object and skips the others.
struct StatedVisitor<'n>(&'n SideNames);

impl<'de> DeserializeSeed<'de> for StatedVisitor<'_> {
    type Value = (StatedSequence, bool);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for StatedVisitor<'_> {
    type Value = (StatedSequence, bool);

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut stated, mut best) = (StatedSequence::default(), usize::MAX);
        while let Some(key) = map.next_key::<String>()? {
            match (self.0.rank(&key), self.0.field(&key)) {
                (Some(rank), _) if rank < best => {
                    stated.logprobs = map.next_value_seed(NamedValue::<Numbers>::of(&key))?.0;
                    best = rank;
                }
                (_, Some(SequenceField::Routes)) if stated.routes.is_some() && !self.0.is_own(&key) => {
                    map.next_value::<IgnoredAny>()?;
                }
                (_, Some(field)) => read_field(&mut stated, field, &key, &mut map)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok((stated, best != usize::MAX))
    }
}

fn read_field<'de, A: MapAccess<'de>>(
    stated: &mut StatedSequence,
    field: SequenceField,
    key: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    use SequenceField as Field;
    match field {
        Field::Tokens => stated.tokens = map.next_value_seed(NamedValue::of(key))?,
        Field::Prompt => stated.prompt = map.next_value_seed(NamedValue::of(key))?,
        Field::Completion => stated.completion = map.next_value_seed(NamedValue::of(key))?,
        Field::PromptLength => stated.prompt_length = map.next_value_seed(NamedValue::of(key))?,
        Field::CompletionLength => stated.completion_length = map.next_value_seed(NamedValue::of(key))?,
        Field::Temperature => stated.temperature = map.next_value_seed(NamedValue::of(key))?,
        Field::Version => stated.version = map.next_value_seed(NamedValue::<Version>::of(key))?.0,
        Field::Dtype => stated.dtype = map.next_value_seed(NamedValue::of(key))?,
        Field::Mask => {
            let flags = map.next_value_seed(NamedValue::<Vec<serde_json::Value>>::of(key))?;
            let is_set = |flag: &serde_json::Value| {
                flag.as_bool().unwrap_or_else(|| flag.as_f64().is_some_and(|flag| flag != 0.0))
            };
            stated.mask = Some(flags.iter().map(is_set).collect());
        }
        Field::Routes => stated.routes = map.next_value_seed(NamedValue::of(key))?,
        Field::PromptRoutes => stated.prompt_routes = map.next_value_seed(NamedValue::of(key))?,
        Field::Length => drop(map.next_value::<IgnoredAny>()?),
    }
    Ok(())
}

/// Reads a value and names its field in errors.
struct NamedValue<'k, T>(&'k str, std::marker::PhantomData<T>);

impl<'k, T> NamedValue<'k, T> {
    fn of(key: &'k str) -> Self {
        Self(key, std::marker::PhantomData)
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for NamedValue<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        T::deserialize(from).map_err(|error| serde::de::Error::custom(format!("field `{}`: {error}", self.0)))
    }
}

/// A list of numbers or null, or one number.
struct Numbers(Vec<Option<f64>>);

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NumbersVisitor;
        impl<'de> Visitor<'de> for NumbersVisitor {
            type Value = Numbers;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a list of numbers or null")
            }

            fn visit_f64<E>(self, value: f64) -> Result<Numbers, E> {
                Ok(Numbers(vec![Some(value)]))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Numbers, E> {
                Ok(Numbers(vec![Some(value as f64)]))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Numbers, E> {
                Ok(Numbers(vec![Some(value as f64)]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Numbers, A::Error> {
                let mut numbers = Vec::new();
                while let Some(element) = list.next_element::<Option<f64>>()? {
                    numbers.push(element);
                }
                Ok(Numbers(numbers))
            }
        }
        from.deserialize_any(NumbersVisitor)
    }
}

/// A version: a number, or a text such as "12".
struct Version(Option<i64>);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let element = serde_json::Value::deserialize(from)?;
        Ok(Self(element.as_i64().or_else(|| element.as_str()?.parse().ok())))
    }
}
