//! Passes: what each reads, and that it goes on where the ones before stopped.

use std::collections::HashSet;

use serde_json::{json, Map, Value};

use crate::error::{refuse, Result};
use crate::meta::Sequence;

/// A token of a sequence: which, counted from 0, and at which position. Padding is `None`.
pub type Place = Option<(usize, usize)>;

/// A row of a pass over several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is read.
    pub token: u32,
    /// Whose it is, and where.
    pub place: Place,
}

impl Row {
    /// A token of a sequence, at a position of it.
    pub fn new(sequence: usize, position: usize, token: u32) -> Self {
        Self { token, place: Some((sequence, position)) }
    }

    /// A row of which nothing is looked at.
    pub fn padding(token: u32) -> Self {
        Self { token, place: None }
    }
}

/// The passes so far, and how far each sequence was read.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    pub sequences: Vec<Sequence>,
    /// The position that comes next, of each.
    read: Vec<usize>,
    /// Those that are complete, as JSON.
    complete: Vec<String>,
    pub current: Option<Pass>,
}

/// The pass that is being written.
#[derive(Debug)]
pub(crate) struct Pass {
    pub index: usize,
    pub rows: usize,
    /// Of whom each row is, and where.
    pub places: Vec<Place>,
    /// How many sequences it reads.
    pub sequences: usize,
    pub fields: Map<String, Value>,
}

impl Passes {
    pub fn new(sequences: Vec<Sequence>) -> Result<Self> {
        if let Some(empty) = sequences.iter().position(|sequence| sequence.tokens.is_empty()) {
            return refuse(format!("sequence {empty} has no tokens; give at least one"));
        }
        let mut known = HashSet::new();
        let names = sequences.iter().enumerate();
        let mut names = names.map(|(at, sequence)| sequence.name.clone().unwrap_or_else(|| at.to_string()));
        if let Some(twice) = names.find(|name| !known.insert(name.clone())) {
            return refuse(format!("two sequences are '{twice}'; one without a name goes by its number"));
        }
        Ok(Self { read: vec![0; sequences.len()], sequences, ..Self::default() })
    }

    /// How many tokens of a sequence were read.
    pub fn read_of(&self, sequence: usize) -> usize {
        self.read[sequence]
    }

    /// Readers take no sequence that no pass reads.
    pub fn check_all_read(&self) -> Result<()> {
        match self.read.iter().position(|&read| read == 0) {
            Some(unread) => refuse(format!("sequence {unread} is read by no pass; leave it out")),
            None => Ok(()),
        }
    }

    /// How many passes there are.
    pub fn count(&self) -> usize {
        self.complete.len() + usize::from(self.current.is_some())
    }

    /// A pass of the only sequence; its position is where the one before stopped.
    pub fn begin(&mut self, tokens: &[u32]) -> Result<()> {
        let pass = self.count();
        if tokens.is_empty() {
            return refuse(format!("pass {pass} reads no tokens; give at least one"));
        }
        if self.sequences.len() > 1 {
            return refuse("whose are the rows of the pass? of several sequences call Dump::pass_of");
        }
        if self.sequences.is_empty() {
            *self = Self::new(vec![Sequence::new(tokens)])?;
        }
        let position = self.read[0];
        for (row, &token) in tokens.iter().enumerate() {
            self.read_row(row, (0, position + row), token)?;
        }
        let fields = [("tokens", json!(tokens)), ("position", json!(position))];
        let places = (position..position + tokens.len()).map(|position| Some((0, position))).collect();
        self.start(places, 1, fields.to_vec());
        Ok(())
    }

    /// A pass over rows of several sequences.
    pub fn begin_rows(&mut self, rows: &[Row]) -> Result<()> {
        if self.sequences.is_empty() {
            return refuse("there are no sequences; give them in Meta::sequences, or call Dump::pass");
        }
        let mut read: Vec<usize> = rows.iter().filter_map(|row| row.place).map(|(whose, _)| whose).collect();
        read.sort_unstable();
        read.dedup();
        if read.is_empty() {
            return refuse(format!("pass {} reads no row of a sequence; leave it out", self.count()));
        }
        for (index, row) in rows.iter().enumerate() {
            if let Some(place) = row.place {
                self.read_row(index, place, row.token)?;
            }
        }
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let places: Vec<Place> = rows.iter().map(|row| row.place).collect();
        let mut fields = vec![("tokens", json!(tokens))];
        fields.extend(slots(&places));
        self.start(places, read.len(), fields);
        Ok(())
    }

    /// A row goes on where the earlier ones of its sequence stopped, and reads its prompt.
    fn read_row(&mut self, row: usize, (whose, position): (usize, usize), token: u32) -> Result<()> {
        let place = format!("pass {}, row {row}", self.count());
        let Some(sequence) = self.sequences.get(whose) else {
            let known = self.sequences.len();
            return refuse(format!("{place}: there is no sequence {whose}; there are {known}"));
        };
        let expected = self.read[whose];
        if position != expected {
            return refuse(format!(
                "{place}: sequence {whose} is at position {position}, expected {expected}: where its earlier rows stopped"
            ));
        }
        if let Some(&prompt) = sequence.tokens.get(position).filter(|&&prompt| prompt != token) {
            return refuse(format!(
                "{place} reads token {token} at position {position}, the prompt has {prompt} there"
            ));
        }
        self.read[whose] += 1;
        Ok(())
    }

    fn start(&mut self, places: Vec<Place>, sequences: usize, fields: Vec<(&str, Value)>) {
        self.complete();
        let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let rows = places.len();
        self.current = Some(Pass { index: self.complete.len(), rows, places, sequences, fields });
    }

    fn complete(&mut self) {
        let ended = self.current.take().map(|pass| Value::Object(pass.fields).to_string());
        self.complete.extend(ended);
    }

    /// All of them, as a list in JSON.
    pub fn json(&mut self) -> String {
        self.complete();
        format!("[{}]", self.complete.join(",\n"))
    }
}

impl Pass {
    /// Says something more of this pass, once.
    pub fn say(&mut self, key: &str, value: Value) -> Result<()> {
        let twice = self.fields.insert(key.to_owned(), value).is_some();
        if twice {
            refuse(format!("pass {}: its {key} comes twice", self.index))
        } else {
            Ok(())
        }
    }
}

/// Places as two lists.
pub(crate) fn slots(places: &[Place]) -> [(&'static str, Value); 2] {
    let sequence: Vec<Option<usize>> = places.iter().map(|place| place.map(|(whose, _)| whose)).collect();
    let position: Vec<usize> = places.iter().map(|place| place.map_or(0, |(_, position)| position)).collect();
    [("sequence", json!(sequence)), ("position", json!(position))]
}
